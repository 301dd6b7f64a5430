//! Gemma 3 (Kamath et al., 2025), its text models, and EmbeddingGemma: norms before and after each layer, windows in
//! most layers, rotary positions by the kind of a layer.

use super::gemma2::{self, Gemma2Config};
use super::llama;
use crate::model::prelude::*;

model_config! {
    /// Sizes and options of a Gemma 3.
    ///
    /// ModelCenter has no Gemma: its names mean the same as for a Llama, and defaults are taken from transformers.
    ///
    /// Source: Kamath et al. 2025; transformers 5.23.0, `models/gemma3`, for the text models.
    pub struct Gemma3Config {
        /// The common fields.
        text: TextConfig { vocab_size: 262_208, position_size: 131_072, ..Gemma2Config::default().text };
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
        /// Logits over the vocabulary become `cap * tanh(logit / cap)`.
        final_logit_softcapping: Option<f32> = None, SoftCap("final_logit_softcapping");
        /// Whether a token attends to those after it too. A window then has half of its keys on either side.
        use_bidirectional_attention: bool = false, Flag("use_bidirectional_attention");
    }
}

impl RowConfig for Gemma3Config {
    const DIALECT: Dialect = Dialect { title: "Gemma 3", model_type: "gemma3_text", ..Gemma2Config::DIALECT };

    fn read(fields: &mut Fields) -> Result<Self> {
        let (config, _) = rows::take_config(fields)?;
        if fields.peek("attn_logit_softcapping").is_some() {
            let reason = "transformers reads it and computes without it";
            return Err(fields.error("attn_logit_softcapping", reason, "set it to null"));
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
        let tables = self.rotary.of_heads(self.text.dim_head);
        Spec {
            attends_ahead: self.use_bidirectional_attention,
            ..gemma2::spec(self, tables, self.final_logit_softcapping)
        }
    }

    fn block(&self, place: BlockPlace) -> BlockConfig {
        let TextConfig { dim_head, norm_eps, .. } = self.text;
        let block = gemma2::block(&self.text, self.num_heads_kv, self.att_bias, self.query_pre_attn_scalar);
        let causal = !self.use_bidirectional_attention;
        let window = if causal { self.windows.of(place.layer) } else { self.windows.each_side(place.layer) };
        BlockConfig {
            attention: AttentionConfig {
                causal,
                window,
                head_norm: Some(HeadNorm::EachHead(NormOptions::rms_from_one(dim_head, norm_eps))),
                rotary: Some(RotaryHeads::halves(dim_head, usize::from(window.is_some()))),
                ..block.attention
            },
            ..block
        }
    }

    fn names(&self, head: Head) -> NameTable {
        llama::names(&self.text, self.num_heads_kv, head).preceded_by(gemma2::NORMS)
    }
}

/// The registry entry.
pub(in crate::model) const FAMILY: Family = Family {
    entry: ModelEntry {
        model_type: "gemma3_text",
        doc: "Gemma 3 (text) and EmbeddingGemma with heads for the next token and for classification",
        open: Gemma3::open,
        facts: Gemma3::FACTS,
    },
    class: None,
    class_prefix: "Gemma3",
    signatures: &[Signature {
        prefix: "model.",
        has: &[llama::TENSORS, &["layers.0.pre_feedforward_layernorm.weight", "layers.0.self_attn.q_norm.weight"]],
        lacks: &["layers.0.self_attn.q_proj.bias"],
    }],
};
