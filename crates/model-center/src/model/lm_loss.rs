//! Chunking of the language-modelling loss when logits are not asked for.

use bmtrain_core::ops::{CrossEntropy, LinearCrossEntropy};
use bmtrain_dist::param::Param;

/// Fewer rows leave a matrix product without work.
const FEWEST_ROWS: usize = 64;

/// The loss over the rows of `weight [V, D]`, with as many logits at a time as take the memory of the weight's gradient
/// in f32, which is allocated meanwhile anyway: a small model must not pay for the chunks of a large one.
pub(super) fn in_chunks(loss: CrossEntropy, weight: &Param) -> LinearCrossEntropy {
    let options = LinearCrossEntropy { loss, ..LinearCrossEntropy::default() };
    let shape = weight.spec().shape;
    let values = match shape.dims() {
        [words, depth] => words.saturating_mul(FEWEST_ROWS.max(*depth)),
        _ => shape.elements(),
    };
    LinearCrossEntropy { chunk_bytes: options.chunk_bytes.min(values.saturating_mul(4)), ..options }
}
