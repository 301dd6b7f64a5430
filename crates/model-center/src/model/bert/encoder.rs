//! The encoder: post-norm blocks of self-attention and feed-forward.

use super::{Bert, BertBatch};
use crate::config::BertConfig;
use crate::layer::{Attention, AttentionArgs, AttentionConfig, FeedForward, FeedForwardConfig, Padding};
use crate::model::flow::TextFlow;
use bmtrain_core::{Ctx, Var};
use bmtrain_dist::block::{BlockOptions, RunOptions};
use bmtrain_dist::nn::norm::{Norm, NormOptions};
use bmtrain_dist::param::Init;
use bmtrain_dist::{Block, Builder, Section, TransformerBlockList};
use std::ops::Range;

/// One block: `y = norm(x + attention(x))`, `z = norm(y + feed_forward(y))`, with dropout before each sum.
#[derive(Debug)]
pub struct BertBlock {
    attention: Attention,
    attention_norm: Norm,
    ffn: FeedForward,
    ffn_norm: Norm,
    dropout: f32,
}

/// Build the blocks under the builder's name.
pub(super) fn build(
    builder: &Builder,
    config: &BertConfig,
    options: BlockOptions,
) -> bmtrain_dist::Result<TransformerBlockList<BertBlock>> {
    TransformerBlockList::build(builder, config.num_layers, options, |_, builder| BertBlock::new(builder, config))
}

impl BertBlock {
    fn new(builder: &Builder, config: &BertConfig) -> bmtrain_dist::Result<Self> {
        let (att_init, ffn_init) = (Init::normal(config.att_init_std), Init::normal(config.ffn_init_std));
        let attention = AttentionConfig {
            dim_model: config.dim_model,
            num_heads: config.num_heads,
            num_heads_kv: config.num_heads,
            dim_head: config.dim_head,
            bias: config.att_bias,
            scale: if config.attn_scale { 1.0 / (config.dim_head as f32).sqrt() } else { 1.0 },
            causal: false,
            dropout: config.attention_dropout_p,
            init: att_init,
            out_init: att_init,
        };
        let ffn = FeedForwardConfig {
            dim_model: config.dim_model,
            dim_ff: config.dim_ff,
            activation: config.ffn_activate_fn,
            bias: config.ffn_bias,
            init: ffn_init,
            out_init: ffn_init,
        };
        let norm = NormOptions::layer(config.dim_model, config.norm_eps);
        Ok(BertBlock {
            attention: Attention::new(&builder.at("attention"), attention)?,
            attention_norm: Norm::new(&builder.at("attention_norm"), norm)?,
            ffn: FeedForward::new(&builder.at("ffn"), ffn)?,
            ffn_norm: Norm::new(&builder.at("ffn_norm"), norm)?,
            dropout: config.dropout_p,
        })
    }
}

impl Block for BertBlock {
    type Carry = Var;
    type Shared = Padding;
    type Cache = ();

    fn forward(&self, x: Var, mask: &Padding, _cache: Option<&mut ()>, cx: &mut Ctx) -> bmtrain_dist::Result<Var> {
        let args = AttentionArgs { padding: mask.0.as_ref(), bias: None };
        let attended = self.attention.forward(&x, args, cx)?; // [B, L, D]
        let dropout = cx.dropout("attention", self.dropout)?;
        let (_, y) = self.attention_norm.forward_residual(&attended, &x, dropout, cx)?; // [B, L, D]
        drop((attended, x));
        let widened = self.ffn.forward(&y, cx)?; // [B, L, D]
        let dropout = cx.dropout("ffn", self.dropout)?;
        let (_, z) = self.ffn_norm.forward_residual(&widened, &y, dropout, cx)?; // [B, L, D]
        Ok(z)
    }
}

impl Section<Bert> for TransformerBlockList<BertBlock> {
    fn len(&self) -> usize {
        TransformerBlockList::len(self)
    }

    fn run(
        &self,
        range: Range<usize>,
        flow: TextFlow,
        _batch: &BertBatch,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<TextFlow> {
        let TextFlow { hidden, padding } = flow;
        let options = RunOptions { range, caches: None, return_hidden: false };
        let shared = Padding(padding.clone());
        let output = cx.at("encoder", |cx| TransformerBlockList::run(self, hidden, &shared, options, cx))?;
        Ok(TextFlow { hidden: output.carry, padding })
    }
}
