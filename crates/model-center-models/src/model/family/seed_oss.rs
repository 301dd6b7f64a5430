//! Seed-OSS (ByteDance, 2025): a Llama with biases of queries, keys and values.

use super::llama::{self, LlamaConfig};
use super::qwen2;
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a Seed-OSS.
    ///
    /// ModelCenter has none: its names mean the same as for a Llama, and defaults are taken from transformers.
    ///
    /// Source: transformers 5.23.0, `models/seed_oss`.
    pub struct SeedOssConfig {
        /// The common fields. `dropout_p` is `residual_dropout` in Hugging Face's files.
        text: TextConfig {
            vocab_size: 155_136,
            num_heads: 80,
            dim_ff: 27648,
            num_layers: 64,
            position_size: 524_288,
            pad_token_id: Some(1),
            dropout_p: 0.1,
            attention_dropout_p: 0.1,
            ..LlamaConfig::default().text
        };
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 8, KvHeads(required "num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding.
        rotary: RotaryFields = RotaryFields::PLAIN, Rotary();
        /// Whether the projections of queries, keys and values have biases. Hugging Face: `attention_bias`.
        att_bias: bool = true, Flag("attention_bias" => "att_bias");
        /// Whether attention's last projection has biases.
        attention_out_bias: bool = false, Flag("attention_out_bias");
        /// Whether the feed-forward's linear layers have biases. Hugging Face: `mlp_bias`.
        ffn_bias: bool = false, Flag("mlp_bias" => "ffn_bias");
    }
}

impl RowConfig for SeedOssConfig {
    const DIALECT: Dialect = Dialect {
        class: None,
        title: "Seed-OSS",
        model_type: "seed_oss",
        dropout: &["residual_dropout"],
        hugging_face: |defaults| TextConfig { dropout_p: 0.1, attention_dropout_p: 0.1, ..defaults },
        // The default of transformers is 128, whatever the other sizes are.
        head_required: true,
        ..LlamaConfig::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        Ok(rows::take_config(fields)?.0)
    }
}

/// A Seed-OSS with its head.
pub type SeedOss = Transformer<SeedOssConfig>;

impl ModelFamily for SeedOssConfig {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("SeedOss")
    }

    fn spec(&self) -> Spec {
        llama::spec(self, &self.rotary)
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        let block = llama::block(&self.text, self.num_heads_kv);
        let (bias, out_bias) = (self.att_bias, self.attention_out_bias);
        BlockConfig {
            attention: AttentionConfig { bias, out_bias, ..block.attention },
            ffn: FeedForwardConfig { bias: self.ffn_bias, ..block.ffn },
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
        model_type: "seed_oss",
        doc: "Seed-OSS with heads for the next token and for classification",
        open: SeedOss::open,
        facts: SeedOss::FACTS,
    },
    class: None,
    class_prefix: "SeedOss",
    signatures: qwen2::FAMILY.signatures,
};
