//! Interleaved 1F1B: every rank has several chunks of the model, P places apart (Narayanan et al., 2021, section 2.2).
//!
//! Micro-batches go in rounds of P: a stage runs a round through its first chunk, then through the next. The last
//! chunk's round ends on the last stage as soon as its first micro-batch is needed back, so the fill and drain of the
//! pipeline take one chunk for each stage instead of all of a rank's layers. A round cannot be smaller than P, which is
//! why the number of micro-batches is a multiple of P.

use super::{Action, Work};

/// Actions of each stage.
pub(super) fn actions(stages: usize, chunks: usize, micro_batches: usize) -> Vec<Vec<Action>> {
    (0..stages).map(|stage| order(stages, stage, chunks, micro_batches)).collect()
}

fn order(stages: usize, stage: usize, chunks: usize, micro_batches: usize) -> Vec<Action> {
    let total = chunks * micro_batches;
    let forward = |index| nth(Work::Forward, stages, chunks, index);
    let backward = |index| {
        let action = nth(Work::Backward, stages, chunks, index);
        Action { chunk: chunks - 1 - action.chunk, ..action }
    };
    // A round through all chunks but the last, and twice the distance to the last stage: forward passes on the way
    // there, and as many again until the first gradient is back.
    let ahead = (2 * (stages - 1 - stage) + (chunks - 1) * stages).min(total);
    let mut order = Vec::with_capacity(2 * total);
    order.extend((0..ahead).map(forward));
    for index in 0..total {
        if ahead + index < total {
            order.push(forward(ahead + index));
        }
        order.push(backward(index));
    }
    order
}

/// The work of a stage number `index` of one kind: rounds of P micro-batches, chunk after chunk.
fn nth(work: Work, stages: usize, chunks: usize, index: usize) -> Action {
    let (round, within) = (index / (stages * chunks), index % (stages * chunks));
    Action::new(work, within / stages, round * stages + within % stages)
}
