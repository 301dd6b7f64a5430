//! Prefix tuning: trained keys and values before every sequence, as an option of the builder, so that no family has to
//! know of it. They are neither projected nor rotated; the tokens of a sequence have the positions after them.
//!
//! Defines [`Prefix`], which a causal [`super::Attention`] has where its builder's options ask for it.
//!
//! Source: Li and Liang, 2021, without the projection of smaller embeddings, as PEFT has it by default.

use super::AttentionConfig;
use bmtrain_core::kernel::Distribution;
use bmtrain_core::{Ctx, Tensor, Var, ops};
use bmtrain_dist::nn::PrefixOptions;
use bmtrain_dist::param::{Init, Param, Split, SplitPart};
use bmtrain_dist::{Builder, Error, Result};

/// The name of the parameter below an attention's.
pub(crate) const PREFIX: &str = "prefix";

/// The keys and values of virtual tokens.
#[derive(Debug, Clone)]
pub(super) struct Prefix {
    /// `[P, 2 K H]`, keys first.
    key_values: Param,
}

impl Prefix {
    /// Declare them under the builder's name, if its options ask for them. A tensor-parallel rank has the part of its
    /// heads.
    ///
    /// # Errors
    /// A sliding window, from which virtual tokens fall out.
    pub(super) fn new(builder: &Builder, config: &AttentionConfig) -> Result<Option<Self>> {
        let AttentionConfig { num_heads_kv: kv_heads, dim_head: head_size, window, .. } = *config;
        let asked = builder.options().adapters.as_ref().and_then(|adapters| adapters.prefix);
        let Some(PrefixOptions { tokens }) = asked else { return Ok(None) };
        if window.is_some() {
            let reason = "prefix tuning has no place in a sliding window, which does not see the first keys: set \
                          adapter.method = \"lora\", or use a model without one";
            return Err(Error::setting("adapter.method", reason));
        }
        let parts = vec![SplitPart::units(kv_heads, head_size); 2];
        // The initial values of PyTorch's embeddings.
        let init = Init::Random(Distribution::Normal(0.0, 1.0));
        let (shape, split) = ([tokens, 2 * kv_heads * head_size], Split::Axis { axis: 1, parts });
        Ok(Some(Prefix { key_values: builder.adapter().param(PREFIX, shape, init, split, true)? }))
    }

    /// The keys and values of every sequence, `[B, P, 2 K H]`; `rows` are their numbers, i64 `[B, P]`.
    pub(super) fn of_sequences(&self, rows: &Tensor, cx: &Ctx) -> Result<Var> {
        Ok(ops::embedding(cx, rows, &self.key_values.var(cx)?, None)?)
    }
}

/// Keys and values `[B, P, 2 K H]` before the sequences' own, `[B, L, 2 K H]`: `[B, P + L, 2 K H]`.
pub(super) fn joined(prefix: &Var, own: &Var, cx: &Ctx) -> Result<Var> {
    let ([batch, before, width], [_, length, _]) = (prefix.dims("prefix")?, own.dims("prefix")?);
    let (prefix, own) = (prefix.reshape([batch, before * width])?, own.reshape([batch, length * width])?);
    Ok(ops::concat_last(cx, &[&prefix, &own])?.reshape([batch, before + length, width])?)
}
