//! The configuration of GPT-J.
//!
//! Defines [`GptjConfig`]; called by [`crate::model`]'s GPT-J and the binaries.

use bmtrain_core::kernel::Activation;
use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Fixed, Spoken};
use super::json::number;
use super::{ClassFields, Config, Fields, HfHeader, TextConfig, gpt2, model_center};
use crate::Result;

/// Sizes and options of a GPT-J.
///
/// Defaults are those of ModelCenter's `GPTjConfig`, which has no field for the longest sequence: it is that of the
/// model with 6 billion parameters.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/gptj_config.py`; Wang and Komatsuzaki 2021 for the
/// architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct GptjConfig {
    /// What all families have. `outer_std` is `emb_init_std` and `proj_init_std` in ModelCenter's files; in those of
    /// Hugging Face it is that of the blocks.
    pub text: TextConfig,
    /// Elements of a head that are turned, from its first. Hugging Face: `rotary_dim`; ModelCenter: `pos_rotary_dim`.
    pub rotary_dim: usize,
}

/// How GPT-J's files are written: as GPT-2's, but for what is said here.
const DIALECT: Dialect = Dialect {
    title: "GPT-J",
    model_type: GptjConfig::MODEL_TYPE,
    hugging_face: || TextConfig {
        init_std: 0.02,
        outer_std: None,
        ffn_activate_fn: Activation::GeluTanh,
        ..GptjConfig::default().text
    },
    model_center: || GptjConfig::default().text,
    fixed: &[&[
        ("norm_bias", Fixed::Flag(true)),
        ("att_bias", Fixed::Flag(false)),
        ("ffn_bias", Fixed::Flag(true)),
        ("length_scale", Fixed::Flag(false)),
        ("attn_scale", Fixed::Flag(true)),
        ("post_layer_norm", Fixed::Flag(false)),
        ("pos_bias_type", Fixed::Text("rotary")),
    ]],
    ..gpt2::DIALECT
};

/// Elements of a head that are turned where a file does not say.
const ROTARY_DIM: usize = 64;

impl Default for GptjConfig {
    fn default() -> Self {
        let text = TextConfig {
            vocab_size: 50400,
            dim_model: 4096,
            num_heads: 16,
            dim_head: 256,
            dim_ff: 16384,
            num_layers: 28,
            init_std: 0.1,
            outer_std: Some(1.0),
            ..TextConfig::default()
        };
        GptjConfig { text, rotary_dim: ROTARY_DIM }
    }
}

impl Config for GptjConfig {
    const MODEL_TYPE: &'static str = "gptj";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        // Files of either dialect may have it beside that of the blocks.
        let outer_std = fields.take_any(&["emb_init_std", "proj_init_std"], Fields::take_number)?;
        let (mut text, spoken) = DIALECT.take(&mut fields)?;
        // A file of transformers that does not say it means one deviation for all values.
        let silent = if spoken == Spoken::HuggingFace { None } else { Self::default().text.outer_std };
        text.outer_std = outer_std.or(silent).filter(|outer| *outer != text.init_std);
        if text.tied {
            // Its head has a bias, which would be the only thing of its own.
            return Err(DIALECT.unsupported(&fields, "tie_word_embeddings", "false"));
        }
        // It has one field for both heads, of which that for words has a bias and that for classes none.
        let has_classes = text.cls_head.is_some();
        if fields.take_flag("proj_bias")?.is_some_and(|bias| bias == has_classes) {
            return Err(DIALECT.unsupported(&fields, "proj_bias", if has_classes { "false" } else { "true" }));
        }
        // Files have it from GPT-2, with the value that is always so here.
        if fields.peek_flag("scale_attn_weights")? == Some(false) {
            return Err(DIALECT.unsupported(&fields, "scale_attn_weights", "true"));
        }
        if fields.has("rotary_dim") && fields.peek("rotary_dim").is_none() {
            let reason = "null would turn more elements than a head has";
            return Err(fields.error("rotary_dim", reason, "give the number of elements of a head that are turned"));
        }
        let rotary_dim = fields.take_either("rotary_dim", "pos_rotary_dim", Fields::take_size)?.unwrap_or(ROTARY_DIM);
        if !rotary_dim.is_multiple_of(2) || rotary_dim > text.dim_head {
            let reason = format!("{rotary_dim} is not a number of pairs of a head of {} elements", text.dim_head);
            return Err(fields.error("rotary_dim", &reason, "give an even number up to the size of a head"));
        }
        let mut config = GptjConfig { text, rotary_dim };
        DIALECT.finish(fields, &mut config.text)?;
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = DIALECT.to_dict(&self.text);
        map.insert("pos_rotary_dim".to_string(), json!(self.rotary_dim));
        map
    }

    fn to_model_center(&self, header: &HfHeader) -> Result<ClassFields> {
        let mut written = model_center::class_fields(self, header)?;
        let has_classes = written.map.get("cls_head").is_some_and(|outputs| !outputs.is_null());
        written.map.insert("proj_bias".to_string(), json!(!has_classes));
        Ok(written)
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        let mut map = DIALECT.to_hf_json(&self.text, header)?;
        map.insert("rotary_dim".to_string(), json!(self.rotary_dim));
        if self.text.outer_std() != self.text.init_std {
            map.insert("emb_init_std".to_string(), number(self.text.outer_std()));
        }
        map.sort_keys();
        Ok(map)
    }
}
