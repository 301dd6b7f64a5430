//! The parameters of a model that begins without weights, beside what the published formula gives.
//!
//! Defines [`lines`], which the summary of a run has.

use super::setup::Setup;
use crate::formula::{TransformerSizes, families::sizes_of_config};

/// The vocabulary of Megatron-LM's models is a multiple of this times the tensor-parallel ranks.
const VOCABULARY_MULTIPLE: usize = 128;

/// A vocabulary as Megatron-LM pads it for this number of tensor-parallel ranks.
pub(super) fn padded(vocabulary: usize, tensor: usize) -> usize {
    vocabulary.next_multiple_of(VOCABULARY_MULTIPLE.saturating_mul(tensor.max(1)))
}

/// Number of parameters by the formula of Megatron-LM for the sizes of the model, with its vocabulary and with a padded
/// one. Nothing of a family that it is not for.
pub(super) fn lines(setup: &Setup, tensor: usize) -> Vec<String> {
    let Some(sizes) = setup.start.config.as_ref().and_then(|config| sizes_of_config(config).ok()) else {
        return Vec::new();
    };
    let TransformerSizes { layers, unique_layers: unique, width, heads, vocabulary, positions, .. } = sizes;
    let counted = sizes.parameters();
    let all = padded(vocabulary, tensor);
    let with_padding = TransformerSizes { vocabulary: all, ..sizes }.parameters();
    let formula = match (sizes.follow_published_formula(), sizes.embedding == width) {
        (true, _) => "12 L D^2 + 13 L D + (V + S) D + 2 D",
        (false, true) => "the matrices and vectors of L blocks, (V + S) D and the last norm",
        (false, false) => "the matrices and vectors of L blocks, embeddings with their projection, and the last norm",
    };
    let layers = if unique == layers { layers.to_string() } else { format!("{unique} at {layers} places") };
    vec![
        format!("sizes: L {layers}, D {width}, N {heads}, S {positions}, V {vocabulary}"),
        format!("parameters by the formula {formula}: {counted}"),
        format!(
            "with the vocabulary padded to {all}, a multiple of 128 x {tensor} tensor-parallel ranks: {with_padding}"
        ),
    ]
}
