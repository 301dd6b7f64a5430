//! Prefix tuning of a model: which models have virtual tokens that are keys and values alone, and what masks and
//! positions know of them. The values belong to the [attention](crate::layer::prefix).
//!
//! A sequence is one whose first tokens were read before, as in incremental decoding: positions begin after them, masks
//! and position biases count them among the keys.

use crate::adapter::{DECODERS_ALONE, OTHER_METHOD};
use crate::model::architecture::Spec;
use crate::model::head::Head;
use bmtrain_core::{Device, Segment, Tensor};
use bmtrain_dist::Builder;
use model_center_base::error::{Error, Result};

/// The number of virtual tokens that the builder's options ask for; 0 if they do not.
///
/// # Errors
/// A model that is not a decoder with a language-modelling head, that has contexts and spans, or whose layers share
/// their parameters.
pub(in crate::model) fn tokens(builder: &Builder, spec: &Spec, head: Head) -> Result<usize> {
    let asked = builder.options().adapters.as_ref().and_then(|adapters| adapters.prefix);
    let Some(options) = asked else { return Ok(0) };
    let refused = |reason: String, fix: &str| Err(Error::argument("adapter.method", reason, fix));
    if !matches!(head, Head::CausalLm { .. }) || spec.head.transform.is_some() || spec.is_encoder_decoder() {
        return refused(DECODERS_ALONE.to_owned(), OTHER_METHOD);
    }
    if spec.has_spans {
        let reason = format!("{} has contexts and spans, which virtual tokens are no part of", spec.title);
        return refused(reason, "set adapter.method = \"lora\"");
    }
    if spec.sharing.is_some() {
        let reason = "each layer has keys and values of its own, and layers that share their parameters have none";
        return refused(reason.to_owned(), "set adapter.method = \"prompt\", or remove model.unique_layers");
    }
    Ok(options.tokens)
}

/// The numbers of the virtual tokens of each sequence, i64 `[B, P]`; `None` without any.
pub(in crate::model) fn rows(device: &Device, [rows, tokens]: [usize; 2]) -> Result<Option<Tensor>> {
    if tokens == 0 {
        return Ok(None);
    }
    let numbers: Vec<i64> = (0..rows).flat_map(|_| 0..tokens as i64).collect();
    Ok(Some(Tensor::from_slice_in(device, [rows, tokens], &numbers, Segment::Data)?))
}

/// A mask `B x L` with ones for the virtual tokens: `B x (P + L)`.
pub(in crate::model) fn masked(mask: &[u8], length: usize, tokens: usize) -> Vec<u8> {
    mask.chunks(length.max(1)).flat_map(|row| std::iter::repeat_n(1, tokens).chain(row.iter().copied())).collect()
}
