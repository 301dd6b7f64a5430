//! Gemma 3 (Kamath et al., 2025), its text models, and EmbeddingGemma: norms before and after each layer, windows in
//! most layers, rotary positions by the kind of a layer.

use super::llama::{self, LlamaConfig};
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a Gemma 3.
    ///
    /// ModelCenter has no Gemma: its names mean the same as for a Llama, and defaults are taken from transformers.
    ///
    /// Source: Kamath et al. 2025; transformers 5.23.0, `models/gemma3`, for the text models.
    pub struct Gemma3Config {
        /// The common fields.
        text: TextConfig {
            vocab_size: 262_208,
            dim_model: 2304,
            num_heads: 8,
            dim_head: 256,
            dim_ff: 9216,
            num_layers: 26,
            position_size: 131_072,
            ffn_activate_fn: Activation::GeluTanh,
            pad_token_id: Some(0),
            tied: true,
            ..LlamaConfig::default().text
        };
        /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
        num_heads_kv: usize = 4, KvHeads(required "num_key_value_heads" => "num_heads_kv");
        /// Rotary embedding.
        rotary: LayerRotary = LayerRotary::of_bases(1_000_000.0, 10_000.0),
            LayerRotary("rope_theta", "rope_local_base_freq");
        /// Sliding windows.
        windows: LayerWindows = LayerWindows::all_but_last(6, 4096),
            LayerWindows("sliding_window", "sliding_window_pattern");
        /// Whether attention's projections have biases. Hugging Face: `attention_bias`.
        att_bias: bool = false, Flag("attention_bias" => "att_bias");
        /// Attention scores are divided by the square root of this.
        query_pre_attn_scalar: usize = 256, Size("query_pre_attn_scalar");
        /// Whether a token attends to those after it too. A window then has half of its keys on either side.
        use_bidirectional_attention: bool = false, Flag("use_bidirectional_attention");
    }
}

impl RowConfig for Gemma3Config {
    const DIALECT: Dialect = Dialect {
        class: None,
        title: "Gemma 3",
        model_type: "gemma3_text",
        activation: &["hidden_activation"],
        hugging_face: |defaults| TextConfig { pad_token_id: Some(0), tied: true, ..defaults },
        fixed: &[llama::FIXED, &[("ffn_bias", Fixed::Flag(false))]],
        // All models of the family have the same head dimension, independent of D.
        head_required: true,
        ..LlamaConfig::DIALECT
    };

    fn read(fields: &mut Fields) -> Result<Self> {
        let (config, _) = rows::take_config(fields)?;
        for name in ["final_logit_softcapping", "attn_logit_softcapping"] {
            if fields.take(name).is_some() {
                let reason = "soft caps are of Gemma 2, and no Gemma 3 was trained with one";
                return Err(fields.error(name, reason, "set it to null if the model has none"));
            }
        }
        Ok(config)
    }
}

/// A Gemma 3 with its head.
pub type Gemma3 = Transformer<Gemma3Config>;

impl ModelFamily for Gemma3Config {
    const ARCHITECTURE: Architecture = Architecture::Decoder;
    const LEAVES_F16: bool = true;

    fn classes(&self) -> Classes {
        let suffixes = &[
            (TextHead::None, "TextModel"),
            (TextHead::CausalLm, "ForCausalLM"),
            (TextHead::Classification { outputs: 0 }, "TextForSequenceClassification"),
        ];
        Classes { prefix: "Gemma3", suffixes }
    }

    fn spec(&self) -> Spec {
        let text = &self.text;
        let norm = NormOptions::rms_from_one(text.dim_model, text.norm_eps);
        let positions = PositionsConfig::Rotary(self.rotary.of_heads(text.dim_head));
        Spec {
            embedding_factor: (text.dim_model as f32).sqrt(),
            rounds_factor: true,
            attends_ahead: self.use_bidirectional_attention,
            ..Spec::decoder(self, StackSpec::decoder(text, positions, norm))
        }
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let TextConfig { dim_head, norm_eps, dim_model, .. } = self.text;
        let block = llama::block(&self.text, self.num_heads_kv);
        let (is_causal, size) = (!self.use_bidirectional_attention, self.windows.of(place.layer));
        BlockConfig {
            placement: Placement::Both,
            attention: AttentionConfig {
                bias: self.att_bias,
                out_bias: self.att_bias,
                causal: is_causal,
                scale: 1.0 / (self.query_pre_attn_scalar as f32).sqrt(),
                window: size.map(|size| if is_causal { size } else { size / 2 + 1 }),
                head_norm: Some(HeadNorm::EachHead(NormOptions::rms_from_one(dim_head, norm_eps))),
                rotary: Some(RotaryHeads {
                    dims: dim_head,
                    layout: RotaryLayout::Halves,
                    table: usize::from(size.is_some()),
                }),
                ..block.attention
            },
            norm: NormOptions::rms_from_one(dim_model, norm_eps),
            ..block
        }
    }

    fn names(&self, head: Head) -> NameTable {
        llama::names(&self.text, self.num_heads_kv, head).preceded_by(NORMS)
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
        model_type: "gemma3_text",
        doc: "Gemma 3 (text) and EmbeddingGemma with heads for the next token and for classification",
        open: Gemma3::open,
    },
    class: None,
    class_prefix: "Gemma3",
    signatures: &[Signature {
        prefix: "model.",
        has: &[llama::TENSORS, &["layers.0.pre_feedforward_layernorm.weight", "layers.0.self_attn.q_norm.weight"]],
        lacks: &["layers.0.self_attn.q_proj.bias"],
    }],
};
