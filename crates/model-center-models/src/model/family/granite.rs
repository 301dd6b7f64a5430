//! Granite (IBM, 2024): a Llama with factors of embeddings, attention scores, of what layers add, and of logits.

use super::llama::{self, LlamaConfig};
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a Granite.
    ///
    /// ModelCenter has no Granite: its names mean the same as for a Llama, and defaults are taken from transformers,
    /// where all factors are 1, the factor of the scores too.
    ///
    /// Source: transformers 5.23.0, `models/granite`.
    pub struct GraniteConfig {
        /// The common fields.
        text: TextConfig { position_size: 2048, ..LlamaConfig::default().text };
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 32, KvHeads("num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding.
        rotary: RotaryFields = RotaryFields::PLAIN, Rotary();
        /// Whether attention's projections have biases. Hugging Face: `attention_bias`.
        att_bias: bool = false, Flag("attention_bias" => "att_bias");
        /// Whether the feed-forward's linear layers have biases. Hugging Face: `mlp_bias`.
        ffn_bias: bool = false, Flag("mlp_bias" => "ffn_bias");
        /// Factor of the token embeddings.
        embedding_multiplier: f32 = 1.0, Number("embedding_multiplier");
        /// Factor of the attention scores.
        attention_multiplier: f32 = 1.0, Number("attention_multiplier");
        /// Factor of what attention and feed-forward add.
        residual_multiplier: f32 = 1.0, Number("residual_multiplier");
        /// Divisor of the logits.
        logits_scaling: f32 = 1.0, Number("logits_scaling");
    }
}

impl RowConfig for GraniteConfig {
    const DIALECT: Dialect = Dialect { class: None, title: "Granite", model_type: "granite", ..LlamaConfig::DIALECT };

    fn read(fields: &mut Fields) -> Result<Self> {
        let (config, _) = rows::take_config::<Self>(fields)?;
        if config.logits_scaling == 0.0 {
            return Err(fields.error("logits_scaling", "logits cannot be divided by 0", "correct it"));
        }
        Ok(config)
    }
}

/// A Granite with its head.
pub type Granite = Transformer<GraniteConfig>;

impl ModelFamily for GraniteConfig {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::language_model("Granite")
    }

    fn spec(&self) -> Spec {
        let spec = llama::spec(self, &self.rotary);
        Spec {
            embedding_factor: self.embedding_multiplier,
            head: HeadSpec { factor: 1.0 / self.logits_scaling, ..spec.head },
            ..spec
        }
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        let block = llama::block(&self.text, self.num_heads_kv);
        BlockConfig {
            attention: AttentionConfig {
                bias: self.att_bias,
                out_bias: self.att_bias,
                scale: self.attention_multiplier,
                ..block.attention
            },
            ffn: FeedForwardConfig { bias: self.ffn_bias, ..block.ffn },
            residual_factor: self.residual_multiplier,
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
        model_type: "granite",
        doc: "Granite 3 with a head for the next token",
        open: Granite::open,
        facts: Granite::FACTS,
    },
    class: None,
    class_prefix: "Granite",
    signatures: &[llama::PLAIN],
};
