//! The bubble of a running pipeline, with blocks that take a fixed time, against the formula of its schedule; and the
//! peak of its activations.

use super::sleepers::{SleepRun, measure, measure_costs};
use crate::ranks::peak;
use bmtrain_core::comm::host::HostOptions;
use bmtrain_core::{DType, Segment};
use bmtrain_dist::block::Recompute;
use bmtrain_dist::pipeline::{Partition, Schedule, ScheduleKind, WorkTimes};
use bmtrain_dist::shard::ZeroLevel;
use std::time::Duration;

/// Elements of the hidden states, which every block keeps for its backward pass.
const ELEMENTS: usize = 1 << 12;

/// One block at each place, whose parts all take this time.
fn run(kind: ScheduleKind, stages: usize, micro_batches: usize, time: Duration) -> SleepRun {
    let schedule = Schedule::new(kind, stages, kind.default_chunks(), micro_batches).unwrap();
    let time = time.as_secs_f64();
    let times = WorkTimes { forward: time, input_gradient: time, weight_gradient: time };
    SleepRun {
        blocks: vec![times; schedule.places()],
        schedule,
        elements: ELEMENTS,
        values: 1,
        data: 1,
        level: ZeroLevel::Zero,
        recompute: Recompute::Keep,
        options: HostOptions::default(),
    }
}

/// Within 5 points of the formula. Ignored, as it times threads: run it where nothing else runs.
#[test]
#[ignore = "times threads"]
fn the_bubble_of_every_schedule_is_that_of_its_formula() {
    let mut largest = 0.0f64;
    for (kind, stages, micro_batches) in [
        (ScheduleKind::GPipe, 2, 4),
        (ScheduleKind::OneForwardOneBackward, 2, 4),
        (ScheduleKind::OneForwardOneBackward, 4, 8),
        (ScheduleKind::Interleaved, 2, 4),
        (ScheduleKind::ZeroBubble, 2, 4),
        (ScheduleKind::ZeroBubble, 4, 8),
        (ScheduleKind::ZeroBubbleV, 2, 6),
    ] {
        let measured = measure(&run(kind, stages, micro_batches, Duration::from_millis(30)));
        let most = measured.iter().map(|rank| rank.bubble).fold(0.0, f64::max);
        let formula = kind.bubble(stages, kind.default_chunks(), micro_batches).unwrap();
        eprintln!("{kind} on {stages} stages, {micro_batches} micro-batches: {most:.3}, by its formula {formula:.3}");
        largest = largest.max((most - formula).abs());
    }
    println!("figure: {:.1} points", 100.0 * largest);
    assert!(largest < 0.05, "{largest} from a formula");
}

#[test]
fn activations_of_as_many_micro_batches_as_the_schedule_has_in_flight_are_alive() {
    // So that no stage runs far ahead of the one that takes what it sends.
    const PACE: Duration = Duration::from_millis(10);
    let (stages, micro_batches) = (4, 8);
    let bytes = ELEMENTS * DType::F32.size();
    for kind in [ScheduleKind::GPipe, ScheduleKind::OneForwardOneBackward, ScheduleKind::ZeroBubble] {
        let schedule = Schedule::new(kind, stages, 1, micro_batches).unwrap();
        for (stage, rank) in measure(&run(kind, stages, micro_batches, PACE)).into_iter().enumerate() {
            let peak = peak(&rank.memory, Segment::Activations);
            // Beside what blocks keep: the input that arrives, the output on its way, and gradients of both.
            // The head keeps the output of the last block until the gradient of its input is there.
            let each = if stage + 1 == stages { 2 * bytes } else { bytes };
            // Nothing but the pace stops a stage of GPipe from sending all it has before any of it is received.
            let on_the_way = if kind == ScheduleKind::GPipe { micro_batches } else { 0 };
            let (in_flight, more) = (schedule.peak_in_flight(stage), (5 + on_the_way) * bytes);
            let kept = in_flight * bytes;
            assert!(
                peak >= kept && peak <= in_flight * each + more,
                "{kind}, stage {stage}: {peak} bytes, {kept} are kept"
            );
        }
    }
}

#[test]
fn blocks_are_divided_by_the_time_they_take_and_all_ranks_agree() {
    // One block of six takes five times as long as the others, two a little longer.
    let mut slept = run(ScheduleKind::OneForwardOneBackward, 2, 2, Duration::from_millis(4));
    let time = |factor: f64| {
        let seconds = 0.004 * factor;
        WorkTimes { forward: seconds, input_gradient: seconds, weight_gradient: seconds }
    };
    slept.blocks = [1.0, 5.0, 1.0, 1.0, 1.5, 1.5].map(time).to_vec();
    let costs = measure_costs(&slept);
    assert_eq!(costs[0], costs[1]);
    let costs = &costs[0];
    for (cost, times) in costs.blocks.iter().zip(&slept.blocks) {
        assert!(*cost >= (times.forward * 3e9) as u64, "{costs:?}");
    }
    // The head takes no time to speak of. 6 to 5 where the first stage has two blocks, 7 to 4 where it has three.
    assert!(costs.head > 0 && costs.head < costs.blocks[0], "{costs:?}");
    assert_eq!(Partition::balanced(&costs.blocks, costs.head, 2).unwrap().counts(), [2, 4]);
}
