//! The encoder: post-norm blocks of self-attention and feed-forward.

use super::{Bert, BertBatch};
use crate::config::BertConfig;
use crate::layer::{AttentionConfig, BlockConfig, FeedForwardConfig, Placement, Scope, Shared, TransformerBlock};
use crate::model::flow::TextFlow;
use bmtrain_core::Ctx;
use bmtrain_dist::block::{BlockOptions, RunOptions};
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::param::Init;
use bmtrain_dist::{Builder, Section, TransformerBlockList};
use std::ops::Range;

/// Build the blocks under the builder's name.
pub(super) fn build(
    builder: &Builder,
    config: &BertConfig,
    options: BlockOptions,
) -> bmtrain_dist::Result<TransformerBlockList<TransformerBlock>> {
    TransformerBlockList::build(builder, config.num_layers, options, |_, builder| {
        TransformerBlock::new(builder, block(config))
    })
}

/// What a block is made of: `y = norm(x + attention(x))`, `z = norm(y + feed_forward(y))`, with dropout before each sum.
fn block(config: &BertConfig) -> BlockConfig {
    let (att_init, ffn_init) = (Init::normal(config.att_init_std), Init::normal(config.ffn_init_std));
    BlockConfig {
        placement: Placement::Post,
        attention: AttentionConfig {
            bias: config.att_bias,
            out_bias: config.att_bias,
            scale: if config.attn_scale { 1.0 / (config.dim_head as f32).sqrt() } else { 1.0 },
            dropout: config.attention_dropout_p,
            ..AttentionConfig::new(config.dim_model, config.num_heads, config.dim_head, att_init)
        },
        cross: None,
        ffn: FeedForwardConfig {
            bias: config.ffn_bias,
            ..FeedForwardConfig::new(config.dim_model, config.dim_ff, config.ffn_activate_fn, ffn_init)
        },
        norm: NormOptions::layer(config.dim_model, config.norm_eps),
        dropout: config.dropout_p,
    }
}

impl Section<Bert> for TransformerBlockList<TransformerBlock> {
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
        let shared = Shared::from(Scope::but(padding.as_ref()));
        let output = cx.at("encoder", |cx| TransformerBlockList::run(self, hidden, &shared, options, cx))?;
        Ok(TextFlow { hidden: output.carry, padding })
    }
}
