//! The configuration of Qwen 3.
//!
//! Defines [`Qwen3Config`]; called by [`crate::model`]'s Qwen 3 and the binaries.

use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Fixed, Spoken};
use super::llama::{self, refuse_raised, take_kv_heads, take_rotary};
use super::{Config, Fields, HfHeader, Qwen2Config, RotaryFields, TextConfig, WindowFields};
use crate::Result;

/// Sizes and options of a Qwen 3.
///
/// ModelCenter has no Qwen: its names mean what they do for a Llama, and defaults are those of transformers.
///
/// Source: Yang et al. 2025 for the architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct Qwen3Config {
    /// What all families have.
    pub text: TextConfig,
    /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
    pub num_heads_kv: usize,
    /// Rotary positions.
    pub rotary: RotaryFields,
    /// Whether attention's projections have biases. Hugging Face: `attention_bias`.
    pub att_bias: bool,
    /// Windows of attention.
    pub windows: WindowFields,
}

/// How Qwen 3's files are written.
const DIALECT: Dialect = Dialect {
    title: "Qwen 3",
    model_type: Qwen3Config::MODEL_TYPE,
    hugging_face: || Qwen3Config::default().text,
    model_center: || Qwen3Config::default().text,
    fixed: &[llama::FIXED, &[("ffn_bias", Fixed::Flag(false))]],
    ..llama::DIALECT
};

impl Default for Qwen3Config {
    fn default() -> Self {
        let Qwen2Config { text, num_heads_kv, rotary, windows } = Qwen2Config::default();
        Qwen3Config { text, num_heads_kv, rotary, att_bias: false, windows }
    }
}

impl Config for Qwen3Config {
    const MODEL_TYPE: &'static str = "qwen3";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        let is_silent = fields.peek("head_dim").or(fields.peek("dim_head")).is_none();
        let (text, spoken) = DIALECT.take(&mut fields)?;
        // It has nothing to do with D / N, and heads of one size in all models of the family would be a guess.
        if is_silent && spoken == Spoken::HuggingFace {
            return Err(fields.missing_sizes(&["head_dim"]));
        }
        refuse_raised(&DIALECT, &fields, &["mlp_bias"])?;
        let silent = (spoken == Spoken::ModelCenter).then_some(Qwen3Config::default().num_heads_kv);
        let num_heads_kv = take_kv_heads(&mut fields, text.num_heads, silent)?;
        let rotary = take_rotary(&mut fields, &text)?;
        let att_bias = fields.take_either("attention_bias", "att_bias", Fields::take_flag)?.unwrap_or(false);
        let windows = WindowFields::take(&mut fields, &text)?;
        let mut config = Qwen3Config { text, num_heads_kv, rotary, att_bias, windows };
        DIALECT.finish(fields, &mut config.text)?;
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = DIALECT.to_dict(&self.text);
        map.insert("num_heads_kv".to_string(), json!(self.num_heads_kv));
        map.insert("att_bias".to_string(), json!(self.att_bias));
        self.rotary.write(&mut map);
        self.windows.write(self.text.num_layers, &mut map);
        map
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        let mut map = DIALECT.to_hf_json(&self.text, header)?;
        map.insert("num_key_value_heads".to_string(), json!(self.num_heads_kv));
        map.insert("attention_bias".to_string(), json!(self.att_bias));
        self.rotary.write(&mut map);
        self.windows.write(self.text.num_layers, &mut map);
        map.sort_keys();
        Ok(map)
    }
}
