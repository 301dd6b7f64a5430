//! Loss scaling: every policy against sequences worked out by hand, giving up, and continuing from a state.

use bmtrain_dist::optim::{LossScaler, Outcome, ScalePolicy, ScaleState};

fn scaler(policy: ScalePolicy) -> LossScaler {
    LossScaler::new(policy, LossScaler::MAX_SKIPS).unwrap()
}

/// Feed a line of steps, `.` clean and `x` overflowed; the scale after each.
fn scales(scaler: &mut LossScaler, steps: &str) -> Vec<f32> {
    steps.chars().map(|step| scaler.update(step == 'x').scale()).collect()
}

fn bm_train(start: f32, every: u64, min: f32, max: f32) -> ScalePolicy {
    ScalePolicy::BmTrain { start, factor: 2.0, every, min, max }
}

fn megatron(window: u64, hysteresis: u32, floor: f32) -> ScalePolicy {
    ScalePolicy::Megatron { start_power: 4, window, hysteresis, floor }
}

fn deep_speed(window: u64, hysteresis: u32, consecutive_hysteresis: bool) -> ScalePolicy {
    ScalePolicy::DeepSpeed { start_power: 4, window, hysteresis, consecutive_hysteresis, floor: 1.0 }
}

#[test]
fn a_static_scale_never_moves() {
    let mut scaler = scaler(ScalePolicy::Static { scale: 4096.0 });
    assert_eq!(scales(&mut scaler, ".xx..x"), [4096.0; 6]);
    assert_eq!(scaler.update(true), Outcome::Skipped { scale: 4096.0, at_floor: true, consecutive: 2 });
}

#[test]
fn bm_train_halves_at_once_and_doubles_after_every_so_many_steps_since_the_last_change() {
    let mut scaler = scaler(bm_train(16.0, 3, 1.0, f32::INFINITY));
    //                      .    .     .     .     .     .     x     .     .     x    .    .    .
    let expected = [16.0, 16.0, 32.0, 32.0, 32.0, 64.0, 32.0, 32.0, 32.0, 16.0, 16.0, 16.0, 32.0];
    assert_eq!(scales(&mut scaler, "......x..x..."), expected);
}

#[test]
fn bm_train_looks_at_its_bounds_before_a_change() {
    let mut low = scaler(bm_train(6.0, 100, 2.0, f32::INFINITY));
    // 3 is above 2 and is halved once more; 1.5 is not, and stays.
    assert_eq!(scales(&mut low, "xxxx"), [3.0, 1.5, 1.5, 1.5]);
    assert_eq!(low.update(true), Outcome::Skipped { scale: 1.5, at_floor: true, consecutive: 5 });
    let mut high = scaler(bm_train(6.0, 1, 2.0, 10.0));
    assert_eq!(scales(&mut high, "...."), [12.0, 12.0, 12.0, 12.0]);
}

#[test]
fn bm_train_keeps_its_count_of_steps_through_an_overflow_at_the_floor() {
    let mut scaler = scaler(bm_train(1.0, 3, 1.0, f32::INFINITY));
    // Two steps, an overflow that changes nothing, and the third step doubles.
    assert_eq!(scales(&mut scaler, "..x."), [1.0, 1.0, 1.0, 2.0]);
}

#[test]
fn bm_train_below_its_upper_bound_again_doubles_at_the_next_step_that_is_due() {
    let mut scaler = scaler(bm_train(8.0, 2, 1.0, 16.0));
    //                      .    .     .     .     .     x    .    .
    assert_eq!(scales(&mut scaler, ".....x.."), [8.0, 16.0, 16.0, 16.0, 16.0, 8.0, 8.0, 16.0]);
}

#[test]
fn a_factor_below_one_is_inverted() {
    let policy = ScalePolicy::BmTrain { start: 64.0, factor: 0.25, every: 2, min: 1.0, max: f32::INFINITY };
    let mut scaler = scaler(policy);
    assert_eq!(scales(&mut scaler, "x..x"), [16.0, 16.0, 64.0, 16.0]);
}

#[test]
fn defaults_are_those_of_the_systems() {
    let expected = ScalePolicy::BmTrain { start: 1024.0, factor: 2.0, every: 1024, min: 1.0, max: f32::INFINITY };
    assert_eq!(ScalePolicy::bm_train(1024.0), expected);
    assert_eq!(ScalePolicy::MEGATRON.start(), 4_294_967_296.0);
    assert_eq!(ScalePolicy::DEEP_SPEED.start(), 65_536.0);
    let mut scaler = scaler(ScalePolicy::bm_train(1024.0));
    assert_eq!(scales(&mut scaler, &".".repeat(1023)).last(), Some(&1024.0));
    assert_eq!(scaler.update(false).scale(), 2048.0);
}

