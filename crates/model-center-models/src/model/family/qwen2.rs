//! Qwen 2 and 2.5 (Yang et al., 2024): a Llama with biases for queries, keys and values, and sliding windows in some
//! layers.

use super::llama::{self, LlamaConfig};
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a Qwen 2.
    ///
    /// ModelCenter has no Qwen: its names mean the same as for a Llama, and defaults are taken from transformers.
    ///
    /// Source: Yang et al. 2024 for the architecture.
    pub struct Qwen2Config {
        /// The common fields.
        text: TextConfig {
            vocab_size: 151_936,
            dim_ff: 22016,
            position_size: 32768,
            ..LlamaConfig::default().text
        };
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 32, KvHeads(required "num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding.
        rotary: RotaryFields = LlamaConfig::default().rotary, Rotary();
        /// Sliding windows.
        windows: WindowFields = WindowFields::default(), Windows();
    }
}

impl RowConfig for Qwen2Config {
    const DIALECT: Dialect = Dialect {
        title: "Qwen 2",
        model_type: "qwen2",
        fixed: &[llama::FIXED, &[("att_bias", Fixed::Flag(true)), ("ffn_bias", Fixed::Flag(false))]],
        ..LlamaConfig::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        let (config, _) = rows::take_config(fields)?;
        // transformers ignores attention_bias for this class: queries, keys and values always have biases.
        Self::DIALECT.refuse_raised(fields, &["mlp_bias", "use_mrope"])?;
        Ok(config)
    }
}

/// A Qwen 2 with its head.
pub type Qwen2 = Transformer<Qwen2Config>;

impl ModelFamily for Qwen2Config {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("Qwen2")
    }

    fn spec(&self) -> Spec {
        llama::spec(self, &self.rotary)
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let block = llama::block(&self.text, self.num_heads_kv);
        BlockConfig {
            attention: AttentionConfig { bias: true, window: self.windows.of(place.layer), ..block.attention },
            ..block
        }
    }

    fn names(&self, head: Head) -> NameTable {
        llama::names(&self.text, self.num_heads_kv, head)
    }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "qwen2",
        doc: "Qwen 2 and 2.5 with heads for the next token and for classification",
        open: Qwen2::open,
        facts: Qwen2::FACTS,
    },
    class: None,
    class_prefix: "Qwen2",
    signatures: &[Signature {
        prefix: "model.",
        has: &[llama::TENSORS, &["layers.0.self_attn.q_proj.bias"]],
        lacks: &["layers.0.self_attn.o_proj.bias", "layers.0.self_attn.q_norm.weight"],
    }],
};
