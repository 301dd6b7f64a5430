//! The configuration of Mistral.
//!
//! Defines [`MistralConfig`]; called by [`crate::model`]'s Mistral and the binaries.

use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Fixed, Spoken};
use super::llama::{self, refuse_raised, take_kv_heads, take_rotary};
use super::{Config, Fields, HfHeader, LlamaConfig, RotaryFields, TextConfig};
use crate::Result;

/// Sizes and options of a Mistral.
///
/// ModelCenter has no Mistral: its names mean what they do for a Llama, and defaults are those of transformers.
///
/// Source: Jiang et al. 2023 for the architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct MistralConfig {
    /// What all families have.
    pub text: TextConfig,
    /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
    pub num_heads_kv: usize,
    /// Rotary positions.
    pub rotary: RotaryFields,
    /// A token sees so many keys, its own the last of them; `None` for all. A file that is silent means 4096, one with
    /// `null` means all.
    pub sliding_window: Option<usize>,
}

/// How Mistral's files are written.
const DIALECT: Dialect = Dialect {
    title: "Mistral",
    model_type: MistralConfig::MODEL_TYPE,
    hugging_face: || MistralConfig::default().text,
    model_center: || MistralConfig::default().text,
    fixed: &[llama::FIXED, &[("att_bias", Fixed::Flag(false)), ("ffn_bias", Fixed::Flag(false))]],
    ..llama::DIALECT
};

impl Default for MistralConfig {
    fn default() -> Self {
        let LlamaConfig { text, rotary, .. } = LlamaConfig::default();
        let text = TextConfig { dim_ff: 14336, position_size: 131_072, ..text };
        MistralConfig { text, num_heads_kv: 8, rotary, sliding_window: Some(4096) }
    }
}

impl Config for MistralConfig {
    const MODEL_TYPE: &'static str = "mistral";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        let (text, spoken) = DIALECT.take(&mut fields)?;
        refuse_raised(&DIALECT, &fields, &["attention_bias", "mlp_bias"])?;
        if fields.peek("layer_types").is_some() {
            let reason = "a Mistral has one window for all layers";
            return Err(fields.error("layer_types", reason, "remove it, or use a model of another family"));
        }
        let own = MistralConfig::default();
        let silent = (spoken == Spoken::ModelCenter).then_some(own.num_heads_kv);
        let num_heads_kv = take_kv_heads(&mut fields, text.num_heads, silent)?;
        let rotary = take_rotary(&mut fields, &text)?;
        let sliding_window = match fields.has("sliding_window") {
            true => fields.take_size("sliding_window")?,
            false => own.sliding_window,
        };
        let mut config = MistralConfig { text, num_heads_kv, rotary, sliding_window };
        DIALECT.finish(fields, &mut config.text)?;
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = DIALECT.to_dict(&self.text);
        map.insert("num_heads_kv".to_string(), json!(self.num_heads_kv));
        map.insert("sliding_window".to_string(), json!(self.sliding_window));
        self.rotary.write(&mut map);
        map
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        let mut map = DIALECT.to_hf_json(&self.text, header)?;
        map.insert("num_key_value_heads".to_string(), json!(self.num_heads_kv));
        map.insert("sliding_window".to_string(), json!(self.sliding_window));
        self.rotary.write(&mut map);
        map.sort_keys();
        Ok(map)
    }
}
