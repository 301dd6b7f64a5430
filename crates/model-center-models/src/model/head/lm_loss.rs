//! Chunking of the language-modelling loss when logits are not requested.

use bmtrain_core::Device;
use bmtrain_core::ops::{CrossEntropy, LinearCrossEntropy};
use bmtrain_dist::param::Param;

/// With fewer rows a matrix product is inefficient.
const FEWEST_ROWS: usize = 64;

/// The loss over the rows of `weight [V, D]`, in chunks of logits that take the memory of the weight's f32 gradient,
/// which is allocated at that time anyway, and 128 MiB at most: a small model must not pay for the chunks of a large
/// one.
///
/// Beside memory of its own a device has products that are slow unless they are large, and each chunk reads and writes
/// the whole gradient of the weight: there four times as much, and 1 GiB at most. It follows from sizes and the kind of
/// device, not from how much memory it has: ranks that share the classes take the same chunks.
pub(in crate::model) fn in_chunks(loss: CrossEntropy, weight: &Param, device: &Device) -> LinearCrossEntropy {
    let options = LinearCrossEntropy { loss, ..LinearCrossEntropy::default() };
    let shape = weight.local_shape();
    let values = match shape.dims() {
        [words, depth] => words.saturating_mul(FEWEST_ROWS.max(*depth)),
        _ => shape.elements(),
    };
    let (most, factor) = if device.backend().memory_is_host() { (options.chunk_bytes, 1) } else { (1 << 30, 4) };
    LinearCrossEntropy { chunk_bytes: most.min(values.saturating_mul(4 * factor)), ..options }
}