#[test]
fn megatron_forgives_overflows_that_need_not_be_in_a_row_until_the_scale_doubles() {
    let mut scaler = scaler(megatron(4, 2, 1.0));
    // The first overflow is forgiven. The clean steps between do not refill, so the second halves, and so does the
    // third. Four clean steps later the scale doubles and one overflow is forgiven again.
    //                       .     x     .     x    x    .    .    .    .    x    x
    let expected = [16.0, 16.0, 16.0, 8.0, 4.0, 4.0, 4.0, 4.0, 8.0, 8.0, 4.0];
    assert_eq!(scales(&mut scaler, ".x.xx....xx"), expected);
}

#[test]
fn megatron_counts_its_window_from_the_last_overflow_forgiven_or_not() {
    let mut scaler = scaler(megatron(3, 2, 1.0));
    //                       .     .     x     .     .     .     .     .     .
    let expected = [16.0, 16.0, 16.0, 16.0, 16.0, 32.0, 32.0, 32.0, 64.0];
    assert_eq!(scales(&mut scaler, "..x......"), expected);
}

#[test]
fn megatron_stays_at_its_floor_and_says_so() {
    let mut scaler = scaler(megatron(100, 1, 5.0));
    assert_eq!(scaler.update(true), Outcome::Skipped { scale: 8.0, at_floor: false, consecutive: 1 });
    assert_eq!(scaler.update(true), Outcome::Skipped { scale: 5.0, at_floor: true, consecutive: 2 });
    assert_eq!(scaler.update(true), Outcome::Skipped { scale: 5.0, at_floor: true, consecutive: 3 });
}

#[test]
fn megatron_with_hysteresis_three_forgives_two() {
    let mut scaler = scaler(megatron(100, 3, 1.0));
    assert_eq!(scales(&mut scaler, ".xxxx"), [16.0, 16.0, 16.0, 8.0, 4.0]);
}

#[test]
fn deep_speed_gives_up_at_the_floor() {
    let mut scaler = scaler(deep_speed(100, 2, false));
    assert_eq!(scales(&mut scaler, ".xxxx"), [16.0, 16.0, 8.0, 4.0, 2.0]);
    assert_eq!(scaler.update(true), Outcome::Skipped { scale: 1.0, at_floor: true, consecutive: 5 });
    assert_eq!(scaler.update(true), Outcome::GiveUp { scale: 1.0, at_floor: true, consecutive: 6 });
}

#[test]
fn deep_speed_at_the_floor_still_forgives_what_its_hysteresis_forgives() {
    let policy =
        ScalePolicy::DeepSpeed { start_power: 0, window: 2, hysteresis: 2, consecutive_hysteresis: false, floor: 1.0 };
    let mut scaler = scaler(policy);
    assert_eq!(scaler.update(true), Outcome::Skipped { scale: 1.0, at_floor: true, consecutive: 1 });
    assert_eq!(scaler.update(true), Outcome::GiveUp { scale: 1.0, at_floor: true, consecutive: 2 });
}

#[test]
fn deep_speed_refills_with_the_scale_or_on_request_after_every_clean_step() {
    //                                                                .     x     .     x     .     x
    assert_eq!(scales(&mut scaler(deep_speed(100, 2, false)), ".x.x.x"), [16.0, 16.0, 16.0, 8.0, 8.0, 4.0]);
    assert_eq!(scales(&mut scaler(deep_speed(100, 2, true)), ".x.x.x"), [16.0; 6]);
    assert_eq!(scales(&mut scaler(deep_speed(2, 2, false)), ".x..xx"), [16.0, 16.0, 16.0, 32.0, 32.0, 16.0]);
}

#[test]
fn eight_skipped_steps_in_a_row_are_the_end_and_seven_are_not() {
    for policy in [ScalePolicy::NONE, ScalePolicy::bm_train(1e6), ScalePolicy::MEGATRON, ScalePolicy::DEEP_SPEED] {
        let mut scaler = scaler(policy);
        scales(&mut scaler, ".");
        let outcomes: Vec<Outcome> = "xxxxxxx.xxxxxxxx".chars().map(|step| scaler.update(step == 'x')).collect();
        for (index, outcome) in outcomes.iter().enumerate() {
            let gave_up = matches!(outcome, Outcome::GiveUp { consecutive: 8, .. });
            assert_eq!(gave_up, index == 15, "{policy:?} {index} {outcome:?}");
            assert_eq!(outcome.is_applied(), index == 7);
        }
    }
}

