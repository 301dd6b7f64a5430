//! The configuration of OPT.
//!
//! Defines [`OptConfig`]; called by [`crate::model`]'s OPT and the binaries.

use bmtrain_core::kernel::Activation;
use serde_json::{Map, Value, json};

use super::dialect::{Dialect, Fixed};
use super::{ClassFields, Config, Fields, HfHeader, TextConfig, model_center, two_stacks};
use crate::{Error, Result};

/// The epsilon of OPT's norms, which its files do not state.
const NORM_EPS: f32 = 1e-5;

/// Sizes and options of an OPT.
///
/// Defaults are those of ModelCenter's `OPTConfig`. Its `post_layer_norm` is not the norm behind the sums of the model
/// with 350 million parameters, which ModelCenter does not have: that is [`OptConfig::norm_before`].
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/opt_config.py`; Zhang et al. 2022 for the architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct OptConfig {
    /// What all families have. Nothing of the embeddings' sum is dropped. In `extra` is `layerdrop`, which is 0.
    pub text: TextConfig,
    /// Whether the norms stand in front of the layers; else behind each sum. Hugging Face: `do_layer_norm_before`.
    pub norm_before: bool,
    /// Whether a model whose norms stand in front has none behind the last block either. Hugging Face:
    /// `_remove_final_layer_norm`.
    pub no_final_norm: bool,
    /// Whether attention and feed-forward have biases. Hugging Face: `enable_bias`.
    pub bias: bool,
    /// Length of a word's row; where it is not D, maps lead from it and back to it. Hugging Face:
    /// `word_embed_proj_dim`.
    pub dim_word: usize,
}

/// How OPT's files are written: as BART's, which are of fairseq too, but for what is said here.
const DIALECT: Dialect = Dialect {
    title: "OPT",
    model_type: OptConfig::MODEL_TYPE,
    dim_model: &["hidden_size"],
    num_layers: &["num_hidden_layers"],
    num_heads: &["num_attention_heads"],
    dim_ff: &["ffn_dim"],
    hugging_face: || TextConfig { attention_dropout_p: 0.0, ..OptConfig::default().text },
    model_center: || OptConfig::default().text,
    fixed: &[&[
        ("norm_bias", Fixed::Flag(true)),
        ("layer_norm_elementwise_affine", Fixed::Flag(true)),
        ("proj_bias", Fixed::Flag(false)),
        ("length_scale", Fixed::Flag(false)),
        ("attn_scale", Fixed::Flag(true)),
        ("post_layer_norm", Fixed::Flag(false)),
        ("pos_bias_type", Fixed::Text("none")),
    ]],
    ..two_stacks::DIALECT
};

impl Default for OptConfig {
    fn default() -> Self {
        let text = TextConfig {
            vocab_size: 50272,
            dropout_p: 0.1,
            attention_dropout_p: 0.1,
            norm_eps: NORM_EPS,
            ffn_activate_fn: Activation::Relu,
            tied: true,
            pad_token_id: Some(1),
            ..TextConfig::default()
        };
        let dim_word = text.dim_model;
        OptConfig { text, norm_before: true, no_final_norm: false, bias: true, dim_word }
    }
}

impl OptConfig {
    /// Whether there is a norm behind the last block.
    pub fn has_final_norm(&self) -> bool {
        self.norm_before && !self.no_final_norm
    }
}

impl Config for OptConfig {
    const MODEL_TYPE: &'static str = "opt";

    fn from_fields(mut fields: Fields) -> Result<Self> {
        DIALECT.take_no_embedding_dropout(&mut fields)?;
        let (mut text, _) = DIALECT.take(&mut fields)?;
        text.embedding_dropout_p = 0.0;
        DIALECT.refuse_layer_dropout(&fields, &["layerdrop"])?;
        let bias = fields.take_any(&["enable_bias", "att_bias", "ffn_bias"], Fields::take_flag)?;
        let dim_word = fields.take_size("word_embed_proj_dim")?.unwrap_or(text.dim_model);
        let norm_before = fields.take_flag("do_layer_norm_before")?.unwrap_or(true);
        let no_final_norm = fields.take_flag("_remove_final_layer_norm")?.unwrap_or(false);
        let mut config = OptConfig { text, norm_before, no_final_norm, bias: bias.unwrap_or(true), dim_word };
        DIALECT.finish(fields, &mut config.text)?;
        Ok(config)
    }

    fn to_dict(&self) -> Map<String, Value> {
        let mut map = DIALECT.to_dict(&self.text);
        map.insert("att_bias".to_string(), json!(self.bias));
        map.insert("ffn_bias".to_string(), json!(self.bias));
        self.write_own(&mut map);
        // What a file means that does not say them.
        map.shift_remove("embedding_dropout_p");
        if self.dim_word == self.text.dim_model {
            map.shift_remove("word_embed_proj_dim");
        }
        map
    }

    fn to_model_center(&self, header: &HfHeader) -> Result<ClassFields> {
        if !self.text.tied {
            let reason = "its head for words shares the words' embedding, and this model's does not";
            let fix = "write the model as a Hugging Face directory";
            return Err(Error::model("OPT in ModelCenter's layout", reason, fix));
        }
        model_center::class_fields(self, header)
    }

    fn to_hf_json(&self, header: &HfHeader) -> Result<Map<String, Value>> {
        DIALECT.check_norm_eps(&self.text, NORM_EPS)?;
        let mut map = DIALECT.to_hf_json(&self.text, header)?;
        map.insert("enable_bias".to_string(), json!(self.bias));
        map.insert("layer_norm_elementwise_affine".to_string(), json!(true));
        self.write_own(&mut map);
        map.sort_keys();
        Ok(map)
    }
}

impl OptConfig {
    /// What has one name in both dialects.
    fn write_own(&self, map: &mut Map<String, Value>) {
        map.insert("do_layer_norm_before".to_string(), json!(self.norm_before));
        map.insert("_remove_final_layer_norm".to_string(), json!(self.no_final_norm));
        map.insert("word_embed_proj_dim".to_string(), json!(self.dim_word));
    }
}
