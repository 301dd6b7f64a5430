//! GPipe: all forward passes, then all backward passes (Huang et al., 2019).
//!
//! The backward passes are in the order of the forward passes, not in its reverse: gradients are summed in the same
//! order as under the other kinds, at the same bubble.

use super::{Action, Work};

/// Actions of each stage.
pub(super) fn actions(stages: usize, micro_batches: usize) -> Vec<Vec<Action>> {
    let all = |work| (0..micro_batches).map(move |micro_batch| Action::new(work, 0, micro_batch));
    let stage: Vec<Action> = all(Work::Forward).chain(all(Work::Backward)).collect();
    vec![stage; stages]
}
