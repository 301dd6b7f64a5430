//! ZB-1P: 1F1B with the backward pass in two parts (Qi et al., 2023, ZB-H1).
//!
//! A stage waits for gradients of inputs alone. The gradients of weights are computed where it would wait otherwise,
//! and otherwise as late as P micro-batches in flight allow.

use super::{Action, Schedule, Work, one_forward_one_backward, weight_gradients};

/// Actions of each stage.
pub(super) fn actions(schedule: &Schedule) -> Vec<Vec<Action>> {
    let (stages, micro_batches) = (schedule.stages, schedule.micro_batches);
    let order = |stage| one_forward_one_backward::order(stages, stage, micro_batches, Work::InputGradient);
    weight_gradients::fill(schedule, (0..stages).map(order).collect(), stages)
}
