//! GLM-4 (Zhipu AI, 2025, the version of April): a Llama with norms before and after each layer, a fused gate in files,
//! and rotary embeddings on adjacent pairs of the first half of each head.

use super::llama::{self, LlamaConfig};
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a GLM-4.
    ///
    /// ModelCenter has no GLM of this kind: its names mean the same as for a Llama, and defaults are taken from
    /// transformers.
    ///
    /// Source: transformers 5.23.0, `models/glm4`.
    pub struct Glm4Config {
        /// The common fields.
        text: TextConfig {
            vocab_size: 151_552,
            dim_ff: 13696,
            num_layers: 40,
            position_size: 131_072,
            norm_eps: 1.5625e-7,
            pad_token_id: Some(151_329),
            ..LlamaConfig::default().text
        };
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 2, KvHeads(required "num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding.
        rotary: RotaryFields = RotaryFields { share: 0.5, ..RotaryFields::PLAIN }, PartRotary();
        /// Whether the projections of queries, keys and values have biases. Hugging Face: `attention_bias`.
        att_bias: bool = true, Flag("attention_bias" => "att_bias");
    }
}

impl RowConfig for Glm4Config {
    const DIALECT: Dialect = Dialect {
        class: None,
        title: "GLM-4",
        model_type: "glm4",
        fixed: &[llama::FIXED, &[("ffn_bias", Fixed::Flag(false))]],
        // The default of transformers is 128, whatever the other sizes are.
        head_required: true,
        ..LlamaConfig::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        let (config, _) = rows::take_config(fields)?;
        Self::DIALECT.refuse_raised(fields, &["mlp_bias"])?;
        Ok(config)
    }
}

/// A GLM-4 with its head.
pub type Glm4 = Transformer<Glm4Config>;

impl ModelFamily for Glm4Config {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("Glm4")
    }

    fn spec(&self) -> Spec {
        llama::spec(self, &self.rotary)
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        let block = llama::block(&self.text, self.num_heads_kv);
        let dims = self.rotary.dims(self.text.dim_head);
        BlockConfig {
            placement: Placement::Both,
            attention: AttentionConfig {
                bias: self.att_bias,
                rotary: Some(RotaryHeads { table: 0, dims, layout: RotaryLayout::Pairs }),
                ..block.attention
            },
            ..block
        }
    }

    fn names(&self, head: Head) -> NameTable {
        llama::names(&self.text, self.num_heads_kv, head).preceded_by([
            Rule::new(
                "decoder.layers.{i}.attention_out_norm.weight",
                "model.layers.{i}.post_self_attn_layernorm.weight",
            ),
            Rule::new("decoder.layers.{i}.ffn_out_norm.weight", "model.layers.{i}.post_mlp_layernorm.weight"),
            llama::GATE_UP,
        ])
    }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "glm4",
        doc: "GLM-4 of April 2025 with heads for the next token and for classification",
        open: Glm4::open,
        facts: Glm4::FACTS,
    },
    class: None,
    class_prefix: "Glm4",
    signatures: &[Signature {
        prefix: "model.",
        has: &[&["layers.0.post_self_attn_layernorm.weight", "layers.0.post_mlp_layernorm.weight", "norm.weight"]],
        lacks: &[],
    }],
};
