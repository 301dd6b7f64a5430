//! Fields that the configurations of all families of text models have: sizes, rates, labels.
//!
//! Defines [`TextConfig`], a part of a family's configuration; `dialect` reads and writes it under the names of each
//! family.

use bmtrain_core::kernel::Activation;
use serde_json::{Map, Value};

use super::ranges::Ranges;
use super::{Dialect, LayerSharing, ProblemType, rows};
use crate::Result;

/// No bound: relative positions work at any length. The largest size that a configuration may state.
pub const UNLIMITED: usize = 1 << 28;

/// Sizes and rates of a stack of transformer blocks with a vocabulary. Field names are ModelCenter's.
#[derive(Debug, Clone, PartialEq)]
pub struct TextConfig {
    /// V, rows of the token embedding.
    pub vocab_size: usize,
    /// D.
    pub dim_model: usize,
    /// N.
    pub num_heads: usize,
    /// H.
    pub dim_head: usize,
    /// F.
    pub dim_ff: usize,
    /// Blocks; of an encoder-decoder, the encoder's.
    pub num_layers: usize,
    /// The longest sequence, in tokens.
    pub position_size: usize,
    /// Dropout of what attention and feed-forward add, in `[0, 1)`.
    pub dropout_p: f32,
    /// Dropout of the embeddings' sum, in `[0, 1)`.
    pub embedding_dropout_p: f32,
    /// Dropout of attention probabilities, in `[0, 1)`.
    pub attention_dropout_p: f32,
    /// Standard deviation of initial values.
    pub init_std: f32,
    /// Standard deviation of token embedding and heads, if different.
    pub outer_std: Option<f32>,
    /// Whether the initial values of the projections that end attention and feed-forward are divided by the root of
    /// twice the number of blocks; `None` for what the family does. No file states it.
    pub scale_init_by_depth: Option<bool>,
    /// Blocks that share their parameters while a model is trained. No file states it: what is written has each block.
    pub sharing: Option<LayerSharing>,
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// Function between the feed-forward's maps.
    pub ffn_activate_fn: Activation,
    /// Whether what the function yields is a gate: multiplied with a second map's output.
    pub ffn_gated: bool,
    /// Whether the language-modelling head shares the token embedding.
    pub tied: bool,
    /// The padding token.
    pub pad_token_id: Option<usize>,
    /// Outputs of the classification head, if there is one.
    pub cls_head: Option<usize>,
    /// Names of the classes in order, empty if unknown.
    pub labels: Vec<String>,
    /// Meaning of the labels, if the file states it.
    pub problem_type: Option<ProblemType>,
    /// Fields of the file that change nothing here, written back unchanged.
    pub extra: Map<String, Value>,
}

impl Default for TextConfig {
    /// Defaults of most of ModelCenter's classes.
    fn default() -> Self {
        TextConfig {
            vocab_size: 32_000,
            dim_model: 768,
            num_heads: 12,
            dim_head: 64,
            dim_ff: 3072,
            num_layers: 12,
            position_size: 2048,
            dropout_p: 0.0,
            embedding_dropout_p: 0.0,
            attention_dropout_p: 0.0,
            init_std: 0.02,
            outer_std: None,
            scale_init_by_depth: None,
            sharing: None,
            norm_eps: 1e-5,
            ffn_activate_fn: Activation::Gelu,
            ffn_gated: false,
            tied: false,
            pad_token_id: None,
            cls_head: None,
            labels: Vec::new(),
            problem_type: None,
            extra: Map::new(),
        }
    }
}

impl TextConfig {
    /// Standard deviation of initial values of token embedding and heads.
    pub fn outer_std(&self) -> f32 {
        self.outer_std.unwrap_or(self.init_std)
    }

    /// Divisor of the initial values of the two projections of a block that add to its input. Scaled by depth, the sum
    /// of all of them has the variance of one; `scaled` is what the family does.
    ///
    /// Source: Radford et al. 2019, section 2.3.
    pub fn residual_divisor(&self, scaled: bool) -> f32 {
        match self.scale_init_by_depth.unwrap_or(scaled) {
            true => (2.0 * self.num_layers as f32).sqrt(),
            false => 1.0,
        }
    }

    /// Take this rate of dropout for what attention and feed-forward add, and for the embeddings' sum in a family that
    /// drops out of it.
    pub fn set_hidden_dropout(&mut self, rate: f32, drops_embeddings: bool) {
        self.dropout_p = rate;
        if drops_embeddings {
            self.embedding_dropout_p = rate;
        }
    }

    /// Check the fields; `place` names the source.
    pub fn validate(&self, place: &str) -> Result<()> {
        rows::check(&Dialect::MODEL_CENTER.sizes(), self, place)?;
        rows::check(&Dialect::MODEL_CENTER.derived(), self, place)?;
        let ranges = Ranges { place };
        ranges.deviations(&[("initializer_range", self.init_std), ("emb_init_std", self.outer_std())])?;
        ranges.epsilon(self.norm_eps)?;
        ranges.padding(self.pad_token_id, self.vocab_size)?;
        ranges.classes(self.cls_head, self.labels.len())
    }
}
