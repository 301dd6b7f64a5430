//! The pre-norm transformer block that most decoders are made of.

use super::{Attention, AttentionArgs, AttentionConfig, FeedForward, FeedForwardConfig, Padding};
use bmtrain_core::{Ctx, Var, ops};
use bmtrain_dist::nn::norm::{Norm, NormOptions};
use bmtrain_dist::{Block, Builder, Result};

/// What a [`PreNormBlock`] is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PreNormConfig {
    /// Self-attention.
    pub attention: AttentionConfig,
    /// What follows it.
    pub ffn: FeedForwardConfig,
    /// The norm in front of each.
    pub norm: NormOptions,
    /// Probability with which an element that either of them adds is dropped.
    pub dropout: f32,
}

/// One block: `y = x + attention(norm(x))`, `z = y + feed_forward(norm(y))`, with dropout before each sum.
#[derive(Debug)]
pub struct PreNormBlock {
    attention_norm: Norm,
    attention: Attention,
    ffn_norm: Norm,
    ffn: FeedForward,
    dropout: f32,
}

impl PreNormBlock {
    /// Declare the parameters under the builder's name.
    ///
    /// # Errors
    /// Those of [`Attention::new`]; no memory left.
    pub fn new(builder: &Builder, config: PreNormConfig) -> Result<Self> {
        Ok(PreNormBlock {
            attention_norm: Norm::new(&builder.at("attention_norm"), config.norm)?,
            attention: Attention::new(&builder.at("attention"), config.attention)?,
            ffn_norm: Norm::new(&builder.at("ffn_norm"), config.norm)?,
            ffn: FeedForward::new(&builder.at("ffn"), config.ffn)?,
            dropout: config.dropout,
        })
    }
}

impl Block for PreNormBlock {
    type Carry = Var;
    type Shared = Padding;
    type Cache = ();

    fn forward(&self, x: Var, mask: &Padding, _cache: Option<&mut ()>, cx: &mut Ctx) -> Result<Var> {
        let args = AttentionArgs { padding: mask.0.as_ref(), bias: None };
        let normed = self.attention_norm.forward(&x, cx)?; // [B, L, D]
        let attended = self.attention.forward(&normed, args, cx)?; // [B, L, D]
        drop(normed);
        let dropout = cx.dropout("attention", self.dropout)?;
        let (y, normed) = self.ffn_norm.forward_residual(&attended, &x, dropout, cx)?; // [B, L, D] each
        drop((attended, x));
        let widened = self.ffn.forward(&normed, cx)?; // [B, L, D]
        drop(normed);
        let dropout = cx.dropout("ffn", self.dropout)?;
        let added = ops::dropout(cx, &widened, dropout)?; // [B, L, D]
        drop(widened);
        Ok(ops::add(cx, &y, &added)?) // [B, L, D]
    }
}