#[test]
fn a_first_scale_that_is_too_high_comes_down_without_using_up_the_patience() {
    let mut scaler = scaler(ScalePolicy::MEGATRON);
    // One overflow is forgiven, sixteen halve: 2^16.
    let outcomes: Vec<Outcome> = (0..17).map(|_| scaler.update(true)).collect();
    assert_eq!(outcomes[16], Outcome::Skipped { scale: 65_536.0, at_floor: false, consecutive: 17 });
    assert_eq!(scaler.update(false), Outcome::Applied { scale: 65_536.0 });
}

#[test]
fn overflows_from_the_first_step_on_end_too() {
    for (policy, last) in [(ScalePolicy::MEGATRON, 1 + 32 + 7), (ScalePolicy::bm_train(1024.0), 10 + 8)] {
        let mut scaler = scaler(policy);
        let end = (1..100).find(|_| matches!(scaler.update(true), Outcome::GiveUp { at_floor: true, .. }));
        assert_eq!(end, Some(last), "{policy:?}");
    }
}

#[test]
fn a_scaler_continues_from_its_state_as_if_nothing_had_happened() {
    let steps = ".x.x....x.xx...x.....x.xxx......";
    for policy in [
        ScalePolicy::Static { scale: 8.0 },
        bm_train(64.0, 3, 2.0, 100.0),
        megatron(3, 2, 1.0),
        deep_speed(3, 3, false),
        deep_speed(2, 2, true),
    ] {
        let mut unbroken = scaler(policy);
        let outcomes: Vec<Outcome> = steps.chars().map(|step| unbroken.update(step == 'x')).collect();
        for cut in 0..steps.len() {
            let mut before = scaler(policy);
            scales(&mut before, &steps[..cut]);
            let mut after = scaler(policy);
            after.load_state(before.state()).unwrap();
            let rest: Vec<Outcome> = steps[cut..].chars().map(|step| after.update(step == 'x')).collect();
            assert_eq!(rest, outcomes[cut..], "{policy:?} cut at {cut}");
        }
    }
}

#[test]
fn no_scale_grows_to_where_its_reciprocal_is_lost() {
    for policy in [bm_train(1.0, 1, 1.0, f32::INFINITY), megatron(1, 1, 1.0), deep_speed(1, 1, false)] {
        let mut scaler = scaler(policy);
        let scale = scales(&mut scaler, &".".repeat(300))[299];
        assert_eq!(scale, 2_f32.powi(126));
        assert!((1.0 / scale).is_normal());
    }
}

#[test]
fn settings_without_meaning_are_refused() {
    let refused = [
        ScalePolicy::Static { scale: 0.0 },
        ScalePolicy::Static { scale: f32::NAN },
        ScalePolicy::Static { scale: f32::INFINITY },
        ScalePolicy::BmTrain { start: 16.0, factor: 1.0, every: 1, min: 1.0, max: 32.0 },
        ScalePolicy::BmTrain { start: 16.0, factor: 0.0, every: 1, min: 1.0, max: 32.0 },
        ScalePolicy::BmTrain { start: 16.0, factor: f32::NAN, every: 1, min: 1.0, max: 32.0 },
        bm_train(16.0, 0, 1.0, 32.0),
        bm_train(16.0, 1, 32.0, 64.0),
        bm_train(16.0, 1, 1.0, 8.0),
        bm_train(16.0, 1, 0.0, 32.0),
        bm_train(16.0, 1, f32::NAN, 32.0),
        bm_train(16.0, 1, 1.0, f32::NAN),
        megatron(0, 1, 1.0),
        megatron(1, 0, 1.0),
        megatron(1, 1, 0.0),
        megatron(1, 1, 17.0),
        deep_speed(0, 1, false),
        deep_speed(1, 0, false),
        ScalePolicy::Megatron { start_power: 200, window: 1, hysteresis: 1, floor: 1.0 },
    ];
    for policy in refused {
        assert!(LossScaler::new(policy, 8).is_err(), "{policy:?}");
    }
    assert!(LossScaler::new(ScalePolicy::NONE, 0).is_err());
}

#[test]
fn states_of_another_policy_are_refused() {
    let state = scaler(ScalePolicy::MEGATRON).state();
    assert!(scaler(ScalePolicy::bm_train(16.0)).load_state(state).is_err());
    assert!(scaler(ScalePolicy::NONE).load_state(scaler(ScalePolicy::bm_train(16.0)).state()).is_err());
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(scaler(ScalePolicy::MEGATRON).load_state(ScaleState { scale, ..state }).is_err());
    }
    assert!(scaler(ScalePolicy::MEGATRON).load_state(ScaleState { hysteresis: 0, ..state }).is_err());
}
