//! Options of a block, and what the blocks of a list share.
//!
//! Defines [`BlockConfig`] and [`Shared`], which [`super::TransformerBlock`] is built by and reads.

use super::{AttentionConfig, AttentionContext, FeedForwardConfig, Memory, TokensRead};
use bmtrain_core::Var;
use bmtrain_core::ops::TokenShard;
use bmtrain_dist::block::Bundle;
use bmtrain_dist::nn::norm::NormOptions;

/// Placement of the norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Before each layer: `x + layer(norm(x))`. A norm after the last block belongs to the model.
    Pre,
    /// After each sum: `norm(x + layer(x))`.
    Post,
    /// One norm before attention and feed-forward alike: `x + attention(norm(x)) + feed_forward(norm(x))`.
    Parallel,
    /// The same with a norm for each: `x + attention(norm(x)) + feed_forward(ffn_norm(x))`.
    ParallelNorms,
    /// After each layer, before the sum: `x + norm(layer(x))`. A norm after the last block belongs to the model.
    After,
    /// Before and after each layer: `x + out_norm(layer(norm(x)))`. A norm after the last block belongs to the model.
    Both,
}

impl Placement {
    /// Whether attention and feed-forward have the same input.
    pub fn is_parallel(self) -> bool {
        matches!(self, Placement::Parallel | Placement::ParallelNorms)
    }
}

/// Options of a [`TransformerBlock`](super::TransformerBlock).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockConfig {
    /// Placement of the norms.
    pub placement: Placement,
    /// Self-attention.
    pub attention: AttentionConfig,
    /// Attention to an encoder.
    pub cross: Option<AttentionConfig>,
    /// Options of the feed-forward layer.
    pub ffn: FeedForwardConfig,
    /// The norm of each.
    pub norm: NormOptions,
    /// Whether there is a norm before attention; pre-norm blocks may lack it where their input is normalized.
    pub norms_attention: bool,
    /// Whether cross-attention and the feed-forward layer share one norm.
    pub shares_norm: bool,
    /// Probability with which an element that attention adds is dropped.
    pub dropout: f32,
    /// Probability with which an element that the feed-forward layer adds is dropped.
    pub ffn_dropout: f32,
    /// Factor of what each of them adds.
    pub residual_factor: f32,
}

impl BlockConfig {
    /// The decoder block for an encoder with such blocks: self-attention is causal, and cross-attention
    /// has the sizes and options of self-attention.
    #[must_use]
    pub fn attending_to_encoder(self) -> Self {
        let attention = AttentionConfig { causal: true, ..self.attention };
        BlockConfig { attention, cross: Some(self.attention), ..self }
    }
}

/// Inputs that every block of a list shares.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// Mask and positions of self-attention.
    pub context: AttentionContext,
    /// Input of attention to an encoder.
    pub memory: Option<Memory>,
    /// Which hidden states are read after the last block.
    pub reads: TokensRead,
}

impl Shared {
    /// Which tokens this rank has of the hidden states; `None` where it has all.
    pub fn tokens(&self) -> Option<&TokenShard> {
        self.context.tokens.as_ref()
    }
}

impl Bundle for Shared {
    fn vars(&self) -> Vec<Var> {
        let mut vars = self.context.vars();
        vars.extend(self.memory.vars());
        vars
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        Shared { context: self.context.rebuild(vars), memory: self.memory.rebuild(vars), reads: self.reads }
    }
}

impl From<AttentionContext> for Shared {
    fn from(context: AttentionContext) -> Self {
        Shared { context, ..Shared::default() }
    }
}
