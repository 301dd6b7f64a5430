//! OLMo 2 (Ai2, 2024): a Llama with its norms after the layers, inside the residual, and norms over all query and over
//! all key heads.

use super::llama::{self, LlamaConfig};
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of an OLMo 2.
    ///
    /// ModelCenter has no OLMo: its names mean the same as for a Llama, and defaults are taken from transformers.
    ///
    /// Source: OLMo et al. 2025 for the architecture.
    pub struct Olmo2Config {
        /// The common fields.
        text: TextConfig {
            vocab_size: 50304,
            position_size: 2048,
            norm_eps: 1e-5,
            pad_token_id: Some(1),
            ..LlamaConfig::default().text
        };
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 32, KvHeads("num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding.
        rotary: RotaryFields = RotaryFields::PLAIN, Rotary();
        /// Whether attention's projections have biases. Hugging Face: `attention_bias`.
        att_bias: bool = false, Flag("attention_bias" => "att_bias");
    }
}

impl RowConfig for Olmo2Config {
    const DIALECT: Dialect = Dialect {
        class: None,
        title: "OLMo 2",
        model_type: "olmo2",
        fixed: &[llama::FIXED, &[("ffn_bias", Fixed::Flag(false))]],
        ..LlamaConfig::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        let (config, _) = rows::take_config(fields)?;
        Self::DIALECT.refuse_raised(fields, &["mlp_bias"])?;
        Ok(config)
    }
}

/// An OLMo 2 with its head.
pub type Olmo2 = Transformer<Olmo2Config>;

impl ModelFamily for Olmo2Config {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("Olmo2")
    }

    fn spec(&self) -> Spec {
        llama::spec(self, &self.rotary)
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        block(&self.text, self.num_heads_kv, self.att_bias)
    }

    fn names(&self, head: Head) -> NameTable {
        names(&self.text, self.num_heads_kv, head)
    }
}

/// A block of OLMo 2 and its successor.
pub(in crate::model) fn block(text: &TextConfig, num_heads_kv: usize, att_bias: bool) -> BlockConfig {
    let block = llama::block(text, num_heads_kv);
    BlockConfig {
        placement: Placement::After,
        attention: AttentionConfig {
            bias: att_bias,
            out_bias: att_bias,
            head_norm: Some(HeadNorm::WholeVector { epsilon: text.norm_eps }),
            ..block.attention
        },
        ..block
    }
}

/// Parameter names of OLMo 2 and its successor.
pub(in crate::model) fn names(text: &TextConfig, num_heads_kv: usize, head: Head) -> NameTable {
    llama::names(text, num_heads_kv, head).preceded_by([
        Rule::new("decoder.layers.{i}.attention_norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
        Rule::new("decoder.layers.{i}.ffn_norm.weight", "model.layers.{i}.post_feedforward_layernorm.weight"),
    ])
}

/// Tensors that identify the weights.
pub(in crate::model) const SIGNATURE: Signature = Signature {
    prefix: "model.",
    has: &[&["layers.0.self_attn.q_norm.weight", "layers.0.post_feedforward_layernorm.weight", "norm.weight"]],
    lacks: &["layers.0.input_layernorm.weight"],
};

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "olmo2",
        doc: "OLMo 2 with heads for the next token and for classification",
        open: Olmo2::open,
        facts: Olmo2::FACTS,
    },
    class: None,
    class_prefix: "Olmo2",
    signatures: &[SIGNATURE],
};
