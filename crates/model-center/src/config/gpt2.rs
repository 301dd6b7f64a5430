//! The configuration of GPT-2.
//!
//! Defines [`Gpt2Config`]; called by [`crate::model`]'s GPT-2 and the binaries.

use bmtrain_core::kernel::Activation;
use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Fixed};
use super::{ClassFields, Config, Fields, HfHeader, TextConfig, model_center};
use crate::Result;

/// Sizes and options of a GPT-2.
///
/// Defaults are those of ModelCenter's `GPT2Config`. Its options that no GPT-2 uses (means of initial values,
/// `length_scale`, `int8`, …) may be in a file with the value that changes nothing.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/gpt2_config.py`; Radford et al. 2019 for the architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpt2Config {
    /// What all families have. ModelCenter's vocabulary has one word more than GPT-2. `init_std` is that of most
    /// values: see [`Gpt2Config::residual_std`]. In `extra` is `reorder_and_upcast_attn`, which asks for scores in
    /// 32-bit floats: they are always.
    pub text: TextConfig,
    /// Divide attention scores by the root of H. Hugging Face: `scale_attn_weights`.
    pub attn_scale: bool,
    /// Divide attention scores by the number of the block, counted from 1. Hugging Face:
    /// `scale_attn_by_inverse_layer_idx`.
    pub scale_by_layer: bool,
}

/// How GPT-2's files are written, and but for names, defaults and what is fixed GPT-J's.
pub(super) const DIALECT: Dialect = Dialect {
    title: "GPT-2",
    model_type: Gpt2Config::MODEL_TYPE,
    dim_model: &["n_embd", "hidden_size"],
    num_layers: &["n_layer", "num_hidden_layers"],
    num_heads: &["n_head", "num_attention_heads"],
    dim_ff: &["n_inner"],
    ff_factor: Some(4),
    dim_head: &[],
    position_size: &["n_positions", "max_position_embeddings"],
    dropout: &["resid_pdrop"],
    embedding_dropout: &["embd_pdrop"],
    attention_dropout: &["attn_pdrop"],
    init_std: &["initializer_range"],
    norm_eps: &["layer_norm_epsilon"],
    activation: &["activation_function"],
    gated: Some(false),
    hugging_face: || TextConfig {
        dropout_p: 0.1,
        embedding_dropout_p: 0.1,
        attention_dropout_p: 0.1,
        ffn_activate_fn: Activation::GeluTanh,
        ..Gpt2Config::default().text
    },
    model_center: || Gpt2Config::default().text,
    fixed: &[&[
        ("norm_bias", Fixed::Flag(true)),
        ("att_bias", Fixed::Flag(true)),
        ("ffn_bias", Fixed::Flag(true)),
        ("length_scale", Fixed::Flag(false)),
        ("post_layer_norm", Fixed::Flag(false)),
        ("pos_bias_type", Fixed::Text("none")),
    ]],
};

impl Default for Gpt2Config {
    fn default() -> Self {
        let text = TextConfig {
            vocab_size: 50258,
            dim_model: 1024,
            num_heads: 16,
            dim_head: 64,
            dim_ff: 4096,
            num_layers: 24,
            position_size: 1024,
            tied: true,
            ..TextConfig::default()
        };
        Gpt2Config { text, attn_scale: true, scale_by_layer: false }
    }
}

impl Gpt2Config {
    /// Standard deviation of the initial values of the two projections of each block whose outputs are added up: so
    /// much smaller that the sum over all of them has the variance of one.
    ///
    /// Source: Radford et al. 2019, section 2.3.
    pub fn residual_std(&self) -> f32 {
        self.text.init_std / (2.0 * self.text.num_layers as f32).sqrt()
    }

    /// The factor of the attention scores of block `layer`, counted from 0.
    pub fn score_factor(&self, layer: usize) -> f32 {
        let root = if self.attn_scale { (self.text.dim_head as f32).sqrt() } else { 1.0 };
        let number = if self.scale_by_layer { (layer + 1) as f32 } else { 1.0 };
        1.0 / (root * number)
    }
}

impl Config for Gpt2Config {
    const MODEL_TYPE: &'static str = "gpt2";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        let (text, _) = DIALECT.take(&mut fields)?;
        if fields.peek_flag("add_cross_attention")? == Some(true) {
            let reason = "GPT-2 with cross-attention is not supported";
            return Err(fields.error("add_cross_attention", reason, "use a model without an encoder"));
        }
        // A flag without effect here must still be one.
        fields.peek_flag("reorder_and_upcast_attn")?;
        let scaled = fields.take_either("scale_attn_weights", "attn_scale", Fields::take_flag)?;
        let by_layer = fields.take_flag("scale_attn_by_inverse_layer_idx")?;
        let attn_scale = scaled.unwrap_or(true);
        let mut config = Gpt2Config { text, attn_scale, scale_by_layer: by_layer.unwrap_or(false) };
        DIALECT.finish(fields, &mut config.text)?;
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = DIALECT.to_dict(&self.text);
        map.insert("attn_scale".to_string(), json!(self.attn_scale));
        map.insert("scale_attn_by_inverse_layer_idx".to_string(), json!(self.scale_by_layer));
        map
    }

    fn to_model_center(&self, header: &HfHeader) -> Result<ClassFields> {
        model_center::class_fields(self, header)
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        let mut map = DIALECT.to_hf_json(&self.text, header)?;
        map.insert("scale_attn_weights".to_string(), json!(self.attn_scale));
        map.insert("scale_attn_by_inverse_layer_idx".to_string(), json!(self.scale_by_layer));
        Ok(map)
    }
}
