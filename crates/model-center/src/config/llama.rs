//! The configuration of Llama 1, 2 and 3.
//!
//! Defines [`LlamaConfig`]; called by [`crate::model`]'s Llama and the binaries.

use bmtrain_core::kernel::Activation;
use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Fixed};
use super::{Config, Fields, HfHeader, RotaryFields, TextConfig};
use crate::Result;
use crate::layer::position::RotaryScaling;

/// Sizes and options of a Llama.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/llama_config.py`; Touvron et al. 2023 for the architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    /// What all families have.
    pub text: TextConfig,
    /// K, key and value heads, a divisor of N. Hugging Face: `num_key_value_heads`; ModelCenter writes -1 for N.
    pub num_heads_kv: usize,
    /// Rotary positions.
    pub rotary: RotaryFields,
    /// Whether attention's projections have biases. Hugging Face: `attention_bias`.
    pub att_bias: bool,
    /// Whether the feed-forward's maps have biases. Hugging Face: `mlp_bias`.
    pub ffn_bias: bool,
}

/// How Llama's files are written.
const DIALECT: Dialect = Dialect {
    title: "Llama",
    model_type: LlamaConfig::MODEL_TYPE,
    dim_model: &["hidden_size"],
    num_layers: &["num_hidden_layers"],
    num_heads: &["num_attention_heads"],
    dim_ff: &["intermediate_size"],
    ff_factor: None,
    dim_head: &["head_dim"],
    position_size: &["max_position_embeddings"],
    dropout: &[],
    embedding_dropout: &[],
    attention_dropout: &["attention_dropout"],
    init_std: &["initializer_range"],
    norm_eps: &["rms_norm_eps"],
    activation: &["hidden_act"],
    gated: Some(true),
    hugging_face: || LlamaConfig::default().text,
    model_center: || LlamaConfig::default().text,
    fixed: &[
        ("norm_bias", Fixed::Flag(false)),
        ("proj_bias", Fixed::Flag(false)),
        ("length_scale", Fixed::Flag(false)),
        ("attn_scale", Fixed::Flag(true)),
        ("post_layer_norm", Fixed::Flag(false)),
        ("pos_bias_type", Fixed::Text("rotary")),
    ],
};

impl Default for LlamaConfig {
    fn default() -> Self {
        let text = TextConfig {
            dim_model: 4096,
            num_heads: 32,
            dim_head: 128,
            dim_ff: 11008,
            num_layers: 32,
            norm_eps: 1e-6,
            ffn_activate_fn: Activation::Silu,
            ffn_gated: true,
            ..TextConfig::default()
        };
        let rotary = RotaryFields { base: 10_000.0, scaling: RotaryScaling::None };
        LlamaConfig { text, num_heads_kv: 32, rotary, att_bias: false, ffn_bias: false }
    }
}

/// Take K, which is N where the file does not say.
///
/// # Errors
/// A number that does not divide N.
pub(super) fn take_kv_heads(fields: &mut Fields, heads: usize) -> Result<usize> {
    if fields.peek("num_heads_kv").and_then(Value::as_i64) == Some(-1) {
        fields.take("num_heads_kv");
    }
    let given = fields.take_either("num_key_value_heads", "num_heads_kv", Fields::take_size)?.unwrap_or(heads);
    match heads % given {
        0 => Ok(given),
        _ => {
            let reason = format!("{given} key heads do not divide {heads} query heads");
            Err(fields.error("num_key_value_heads", &reason, "correct one of the two"))
        }
    }
}

impl Config for LlamaConfig {
    const MODEL_TYPE: &'static str = "llama";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        let (text, _) = DIALECT.take(&mut fields)?;
        let num_heads_kv = take_kv_heads(&mut fields, text.num_heads)?;
        let rotary = RotaryFields::take(&mut fields, 10_000.0, text.position_size)?;
        let att_bias = fields.take_either("attention_bias", "att_bias", Fields::take_flag)?.unwrap_or(false);
        let ffn_bias = fields.take_either("mlp_bias", "ffn_bias", Fields::take_flag)?.unwrap_or(false);
        let mut config = LlamaConfig { text, num_heads_kv, rotary, att_bias, ffn_bias };
        DIALECT.finish(fields, &mut config.text)?;
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = DIALECT.to_dict(&self.text);
        map.insert("num_heads_kv".to_string(), json!(self.num_heads_kv));
        map.insert("att_bias".to_string(), json!(self.att_bias));
        map.insert("ffn_bias".to_string(), json!(self.ffn_bias));
        self.rotary.write(&mut map);
        map
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        let mut map = DIALECT.to_hf_json(&self.text, header)?;
        map.insert("num_key_value_heads".to_string(), json!(self.num_heads_kv));
        map.insert("attention_bias".to_string(), json!(self.att_bias));
        map.insert("mlp_bias".to_string(), json!(self.ffn_bias));
        self.rotary.write(&mut map);
        map.sort_keys();
        Ok(map)
    }
}
