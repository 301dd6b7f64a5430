//! Gemma 2 (Riviere et al., 2024): soft caps of attention's scores and of logits, windows in every second layer.

use super::llama::{self, LlamaConfig};
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a Gemma 2.
    ///
    /// ModelCenter has no Gemma: its names mean the same as for a Llama, and defaults are taken from transformers.
    ///
    /// Source: Riviere et al. 2024; transformers 5.23.0, `models/gemma2`.
    pub struct Gemma2Config {
        /// The common fields.
        text: TextConfig {
            vocab_size: 256_000,
            dim_model: 2304,
            num_heads: 8,
            dim_head: 256,
            dim_ff: 9216,
            num_layers: 26,
            position_size: 8192,
            ffn_activate_fn: Activation::GeluTanh,
            pad_token_id: Some(0),
            tied: true,
            ..LlamaConfig::default().text
        };
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 4, KvHeads(required "num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding.
        rotary: RotaryFields = LlamaConfig::default().rotary, Rotary();
        /// Sliding windows; where a file does not list them, of every second layer from the first.
        windows: LayerWindows = LayerWindows::all_but_last(2, 4096), LayerWindows("sliding_window");
        /// Whether attention's projections have biases. Hugging Face: `attention_bias`.
        att_bias: bool = false, Flag("attention_bias" => "att_bias");
        /// Attention scores are divided by the square root of this.
        query_pre_attn_scalar: usize = 256, Size("query_pre_attn_scalar");
        /// Attention scores become `cap * tanh(score / cap)`.
        attn_logit_softcapping: Option<f32> = Some(50.0), SoftCap("attn_logit_softcapping");
        /// Logits over the vocabulary become `cap * tanh(logit / cap)`.
        final_logit_softcapping: Option<f32> = Some(30.0), SoftCap("final_logit_softcapping");
    }
}

impl RowConfig for Gemma2Config {
    const DIALECT: Dialect = Dialect {
        class: None,
        title: "Gemma 2",
        model_type: "gemma2",
        activation: &["hidden_activation"],
        gelu_tanh: "gelu_pytorch_tanh",
        hugging_face: |defaults| TextConfig { pad_token_id: Some(0), tied: true, ..defaults },
        fixed: &[llama::FIXED, &[("ffn_bias", Fixed::Flag(false))]],
        // All models of the family have the same head dimension, independent of D.
        head_required: true,
        ..LlamaConfig::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        let (config, _) = rows::take_config::<Self>(fields)?;
        Self::DIALECT.refuse_raised(fields, &["use_bidirectional_attention", "mlp_bias"])?;
        Ok(config)
    }
}

/// A Gemma 2 with its head.
pub type Gemma2 = Transformer<Gemma2Config>;

impl ModelFamily for Gemma2Config {
    const ARCHITECTURE: Architecture = Architecture::Decoder;
    const LEAVES_F16: bool = true;

    fn classes(&self) -> Classes {
        Classes::decoder("Gemma2")
    }

    fn spec(&self) -> Spec {
        spec(self, vec![self.rotary.of_heads(self.text.dim_head)], self.final_logit_softcapping)
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let block = block(&self.text, self.num_heads_kv, self.att_bias, self.query_pre_attn_scalar);
        let (window, soft_cap) = (self.windows.of(place.layer), self.attn_logit_softcapping);
        BlockConfig { attention: AttentionConfig { window, soft_cap, ..block.attention }, ..block }
    }

    fn names(&self, head: Head) -> NameTable {
        llama::names(&self.text, self.num_heads_kv, head).preceded_by(NORMS)
    }
}

/// Modules around the blocks of a Gemma with norms before and after each layer: embeddings times a rounded factor.
pub(super) fn spec(config: &impl RowConfig, tables: Vec<RotaryConfig>, soft_cap: Option<f32>) -> Spec {
    let text = config.text();
    let norm = NormOptions::rms_from_one(text.dim_model, text.norm_eps);
    let spec = Spec::decoder(config, StackSpec::decoder(text, PositionsConfig::Rotary(tables), norm));
    Spec {
        embedding_factor: (text.dim_model as f32).sqrt(),
        rounds_factor: true,
        head: HeadSpec { soft_cap, ..spec.head },
        ..spec
    }
}

/// A block of it, whose scores are divided by the square root of `scalar`.
pub(super) fn block(text: &TextConfig, num_heads_kv: usize, bias: bool, scalar: usize) -> BlockConfig {
    let block = llama::block(text, num_heads_kv);
    BlockConfig {
        placement: Placement::Both,
        attention: AttentionConfig { bias, out_bias: bias, scale: 1.0 / (scalar as f32).sqrt(), ..block.attention },
        norm: NormOptions::rms_from_one(text.dim_model, text.norm_eps),
        ..block
    }
}

/// The names of a block's norms.
pub(super) const NORMS: [Rule; 3] = [
    Rule::new("decoder.layers.{i}.attention_out_norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
    Rule::new("decoder.layers.{i}.ffn_norm.weight", "model.layers.{i}.pre_feedforward_layernorm.weight"),
    Rule::new("decoder.layers.{i}.ffn_out_norm.weight", "model.layers.{i}.post_feedforward_layernorm.weight"),
];

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "gemma2",
        doc: "Gemma 2 with heads for the next token and for classification",
        open: Gemma2::open,
        facts: Gemma2::FACTS,
    },
    class: None,
    class_prefix: "Gemma2",
    signatures: &[Signature {
        prefix: "model.",
        has: &[llama::TENSORS, &["layers.0.pre_feedforward_layernorm.weight"]],
        lacks: &["layers.0.self_attn.q_norm.weight"],
    }],
};
