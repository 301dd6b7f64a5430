//! The blocks of a decoder as its only section.

use super::DecoderBatch;
use crate::layer::{BlockConfig, PositionsConfig, TransformerBlock};
use crate::model::flow::TextFlow;
use crate::model::stack::{Stack, StackConfig, StackInput};
use bmtrain_core::Ctx;
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::{Builder, Model, Result, Section, TransformerBlockList};
use std::ops::Range;

/// Blocks, and what normalises the sum that leaves the last of them.
#[derive(Debug)]
pub struct DecoderStack(Stack);

impl DecoderStack {
    /// Declare what positions learn, `count` blocks and the norm under the builder's name; `config` says what each block is made
    /// of, by its number.
    ///
    /// # Errors
    /// Those of [`TransformerBlock::new`].
    pub fn new(
        builder: &Builder,
        (positions, output_norm): (PositionsConfig, Option<NormOptions>),
        count: usize,
        options: BlockOptions,
        config: impl Fn(usize) -> BlockConfig,
    ) -> Result<Self> {
        let around = StackConfig { name: "decoder", layers: count, positions, output_norm, output_dropout: 0.0 };
        Ok(DecoderStack(Stack::new(builder, around, options, config)?))
    }

    /// The blocks.
    pub fn layers(&self) -> &TransformerBlockList<TransformerBlock> {
        self.0.layers()
    }
}

impl<M: Model<Batch = DecoderBatch, Flow = TextFlow>> Section<M> for DecoderStack {
    fn len(&self) -> usize {
        self.0.layers().len()
    }

    fn run(&self, range: Range<usize>, flow: TextFlow, batch: &DecoderBatch, cx: &mut Ctx) -> Result<TextFlow> {
        let TextFlow { hidden, padding } = flow;
        let numbers = batch.numbers.as_ref();
        let hidden = self.0.run(range, StackInput { hidden, padding: padding.as_ref(), numbers, memory: None }, cx)?;
        Ok(TextFlow { hidden, padding })
    }
}
