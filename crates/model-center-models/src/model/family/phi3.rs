//! Phi-3 and Phi-4 (Abdin et al., 2024): a Llama with fused projections in files, rotary embeddings of parts of heads,
//! and LongRoPE.

use super::llama::{self, LlamaConfig};
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a Phi-3.
    ///
    /// ModelCenter has no Phi: its names mean the same as for a Llama, and defaults are taken from transformers.
    ///
    /// Source: Abdin et al. 2024 for the architecture; transformers 5.23.0, `models/phi3`.
    pub struct Phi3Config {
        /// The common fields. `dropout_p` is `resid_pdrop` in Hugging Face's files; their `embd_pdrop` has no effect.
        text: TextConfig {
            vocab_size: 32064,
            dim_model: 3072,
            dim_head: 96,
            dim_ff: 8192,
            position_size: 4096,
            norm_eps: 1e-5,
            pad_token_id: Some(32000),
            ..LlamaConfig::default().text
        };
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 32, KvHeads("num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding.
        rotary: RotaryFields = RotaryFields::PLAIN, PartRotary();
        /// The longest text of the first training. Hugging Face files state it beside the parameters of LongRoPE.
        trained_size: usize = 4096, Size("original_max_position_embeddings");
        /// Size of the sliding window of all layers: the number of keys a token attends to, its own included.
        sliding_window: Option<usize> = None, OptionalSize("sliding_window");
    }
}

impl RowConfig for Phi3Config {
    const DIALECT: Dialect = Dialect {
        class: None,
        title: "Phi-3",
        model_type: "phi3",
        dropout: &["resid_pdrop"],
        fixed: &[llama::FIXED, &[("att_bias", Fixed::Flag(false)), ("ffn_bias", Fixed::Flag(false))]],
        ..LlamaConfig::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        // Where a file is silent transformers takes its default, not the length among the parameters.
        const TRAINED: &str = "original_max_position_embeddings";
        if fields.peek(TRAINED).is_none() {
            fields.set(TRAINED, json!(Phi3Config::default().trained_size));
        }
        let (config, _) = rows::take_config::<Self>(fields)?;
        Self::DIALECT.refuse_raised(fields, &["attention_bias", "mlp_bias"])?;
        match config.rotary.scaling {
            RotaryScaling::None | RotaryScaling::Long { .. } => Ok(config),
            _ => Err(fields.error(
                "rope_scaling",
                "a Phi-3 has no rotary positions of this kind",
                "this model is not available here: use one with kind default or longrope",
            )),
        }
    }
}

/// A Phi-3 with its head.
pub type Phi3 = Transformer<Phi3Config>;

impl ModelFamily for Phi3Config {
    const ARCHITECTURE: Architecture = Architecture::Decoder;

    fn classes(&self) -> Classes {
        Classes::decoder("Phi3")
    }

    fn spec(&self) -> Spec {
        llama::spec(self, &self.rotary)
    }

    fn block(&self, _place: BlockPlace) -> BlockConfig {
        let block = llama::block(&self.text, self.num_heads_kv);
        let dims = self.rotary.dims(self.text.dim_head);
        BlockConfig {
            attention: AttentionConfig {
                window: self.sliding_window,
                rotary: block.attention.rotary.map(|rotary| RotaryHeads { dims, ..rotary }),
                ..block.attention
            },
            ..block
        }
    }

    fn names(&self, head: Head) -> NameTable {
        llama::names(&self.text, self.num_heads_kv, head).preceded_by([
            Rule::new("decoder.layers.{i}.attention.project_qkv.weight", "model.layers.{i}.self_attn.qkv_proj.weight"),
            llama::GATE_UP,
        ])
    }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "phi3",
        doc: "Phi-3 and Phi-4 with heads for the next token and for classification",
        open: Phi3::open,
        facts: Phi3::FACTS,
    },
    class: None,
    class_prefix: "Phi3",
    signatures: &[Signature {
        prefix: "model.",
        has: &[&["layers.0.self_attn.qkv_proj.weight", "layers.0.mlp.gate_up_proj.weight", "norm.weight"]],
        lacks: &["layers.0.post_mlp_layernorm.weight"],
    }],
};
