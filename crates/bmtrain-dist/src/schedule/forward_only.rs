//! Forward passes alone: evaluation over the stages of a pipeline.

use super::{Action, Placement, Schedule, Work};

/// Actions of each stage.
pub(super) fn actions(schedule: &Schedule) -> Vec<Vec<Action>> {
    (0..schedule.stages).map(|stage| order(schedule, stage)).collect()
}

fn order(schedule: &Schedule, stage: usize) -> Vec<Action> {
    let (stages, chunks) = (schedule.stages, schedule.chunks);
    let mut order: Vec<Action> = (0..schedule.micro_batches)
        .flat_map(|micro_batch| (0..chunks).map(move |chunk| Action::new(Work::Forward, chunk, micro_batch)))
        .collect();
    match schedule.placement {
        // Rounds of P micro-batches, chunk after chunk, as in interleaved 1F1B.
        Placement::Loop => order.sort_by_key(|action| (action.micro_batch / stages, action.chunk, action.micro_batch)),
        // A micro-batch enters every second unit of time: its two passes by a stage fall on units of different parity.
        Placement::V => order.sort_by_key(|action| 2 * action.micro_batch + schedule.place(stage, action.chunk)),
    }
    order
}
