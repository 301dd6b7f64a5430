//! The blocks of a decoder and the norm behind them.

use super::DecoderBatch;
use crate::layer::{Padding, PreNormBlock, PreNormConfig};
use crate::model::flow::TextFlow;
use bmtrain_core::Ctx;
use bmtrain_dist::block::{BlockOptions, RunOptions};
use bmtrain_dist::nn::norm::{Norm, NormOptions};
use bmtrain_dist::{Builder, Model, Result, Section, TransformerBlockList};
use std::ops::Range;

/// Pre-norm blocks and what normalises the sum that leaves the last of them.
#[derive(Debug)]
pub struct DecoderStack {
    layers: TransformerBlockList<PreNormBlock>,
    output_norm: Norm,
}

impl DecoderStack {
    /// Declare `count` blocks and the norm under the builder's name; `config` says what each block is made of, by its number.
    ///
    /// # Errors
    /// Those of [`PreNormBlock::new`].
    pub fn new(
        builder: &Builder,
        count: usize,
        norm: NormOptions,
        options: BlockOptions,
        config: impl Fn(usize) -> PreNormConfig,
    ) -> Result<Self> {
        let layers = TransformerBlockList::build(&builder.at("layers"), count, options, |index, builder| {
            PreNormBlock::new(builder, config(index))
        })?;
        Ok(DecoderStack { layers, output_norm: Norm::new(&builder.at("output_norm"), norm)? })
    }

    /// The blocks.
    pub fn layers(&self) -> &TransformerBlockList<PreNormBlock> {
        &self.layers
    }
}

impl<M: Model<Batch = DecoderBatch, Flow = TextFlow>> Section<M> for DecoderStack {
    fn len(&self) -> usize {
        self.layers.len()
    }

    fn run(&self, range: Range<usize>, flow: TextFlow, _batch: &DecoderBatch, cx: &mut Ctx) -> Result<TextFlow> {
        let TextFlow { hidden, padding } = flow;
        let is_last = range.end == self.layers.len();
        let options = RunOptions { range, caches: None, return_hidden: false };
        let shared = Padding(padding.clone());
        let output = cx.at("decoder", |cx| self.layers.run(hidden, &shared, options, cx))?;
        let hidden = match is_last {
            true => self.output_norm.forward(&output.carry, cx)?, // [B, L, D]
            false => output.carry,
        };
        Ok(TextFlow { hidden, padding })
    }
}
