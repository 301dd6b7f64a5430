//! The configuration of BLOOM.
//!
//! Defines [`BloomConfig`]; called by [`crate::model`]'s BLOOM and the binaries.

use bmtrain_core::kernel::Activation;
use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Fixed};
use super::{Config, Fields, HfHeader, TextConfig};
use crate::Result;

/// Sizes and options of a BLOOM. ModelCenter has none; its names of what all families have are read all the same.
///
/// Source: Le Scao et al. 2022 for the architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct BloomConfig {
    /// What all families have. F is always 4 D and the function in between the tanh form of GELU; nothing of the
    /// embeddings' sum is dropped. Hugging Face's `seq_length` is what it was trained on, and bounds nothing. In
    /// `extra` are `pretraining_tp` and `slow_but_exact`, which say in how many parts sums are to be made.
    pub text: TextConfig,
}

/// F in D.
const FF_FACTOR: usize = 4;

/// How BLOOM's files are written.
const DIALECT: Dialect = Dialect {
    title: "BLOOM",
    model_type: BloomConfig::MODEL_TYPE,
    dim_model: &["hidden_size", "n_embed"],
    num_layers: &["n_layer", "num_hidden_layers"],
    num_heads: &["n_head", "num_attention_heads"],
    dim_ff: &[],
    ff_factor: Some(FF_FACTOR),
    dim_head: &[],
    position_size: &[],
    dropout: &["hidden_dropout"],
    embedding_dropout: &[],
    attention_dropout: &["attention_dropout"],
    init_std: &["initializer_range"],
    norm_eps: &["layer_norm_epsilon"],
    activation: &[],
    gated: Some(false),
    hugging_face: || BloomConfig::default().text,
    model_center: || BloomConfig::default().text,
    fixed: &[&[
        ("norm_bias", Fixed::Flag(true)),
        ("att_bias", Fixed::Flag(true)),
        ("ffn_bias", Fixed::Flag(true)),
        ("length_scale", Fixed::Flag(false)),
        ("attn_scale", Fixed::Flag(true)),
        ("post_layer_norm", Fixed::Flag(false)),
        ("apply_residual_connection_post_layernorm", Fixed::Flag(false)),
    ]],
};

impl Default for BloomConfig {
    /// The smallest model that was published, of 560 million parameters.
    fn default() -> Self {
        let text = TextConfig {
            vocab_size: 250_880,
            dim_model: 1024,
            num_heads: 16,
            dim_head: 64,
            dim_ff: FF_FACTOR * 1024,
            num_layers: 24,
            ffn_activate_fn: Activation::GeluTanh,
            tied: true,
            ..TextConfig::default()
        };
        BloomConfig { text }
    }
}

impl Config for BloomConfig {
    const MODEL_TYPE: &'static str = "bloom";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        DIALECT.take_no_embedding_dropout(&mut fields)?;
        let position_size = fields.take_either("seq_length", "position_size", Fields::take_size)?;
        let (mut text, _) = DIALECT.take(&mut fields)?;
        text.position_size = position_size.unwrap_or(text.position_size);
        text.embedding_dropout_p = 0.0;
        let inner = fields.peek_size("n_inner")?.unwrap_or(text.dim_ff);
        if inner != FF_FACTOR * text.dim_model || inner != text.dim_ff {
            let name = if inner == text.dim_ff { "dim_ff" } else { "n_inner" };
            return Err(DIALECT.unsupported(&fields, name, &(FF_FACTOR * text.dim_model).to_string()));
        }
        if text.ffn_activate_fn != Activation::GeluTanh {
            return Err(DIALECT.unsupported(&fields, "ffn_activate_fn", "gelu_new"));
        }
        let parts = fields.peek_size("pretraining_tp")?.unwrap_or(1);
        if fields.peek_flag("slow_but_exact")? == Some(true) && parts > 1 {
            // transformers then leaves out the biases behind attention and feed-forward.
            return Err(DIALECT.unsupported(&fields, "slow_but_exact", "false"));
        }
        let mut config = BloomConfig { text };
        DIALECT.finish(fields, &mut config.text)?;
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        DIALECT.to_dict(&self.text)
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        let mut map = DIALECT.to_hf_json(&self.text, header)?;
        map.insert("seq_length".to_string(), json!(self.text.position_size));
        map.insert("apply_residual_connection_post_layernorm".to_string(), json!(false));
        map.sort_keys();
        Ok(map)
    }
}
