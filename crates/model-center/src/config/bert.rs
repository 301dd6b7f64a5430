//! The configuration of BERT: ModelCenter's names and defaults, and what Hugging Face knows besides.
//!
//! Defines [`BertConfig`]; its JSON forms are in `bert_json`. Called by [`crate::model`]'s BERT and the binaries.

use bmtrain_core::kernel::Activation;
use serde_json::{Map, Value};

use super::ProblemType;
use super::ranges::Ranges;
use crate::{Error, Result};

/// Sizes and options of a BERT.
///
/// Field names and defaults are those of ModelCenter's `BertConfig`; the last six fields are ours, for what a Hugging
/// Face directory says and ModelCenter's class has no name for.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/bert_config.py`; Devlin et al. 2019 for the architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct BertConfig {
    /// V, rows of the word embedding. Hugging Face: `vocab_size`.
    pub vocab_size: usize,
    /// Rows of the token type embedding. Hugging Face: `type_vocab_size`.
    pub type_size: usize,
    /// D. Hugging Face: `hidden_size`.
    pub dim_model: usize,
    /// N. Hugging Face: `num_attention_heads`.
    pub num_heads: usize,
    /// H. Hugging Face has no such field: there it is D / N.
    pub dim_head: usize,
    /// F. Hugging Face: `intermediate_size`.
    pub dim_ff: usize,
    /// Blocks of the encoder. Hugging Face: `num_hidden_layers`.
    pub num_layers: usize,
    /// Dropout of hidden states, in `[0, 1)`. Hugging Face: `hidden_dropout_prob`.
    pub dropout_p: f32,
    /// Mean of the embeddings' initial values; only 0 is supported.
    pub emb_init_mean: f32,
    /// Standard deviation of the embeddings' initial values. Hugging Face: `initializer_range`.
    pub emb_init_std: f32,
    /// Kind of position bias; BERT has `none`.
    pub pos_bias_type: String,
    /// Rows of the position embedding, the longest sequence. Hugging Face: `max_position_embeddings`.
    pub position_size: usize,
    /// Initial scale of the norms; only 1 is supported.
    pub norm_init_var: f32,
    /// Whether norms have a bias; BERT's do.
    pub norm_bias: bool,
    /// Epsilon of the norms. Hugging Face: `layer_norm_eps`.
    pub norm_eps: f32,
    /// Mean of the attention's initial values; only 0 is supported.
    pub att_init_mean: f32,
    /// Standard deviation of the attention's initial values. Hugging Face: `initializer_range`.
    pub att_init_std: f32,
    /// Whether the attention's projections have a bias.
    pub att_bias: bool,
    /// The score of a masked position in ModelCenter. Here masked positions are left out exactly and the value is only
    /// kept: −10⁴ underflows to the same zero probability.
    pub att_mask_value: f32,
    /// Mean of the feed-forward's initial values; only 0 is supported.
    pub ffn_init_mean: f32,
    /// Standard deviation of the feed-forward's initial values. Hugging Face: `initializer_range`.
    pub ffn_init_std: f32,
    /// Whether the feed-forward's maps have a bias.
    pub ffn_bias: bool,
    /// Function between the feed-forward's maps. Hugging Face: `hidden_act`.
    pub ffn_activate_fn: Activation,
    /// Mean of the heads' initial values; only 0 is supported.
    pub proj_init_mean: f32,
    /// Standard deviation of the heads' initial values. Hugging Face: `initializer_range`.
    pub proj_init_std: f32,
    /// Whether heads have a bias; BERT's do.
    pub proj_bias: bool,
    /// Scale linear maps by the root of their input length; not for BERT.
    pub length_scale: bool,
    /// Divide attention scores by the root of H.
    pub attn_scale: bool,
    /// Whether the weights were stored as f16. The type to train in is the recipe's.
    pub half: bool,
    /// Quantised linear maps; not supported.
    pub int8: bool,
    /// Whether the masked-word head shares the word embedding. Hugging Face: `tie_word_embeddings`.
    pub tied: bool,
    /// Outputs of the classification head, if there is one. Hugging Face: `num_labels` or the length of `id2label`, for
    /// an architecture that has such a head.
    pub cls_head: Option<usize>,
    /// Norms behind the sums, as BERT has them.
    pub post_layer_norm: bool,

    /// Dropout of attention probabilities, in `[0, 1)`. Hugging Face: `attention_probs_dropout_prob`; in ModelCenter's
    /// dialect `dropout_p` unless given.
    pub attention_dropout_p: f32,
    /// Dropout before the classifier, in `[0, 1)`. Hugging Face: `classifier_dropout`; else `dropout_p`.
    pub classifier_dropout_p: f32,
    /// The word that stands for nothing: its embedding gets no gradient. Hugging Face's default is 0.
    pub pad_token_id: Option<usize>,
    /// Names of the classes in order, empty if unknown. Hugging Face: `id2label`.
    pub labels: Vec<String>,
    /// What the labels mean, if the file says.
    pub problem_type: Option<ProblemType>,
    /// Fields of the file that nobody here knows, written back unchanged.
    pub extra: Map<String, Value>,
}

