//! The keys of one architecture: which are understood, which must be zero, and their values.
//!
//! Defines [`Keys`]; asked by [`super::decoder`], [`super::own`] and [`super::rope`].

use super::{Family, Metadata};
use crate::{Error, Result};

/// Keys of computations that a family does not have unless it names them as its own: they must be zero.
pub(crate) const FOREIGN: &[&str] = &[
    "attention.clamp_kqv",
    "attention.key_length_swa",
    "attention.max_alibi_bias",
    "attention.output_scale",
    "attention.recurrent_layers",
    "attention.rope_pattern",
    "attention.scale",
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.temperature_length",
    "attention.temperature_scale",
    "attention.value_length_swa",
    "attention.value_scale",
    "attn_logit_softcapping",
    "deepstack_mapping",
    "embedding_length_out",
    "embedding_length_per_layer_input",
    "embedding_scale",
    "expert_count",
    "final_logit_softcapping",
    "full_attention_interval",
    "hidden_activation",
    "leading_dense_block_count",
    "logit_scale",
    "n_deepstack_layers",
    "nextn_predict_layers",
    "num_loops",
    "residual_scale",
    "rope.dimension_count_swa",
    "rope.dimension_sections",
    "rope.freq_base_swa",
    "rope.scaling.alpha",
    "rope.scaling.yarn_log_multiplier",
    "swin_norm",
];

/// The names of all keys that are understood, after the architecture's; with [`FOREIGN`] those that must be zero.
pub(crate) const KEYS: &[&str] = &[
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.causal",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
];

/// The keys of one architecture, with its prefix.
#[derive(Debug)]
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) family: Family,
}

impl Keys<'_> {
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.family.name())
    }

    /// Whether the file has a key.
    pub(super) fn has(&self, name: &str) -> bool {
        self.metadata.get(&self.key(name)).is_some()
    }

    /// Refuse keys that change the result and have no place in a model of this family.
    pub(super) fn refuse_foreign(&self) -> Result<()> {
        for name in FOREIGN.iter().filter(|name| !self.family.own_keys().contains(name)) {
            let key = self.key(name);
            if self.metadata.get(&key).is_some_and(|value| !value.is_zero()) {
                let reason = "the model computes something that its family here does not";
                return Err(self.metadata.unfit(&key, reason, "use a model without experts, windows or scales"));
            }
        }
        const CAUSAL: &str = "attention.causal";
        if self.metadata.truth(&self.key(CAUSAL))? == Some(false) {
            let reason = "attention is not causal, which no decoder of this family supports";
            let fix = "use a file of a model that writes texts";
            return Err(self.metadata.unfit(&self.key(CAUSAL), reason, fix));
        }
        // For others it tells how a model was trained; llama.cpp's Granite has no positions without it.
        const FINETUNED: &str = "rope.scaling.finetuned";
        if self.metadata.truth(&self.key(FINETUNED))? == Some(false) && self.family == Family::Granite {
            let reason = "the model has no positions, which no Granite here supports";
            return Err(self.metadata.unfit(&self.key(FINETUNED), reason, "use a file of a Granite with positions"));
        }
        Ok(())
    }

    /// A size: a whole number from 1 to 2³¹ − 1.
    pub(super) fn size(&self, name: &str) -> Result<usize> {
        self.optional(name)?.ok_or_else(|| self.metadata.lacking(&self.key(name)))
    }

    pub(super) fn optional(&self, name: &str) -> Result<Option<usize>> {
        match self.metadata.whole(&self.key(name))? {
            Some(size @ 1..=0x7fff_ffff) => Ok(Some(size as usize)),
            Some(other) => Err(self.unfit(name, format!("{other} is not a valid size"))),
            None => Ok(None),
        }
    }

    /// A size, for which files have 0 where there is none.
    pub(super) fn size_or_zero(&self, name: &str) -> Result<Option<usize>> {
        match self.metadata.whole(&self.key(name))? {
            Some(0) => Ok(None),
            _ => self.optional(name),
        }
    }

    /// A number, stored as a whole one or not.
    pub(super) fn real(&self, name: &str) -> Result<Option<f32>> {
        let key = self.key(name);
        match self.metadata.whole(&key) {
            Ok(whole) => Ok(whole.map(|whole| whole as f32)),
            Err(_) => self.metadata.real(&key),
        }
    }

    /// A number that the model cannot be built without.
    pub(super) fn required_real(&self, name: &str) -> Result<f32> {
        self.real(name)?.ok_or_else(|| self.metadata.lacking(&self.key(name)))
    }

    pub(super) fn unfit(&self, name: &str, reason: impl Into<String>) -> Error {
        self.metadata.unfit(&self.key(name), reason, "convert the model to GGUF again, or use another file of it")
    }
}
