//! The configuration of Qwen 2 and 2.5.
//!
//! Defines [`Qwen2Config`]; called by [`crate::model`]'s Qwen 2 and the binaries.

use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Fixed, Spoken};
use super::llama::{self, refuse_raised, take_kv_heads, take_rotary};
use super::{Config, Fields, HfHeader, LlamaConfig, RotaryFields, TextConfig, WindowFields};
use crate::Result;

/// Sizes and options of a Qwen 2.
///
/// ModelCenter has no Qwen: its names mean what they do for a Llama, and defaults are those of transformers.
///
/// Source: Yang et al. 2024 for the architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct Qwen2Config {
    /// What all families have.
    pub text: TextConfig,
    /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`.
    pub num_heads_kv: usize,
    /// Rotary positions.
    pub rotary: RotaryFields,
    /// Windows of attention.
    pub windows: WindowFields,
}

/// How Qwen 2's files are written.
const DIALECT: Dialect = Dialect {
    title: "Qwen 2",
    model_type: Qwen2Config::MODEL_TYPE,
    hugging_face: || Qwen2Config::default().text,
    model_center: || Qwen2Config::default().text,
    fixed: &[llama::FIXED, &[("att_bias", Fixed::Flag(true)), ("ffn_bias", Fixed::Flag(false))]],
    ..llama::DIALECT
};

impl Default for Qwen2Config {
    fn default() -> Self {
        let LlamaConfig { text, rotary, .. } = LlamaConfig::default();
        let text = TextConfig { vocab_size: 151_936, dim_ff: 22016, position_size: 32768, ..text };
        Qwen2Config { text, num_heads_kv: 32, rotary, windows: WindowFields::default() }
    }
}

impl Config for Qwen2Config {
    const MODEL_TYPE: &'static str = "qwen2";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        let (text, spoken) = DIALECT.take(&mut fields)?;
        // Whatever a file says in attention_bias, transformers goes by the class: queries, keys and values have biases.
        refuse_raised(&DIALECT, &fields, &["mlp_bias", "use_mrope"])?;
        let silent = (spoken == Spoken::ModelCenter).then_some(Qwen2Config::default().num_heads_kv);
        let num_heads_kv = take_kv_heads(&mut fields, text.num_heads, silent)?;
        let rotary = take_rotary(&mut fields, &text)?;
        let windows = WindowFields::take(&mut fields, &text)?;
        let mut config = Qwen2Config { text, num_heads_kv, rotary, windows };
        DIALECT.finish(fields, &mut config.text)?;
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = DIALECT.to_dict(&self.text);
        map.insert("num_heads_kv".to_string(), json!(self.num_heads_kv));
        self.rotary.write(&mut map);
        self.windows.write(self.text.num_layers, &mut map);
        map
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        let mut map = DIALECT.to_hf_json(&self.text, header)?;
        map.insert("num_key_value_heads".to_string(), json!(self.num_heads_kv));
        self.rotary.write(&mut map);
        self.windows.write(self.text.num_layers, &mut map);
        map.sort_keys();
        Ok(map)
    }
}
