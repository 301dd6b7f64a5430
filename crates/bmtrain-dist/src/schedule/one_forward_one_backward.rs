//! 1F1B: after a warm-up, one forward pass and one backward pass in turn (Narayanan et al., 2021).
//!
//! A stage runs as many forward passes ahead as there are stages after it, so that the first gradient arrives when its
//! warm-up is over. At most P micro-batches are in flight, however many a step has.

use super::{Action, Work};

/// Actions of each stage.
pub(super) fn actions(stages: usize, micro_batches: usize) -> Vec<Vec<Action>> {
    (0..stages).map(|stage| order(stages, stage, micro_batches, Work::Backward)).collect()
}

/// The order of one stage, with `backward` as the work that follows a forward pass.
pub(super) fn order(stages: usize, stage: usize, micro_batches: usize, backward: Work) -> Vec<Action> {
    let ahead = (stages - 1 - stage).min(micro_batches);
    let mut order = Vec::with_capacity(2 * micro_batches);
    order.extend((0..ahead).map(|micro_batch| Action::new(Work::Forward, 0, micro_batch)));
    for micro_batch in 0..micro_batches {
        if ahead + micro_batch < micro_batches {
            order.push(Action::new(Work::Forward, 0, ahead + micro_batch));
        }
        order.push(Action::new(backward, 0, micro_batch));
    }
    order
}