impl Default for BertConfig {
    fn default() -> Self {
        BertConfig {
            vocab_size: 119547,
            type_size: 2,
            dim_model: 768,
            num_heads: 12,
            dim_head: 64,
            dim_ff: 3072,
            num_layers: 12,
            dropout_p: 0.0,
            emb_init_mean: 0.0,
            emb_init_std: 0.02,
            pos_bias_type: "none".to_string(),
            position_size: 512,
            norm_init_var: 1.0,
            norm_bias: true,
            norm_eps: 1e-12,
            att_init_mean: 0.0,
            att_init_std: 0.02,
            att_bias: true,
            att_mask_value: -1e4,
            ffn_init_mean: 0.0,
            ffn_init_std: 0.02,
            ffn_bias: true,
            ffn_activate_fn: Activation::Gelu,
            proj_init_mean: 0.0,
            proj_init_std: 0.02,
            proj_bias: true,
            length_scale: false,
            attn_scale: true,
            half: true,
            int8: false,
            tied: true,
            cls_head: None,
            post_layer_norm: true,
            attention_dropout_p: 0.0,
            classifier_dropout_p: 0.0,
            pad_token_id: None,
            labels: Vec::new(),
            problem_type: None,
            extra: Map::new(),
        }
    }
}

impl BertConfig {
    /// Check that the fields fit together and ask for nothing that BERT does not have here; `place` names the source.
    ///
    /// Reading a file ends with this; call it after changing fields by hand.
    ///
    /// # Errors
    /// [`Error::Model`] naming the field.
    pub fn validate(&self, place: &str) -> Result<()> {
        let ranges = Ranges { place };
        ranges.sizes(&[
            ("vocab_size", self.vocab_size),
            ("type_size", self.type_size),
            ("dim_model", self.dim_model),
            ("num_heads", self.num_heads),
            ("dim_head", self.dim_head),
            ("dim_ff", self.dim_ff),
            ("num_layers", self.num_layers),
            ("position_size", self.position_size),
        ])?;
        ranges.dropouts(&[
            ("dropout_p", self.dropout_p),
            ("attention_dropout_p", self.attention_dropout_p),
            ("classifier_dropout_p", self.classifier_dropout_p),
        ])?;
        ranges.deviations(&[
            ("emb_init_std", self.emb_init_std),
            ("att_init_std", self.att_init_std),
            ("ffn_init_std", self.ffn_init_std),
            ("proj_init_std", self.proj_init_std),
        ])?;
        ranges.epsilon(self.norm_eps)?;
        ranges.padding(self.pad_token_id, self.vocab_size)?;
        ranges.classes(self.cls_head, self.labels.len())?;
        self.refuse_unsupported(place)
    }

    /// Options of the common base that BERT does not have: ignoring them would give another model than asked for.
    fn refuse_unsupported(&self, place: &str) -> Result<()> {
        let means = [self.emb_init_mean, self.att_init_mean, self.ffn_init_mean, self.proj_init_mean];
        let wrong = [
            ("pos_bias_type", self.pos_bias_type != "none", "none"),
            ("norm_bias", !self.norm_bias, "true"),
            ("proj_bias", !self.proj_bias, "true"),
            ("length_scale", self.length_scale, "false"),
            ("int8", self.int8, "false"),
            ("post_layer_norm", !self.post_layer_norm, "true"),
            ("norm_init_var", self.norm_init_var != 1.0, "1"),
            ("emb_init_mean, att_init_mean, ffn_init_mean, proj_init_mean", means != [0.0; 4], "0"),
        ];
        match wrong.iter().find(|(_, wrong, _)| *wrong) {
            None => Ok(()),
            Some((field, _, want)) => Err(Error::model(
                format!("{place}, field {field}"),
                format!("BERT is supported with {field} = {want} only"),
                format!("set {field} to {want}, or use a model that was made that way"),
            )),
        }
    }
}
