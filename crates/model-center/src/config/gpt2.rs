//! The configuration of GPT-2: ModelCenter's names and defaults, and what Hugging Face knows besides.
//!
//! Defines [`Gpt2Config`]; its JSON forms are in `gpt2_json`. Called by [`crate::model`]'s GPT-2 and the binaries.

use bmtrain_core::kernel::Activation;
use serde_json::{Map, Value};

use super::ProblemType;
use super::ranges::Ranges;
use crate::Result;

/// Sizes and options of a GPT-2.
///
/// Field names and defaults are those of ModelCenter's `GPT2Config` where it has such a field. Its options that no GPT-2
/// uses (means of initial values, `length_scale`, `int8`, …) may be in a file with the value that changes nothing.
///
/// Source: ModelCenter 1.0.3, `model_center/model/config/gpt2_config.py`; Radford et al. 2019 for the architecture.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpt2Config {
    /// V, rows of the word embedding. Hugging Face: `vocab_size`. ModelCenter's default has one word more than GPT-2.
    pub vocab_size: usize,
    /// D. Hugging Face: `n_embd`.
    pub dim_model: usize,
    /// N. Hugging Face: `n_head`.
    pub num_heads: usize,
    /// H. Hugging Face has no such field: there it is D / N.
    pub dim_head: usize,
    /// F. Hugging Face: `n_inner`, 4 D where it is `null`.
    pub dim_ff: usize,
    /// Blocks. Hugging Face: `n_layer`.
    pub num_layers: usize,
    /// Rows of the position embedding, the longest sequence. Hugging Face: `n_positions`.
    pub position_size: usize,
    /// Dropout of what attention and feed-forward add, in `[0, 1)`. Hugging Face: `resid_pdrop`.
    pub dropout_p: f32,
    /// Dropout of the embeddings' sum, in `[0, 1)`. Hugging Face: `embd_pdrop`; in ModelCenter's dialect `dropout_p`
    /// unless given.
    pub embedding_dropout_p: f32,
    /// Dropout of attention probabilities, in `[0, 1)`. Hugging Face: `attn_pdrop`; in ModelCenter's dialect `dropout_p`
    /// unless given.
    pub attention_dropout_p: f32,
    /// Standard deviation of initial values. Hugging Face: `initializer_range`; ModelCenter: `emb_init_std`,
    /// `att_init_std`, `ffn_init_std` and `proj_init_std`, which are one number here. The projections whose outputs are
    /// added up along the depth have a smaller one, see [`Gpt2Config::residual_std`].
    pub init_std: f32,
    /// Epsilon of the norms. Hugging Face: `layer_norm_epsilon`.
    pub norm_eps: f32,
    /// Function between the feed-forward's maps. Hugging Face: `activation_function`.
    pub ffn_activate_fn: Activation,
    /// Divide attention scores by the root of H. Hugging Face: `scale_attn_weights`.
    pub attn_scale: bool,
    /// Divide attention scores by the number of the block, counted from 1. Hugging Face:
    /// `scale_attn_by_inverse_layer_idx`.
    pub scale_by_layer: bool,
    /// Whether the head for the next word shares the word embedding. Hugging Face: `tie_word_embeddings`.
    pub tied: bool,
    /// The word that stands for nothing, after the last of which a classifier looks. Hugging Face: `pad_token_id`.
    pub pad_token_id: Option<usize>,
    /// Outputs of the classification head, if there is one. Hugging Face: `num_labels` or the length of `id2label`, for
    /// an architecture that has such a head.
    pub cls_head: Option<usize>,
    /// Names of the classes in order, empty if unknown. Hugging Face: `id2label`.
    pub labels: Vec<String>,
    /// What the labels mean, if the file says.
    pub problem_type: Option<ProblemType>,
    /// Fields of the file that change nothing here, written back unchanged. One of them is `reorder_and_upcast_attn`,
    /// which asks for scores in 32-bit floats: they are always.
    pub extra: Map<String, Value>,
}

impl Default for Gpt2Config {
    fn default() -> Self {
        Gpt2Config {
            vocab_size: 50258,
            dim_model: 1024,
            num_heads: 16,
            dim_head: 64,
            dim_ff: 4096,
            num_layers: 24,
            position_size: 1024,
            dropout_p: 0.0,
            embedding_dropout_p: 0.0,
            attention_dropout_p: 0.0,
            init_std: 0.02,
            norm_eps: 1e-5,
            ffn_activate_fn: Activation::Gelu,
            attn_scale: true,
            scale_by_layer: false,
            tied: true,
            pad_token_id: None,
            cls_head: None,
            labels: Vec::new(),
            problem_type: None,
            extra: Map::new(),
        }
    }
}

impl Gpt2Config {
    /// Check that the fields fit together; `place` names the source.
    ///
    /// Reading a file ends with this; call it after changing fields by hand.
    ///
    /// # Errors
    /// [`Error::Model`](crate::Error::Model) naming the field.
    pub fn validate(&self, place: &str) -> Result<()> {
        let ranges = Ranges { place };
        ranges.sizes(&[
            ("vocab_size", self.vocab_size),
            ("dim_model", self.dim_model),
            ("num_heads", self.num_heads),
            ("dim_head", self.dim_head),
            ("dim_ff", self.dim_ff),
            ("num_layers", self.num_layers),
            ("position_size", self.position_size),
        ])?;
        ranges.dropouts(&[
            ("dropout_p", self.dropout_p),
            ("embedding_dropout_p", self.embedding_dropout_p),
            ("attention_dropout_p", self.attention_dropout_p),
        ])?;
        ranges.deviations(&[("initializer_range", self.init_std)])?;
        ranges.epsilon(self.norm_eps)?;
        ranges.padding(self.pad_token_id, self.vocab_size)?;
        ranges.classes(self.cls_head, self.labels.len())
    }

    /// Standard deviation of the initial values of the two projections of each block whose outputs are added up: so much
    /// smaller that the sum over all of them has the variance of one.
    ///
    /// Source: Radford et al. 2019, section 2.3.
    pub fn residual_std(&self) -> f32 {
        self.init_std / (2.0 * self.num_layers as f32).sqrt()
    }

    /// The factor of the attention scores of block `layer`, counted from 0.
    pub fn score_factor(&self, layer: usize) -> f32 {
        let root = if self.attn_scale { (self.dim_head as f32).sqrt() } else { 1.0 };
        let number = if self.scale_by_layer { (layer + 1) as f32 } else { 1.0 };
        1.0 / (root * number)
    }
}
