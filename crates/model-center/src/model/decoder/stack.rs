//! The blocks of a decoder and the map behind them as its only section.

use super::DecoderBatch;
use crate::layer::{BlockCache, BlockConfig, PositionsConfig, TransformerBlock, Visible};
use crate::model::flow::TextFlow;
use crate::model::stack::{Stack, StackConfig, StackInput};
use bmtrain_core::Ctx;
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::nn::linear::Linear;
use bmtrain_dist::nn::norm::NormOptions;
use bmtrain_dist::{Builder, Model, Result, Section, TransformerBlockList};
use std::ops::Range;

/// Blocks, and what normalises and maps the sum that leaves the last of them.
#[derive(Debug)]
pub struct DecoderStack {
    blocks: Stack,
    project_out: Option<Linear>,
}

impl DecoderStack {
    /// Declare what positions learn, `count` blocks and the norm under the builder's name; `config` says what each
    /// block is made of, by its number.
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
        Ok(DecoderStack { blocks: Stack::new(builder, around, options, config)?, project_out: None })
    }

    /// With a map behind the norm: from D to the length of a word's row, where that is another.
    pub fn leading_to(self, project_out: Option<Linear>) -> Self {
        DecoderStack { project_out, ..self }
    }

    /// Some of the blocks, and behind the last block what follows. With caches, one for each of these blocks, the
    /// tokens stand behind those that were read before; what the batch says of padding, and of numbers, is then of all
    /// of them.
    ///
    /// # Errors
    /// Those of the blocks; a range outside.
    pub fn run_behind(
        &self,
        range: Range<usize>,
        flow: TextFlow,
        batch: &DecoderBatch,
        caches: Option<&mut [BlockCache]>,
        cx: &mut Ctx,
    ) -> Result<TextFlow> {
        let TextFlow { hidden, padding } = flow;
        let is_last = range.end == self.blocks.layers().len();
        let visible = match &batch.visible {
            Some(visible) => Visible::Full(visible.clone()),
            None => Visible::but(padding.as_ref()),
        };
        let numbers = batch.numbers.as_ref();
        let input = StackInput { visible, numbers, caches, ..StackInput::new(hidden) };
        let hidden = self.blocks.run(range, input, cx)?; // [B, L, D]
        let hidden = match &self.project_out {
            Some(map) if is_last => map.forward(&hidden, cx)?, // [B, L, word_size]
            _ => hidden,
        };
        Ok(TextFlow { hidden, padding })
    }

    /// The blocks.
    pub fn layers(&self) -> &TransformerBlockList<TransformerBlock> {
        self.blocks.layers()
    }
}

impl<M: Model<Batch = DecoderBatch, Flow = TextFlow>> Section<M> for DecoderStack {
    fn len(&self) -> usize {
        self.blocks.layers().len()
    }

    fn run(&self, range: Range<usize>, flow: TextFlow, batch: &DecoderBatch, cx: &mut Ctx) -> Result<TextFlow> {
        self.run_behind(range, flow, batch, None, cx)
    }
}
