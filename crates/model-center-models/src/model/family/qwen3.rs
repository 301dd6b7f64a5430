//! Qwen 3 (Yang et al., 2025): a Llama with norms of each query and key head, and sliding windows in some layers.

use super::llama::{self, LlamaConfig};
use super::qwen2::Qwen2Config;
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a Qwen 3.
    ///
    /// ModelCenter has no Qwen: its names mean the same as for a Llama, and defaults are taken from transformers.
    ///
    /// Source: Yang et al. 2025 for the architecture.
    pub struct Qwen3Config {
        /// The common fields.
        text: Qwen2Config::default().text;
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 32, KvHeads(required "num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding.
        rotary: RotaryFields = LlamaConfig::default().rotary, Rotary();
        /// Whether attention's projections have biases. Hugging Face: `attention_bias`.
        att_bias: bool = false, Flag("attention_bias" => "att_bias");
        /// Sliding windows.
        windows: WindowFields = WindowFields::default(), Windows();
    }
}

impl RowConfig for Qwen3Config {
    const DIALECT: Dialect = Dialect {
        title: "Qwen 3",
        model_type: "qwen3",
        fixed: &[llama::FIXED, &[("ffn_bias", Fixed::Flag(false))]],
        // All models of the family have the same head dimension, independent of D.
        head_required: true,
        ..LlamaConfig::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        let (config, _) = rows::take_config(fields)?;
        Self::DIALECT.refuse_raised(fields, &["mlp_bias"])?;
        Ok(config)
    }
}

/// A Qwen 3 with its head.
pub type Qwen3 = Transformer<Qwen3Config>;

impl ModelFamily for Qwen3Config {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("Qwen3")
    }

    fn spec(&self) -> Spec {
        llama::spec(self, &self.rotary)
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let block = llama::block(&self.text, self.num_heads_kv);
        BlockConfig {
            attention: AttentionConfig {
                bias: self.att_bias,
                out_bias: self.att_bias,
                window: self.windows.of(place.layer),
                head_norm: Some(HeadNorm::EachHead(NormOptions::rms(self.text.dim_head, self.text.norm_eps))),
                ..block.attention
            },
            ..block
        }
    }

    fn names(&self, head: Head) -> NameTable {
        llama::names(&self.text, self.num_heads_kv, head)
    }

    fn names_of_torchtitan(&self, head: Head) -> Option<NameTable> {
        let rows = [self.text.num_heads, self.num_heads_kv].map(|heads| heads * self.text.dim_head);
        (!self.att_bias).then(|| torchtitan::table(rows, None, head.is_tied()))
    }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "qwen3",
        doc: "Qwen 3 with heads for the next token and for classification",
        open: Qwen3::open,
        facts: Qwen3::FACTS,
    },
    class: None,
    class_prefix: "Qwen3",
    signatures: &[Signature {
        prefix: "model.",
        has: &[llama::TENSORS, &["layers.0.self_attn.q_norm.weight"]],
        lacks: &["layers.0.pre_feedforward_layernorm.weight"],
    }],
};
