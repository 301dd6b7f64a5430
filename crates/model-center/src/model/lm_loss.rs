//! Chunking of the language-modelling loss when logits are not requested.

use bmtrain_core::ops::{CrossEntropy, LinearCrossEntropy};
use bmtrain_dist::param::Param;

/// With fewer rows a matrix product is inefficient.
const FEWEST_ROWS: usize = 64;

/// The loss over the rows of `weight [V, D]`, in chunks of logits that take the memory of the weight's f32 gradient,
/// which is allocated at that time anyway: a small model must not pay for the chunks of a large one.
pub(super) fn in_chunks(loss: CrossEntropy, weight: &Param) -> LinearCrossEntropy {
    let options = LinearCrossEntropy { loss, ..LinearCrossEntropy::default() };
    let shape = weight.local_shape();
    let values = match shape.dims() {
        [words, depth] => words.saturating_mul(FEWEST_ROWS.max(*depth)),
        _ => shape.elements(),
    };
    LinearCrossEntropy { chunk_bytes: options.chunk_bytes.min(values.saturating_mul(4)), ..options }
}
