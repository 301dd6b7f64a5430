//! ZB-V: two chunks on each rank, the second in reverse order, so that the first stage also has the end of the model
//! (Qi et al., 2023, section 6).
//!
//! The first gradient is computed on the first stage, right after the forward pass that gives it: no stage waits
//! between its first forward pass and its last weight gradient where the three parts of a chunk's work take equal time
//! and there are at least 2 P micro-batches. At most 2 P + 1 chunks' activations are held: P micro-batches, and half of
//! one more. The order is the project's own: with 2 P, which the paper names, a stage waits for two units.

use super::{Action, Schedule, Work, weight_gradients};

/// Actions of each stage.
pub(super) fn actions(schedule: &Schedule) -> Vec<Vec<Action>> {
    let (stages, micro_batches) = (schedule.stages, schedule.micro_batches);
    let orders = (0..stages).map(|stage| order(stages, stage, micro_batches)).collect();
    weight_gradients::fill(schedule, orders, 2 * stages + 1)
}

/// Forward passes and input gradients of one stage.
///
/// The phases are written for a step with at least 2 P micro-batches. With fewer, the micro-batches that a step does
/// not have are left out: an order without some micro-batches is as free of deadlock as the order with them.
fn order(stages: usize, stage: usize, micro_batches: usize) -> Vec<Action> {
    let full = micro_batches.max(2 * stages);
    let after = stages - 1 - stage;
    let mut line = Line { order: Vec::new(), micro_batches, forward: [0; 2], backward: [0; 2] };
    // Until the first micro-batch is back in the second chunk, forward passes through the first.
    line.repeat(2 * after, &[F0]);
    line.repeat(stage + 1, &[F0, F1]);
    // Until the first gradient is back in the first chunk.
    line.repeat(after, &[B1, F1]);
    line.repeat(full - 2 * stages + stage + 1, &[F0, B1, F1, B0]);
    // The first chunk's forward passes are over, then the second chunk's, then its gradients.
    line.repeat(after, &[B1, F1, B0]);
    line.repeat(stage + 1, &[B1, B0]);
    line.repeat(after, &[B0]);
    line.order
}

const F0: (Work, usize) = (Work::Forward, 0);
const F1: (Work, usize) = (Work::Forward, 1);
const B0: (Work, usize) = (Work::InputGradient, 0);
const B1: (Work, usize) = (Work::InputGradient, 1);

/// An order under construction, with the next micro-batch of each chunk and work.
struct Line {
    order: Vec<Action>,
    micro_batches: usize,
    forward: [usize; 2],
    backward: [usize; 2],
}

impl Line {
    fn repeat(&mut self, times: usize, pattern: &[(Work, usize)]) {
        for &(work, chunk) in (0..times).flat_map(|_| pattern) {
            let next = if work == Work::Forward { &mut self.forward } else { &mut self.backward };
            if next[chunk] < self.micro_batches {
                self.order.push(Action::new(work, chunk, next[chunk]));
            }
            next[chunk] += 1;
        }
    }
}
