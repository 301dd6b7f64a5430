//! Learning-rate schedules: hand-computed points, the end, the floor, and settings that are refused.

use bmtrain_dist::optim::{Schedule, ScheduleKind, Warmup};

fn schedule(kind: ScheduleKind) -> Schedule {
    Schedule::new(kind, 0.5, Warmup::Steps(4), 12, 0.0).unwrap()
}

#[test]
fn formulas_hold_at_hand_computed_points() {
    let cases = [
        (ScheduleKind::NoDecay, [(0, 0.0), (2, 0.25), (4, 0.5), (100, 0.5)]),
        (ScheduleKind::Noam, [(0, 0.0), (2, 0.125), (4, 0.25), (100, 0.05)]),
        (ScheduleKind::Linear, [(0, 0.0), (2, 0.25), (4, 0.5), (8, 0.25)]),
        (ScheduleKind::Cosine, [(0, 0.0), (2, 0.25), (4, 0.5), (8, 0.25)]),
        (ScheduleKind::Exponential { gamma: 0.5 }, [(0, 0.0), (2, 0.25), (4, 0.5), (6, 0.125)]),
    ];
    for (kind, points) in cases {
        for (n, expected) in points {
            let got = schedule(kind).lr(n);
            // One rounding of pi and of a root.
            assert!((got - expected).abs() < 1e-15, "{kind:?} at {n}: {got}");
        }
    }
}

#[test]
fn noam_is_the_schedule_of_cpm_2() {
    // CPM-2's recipe: 1e-3 over 200,000 steps, the first 5 % of them warm-up.
    let schedule = Schedule::new(ScheduleKind::Noam, 1e-3, Warmup::Fraction(0.05), 200_000, 0.0).unwrap();
    let (lr, w) = (1e-3, 10_000.0_f64);
    for n in [0_u64, 1, 5000, 9999, 10_000, 10_001, 40_000, 199_999] {
        let it = n as f64;
        let expected = if it <= w { lr / w.sqrt() * it / w } else { lr / it.sqrt() };
        let got = schedule.lr(n);
        // The power 3/2 is rounded once, the root and the quotient apart.
        assert!((got - expected).abs() <= 4.0 * f64::EPSILON * expected, "at {n}: {got}, {expected}");
    }
    assert_eq!(schedule.lr(40_000), 5e-6);
    assert!((0..9999).all(|n| schedule.lr(n) < schedule.lr(n + 1)) && schedule.lr(10_001) < schedule.lr(10_000));
}

#[test]
fn linear_and_cosine_stay_down_past_the_end() {
    for kind in [ScheduleKind::Linear, ScheduleKind::Cosine] {
        assert!(schedule(kind).lr(12) < 1e-15 && schedule(kind).lr(13) < 1e-15 && schedule(kind).lr(20) < 1e-15);
    }
}

#[test]
fn a_share_of_the_steps_is_rounded_up() {
    // Rounded up as by transformers' Trainer, in doubles: ceil(100 * 0.07) is 8.
    for (share, steps, warmup) in [(0.1, 11, 2), (0.1, 10, 1), (0.06, 50, 3), (0.07, 100, 8), (0.0, 10, 0)] {
        assert_eq!(Warmup::Fraction(share).steps(steps).unwrap(), warmup, "{share} of {steps}");
    }
}

#[test]
fn the_floor_holds_after_the_warmup_only() {
    let schedule = Schedule::new(ScheduleKind::Linear, 1.0, Warmup::Fraction(0.25), 8, 0.1).unwrap();
    assert_eq!(schedule.warmup, 2);
    assert_eq!(schedule.lr(0), 0.0);
    assert_eq!(schedule.lr(8), 0.1);
}

#[test]
fn without_warmup_the_first_step_has_the_full_rate() {
    for kind in [ScheduleKind::NoDecay, ScheduleKind::Noam, ScheduleKind::Linear, ScheduleKind::Cosine] {
        assert_eq!(Schedule::new(kind, 0.5, Warmup::Steps(0), 10, 0.0).unwrap().lr(0), 0.5);
    }
    assert_eq!(Schedule::new(ScheduleKind::Linear, 0.5, Warmup::Steps(0), 0, 0.0).unwrap().lr(0), 0.5);
}

#[test]
fn settings_out_of_range_are_refused() {
    assert!(Schedule::new(ScheduleKind::Linear, -1.0, Warmup::Steps(0), 10, 0.0).is_err());
    assert!(Schedule::new(ScheduleKind::Linear, 1.0, Warmup::Steps(11), 10, 0.0).is_err());
    assert!(Schedule::new(ScheduleKind::Linear, 1.0, Warmup::Fraction(1.5), 10, 0.0).is_err());
    assert!(Schedule::new(ScheduleKind::Linear, 1.0, Warmup::Steps(0), 10, 2.0).is_err());
}
