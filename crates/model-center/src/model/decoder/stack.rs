//! The blocks of a decoder, what their attention goes by, and the norm and the map behind them.

use super::DecoderBatch;
use crate::layer::position::Rows;
use crate::layer::{BlockConfig, Positions, PositionsConfig, Shared, TransformerBlock, Visible};
use crate::model::flow::TextFlow;
use bmtrain_core::Ctx;
use bmtrain_dist::block::{BlockOptions, RunOptions};
use bmtrain_dist::nn::linear::Linear;
use bmtrain_dist::nn::norm::{Norm, NormOptions};
use bmtrain_dist::{Builder, Model, Result, Section, TransformerBlockList};
use std::ops::Range;

/// Blocks, and what normalises and maps the sum that leaves the last of them.
#[derive(Debug)]
pub struct DecoderStack {
    positions: Positions,
    layers: TransformerBlockList<TransformerBlock>,
    output_norm: Option<Norm>,
    project_out: Option<Linear>,
}

impl DecoderStack {
    /// Declare what positions learn, `count` blocks and the norm under the builder's name; `config` says what each block is made
    /// of, by its number.
    ///
    /// # Errors
    /// Those of [`TransformerBlock::new`].
    pub fn new(
        builder: &Builder,
        (positions, norm): (PositionsConfig, Option<NormOptions>),
        count: usize,
        options: BlockOptions,
        config: impl Fn(usize) -> BlockConfig,
    ) -> Result<Self> {
        let positions = Positions::new(builder, positions)?;
        let layers = TransformerBlockList::build(&builder.at("layers"), count, options, |index, builder| {
            TransformerBlock::new(builder, config(index))
        })?;
        let output_norm = norm.map(|norm| Norm::new(&builder.at("output_norm"), norm)).transpose()?;
        Ok(DecoderStack { positions, layers, output_norm, project_out: None })
    }

    /// With a map behind the norm: from D to the length of a word's row, where that is another.
    pub fn leading_to(self, project_out: Option<Linear>) -> Self {
        DecoderStack { project_out, ..self }
    }

    /// The blocks.
    pub fn layers(&self) -> &TransformerBlockList<TransformerBlock> {
        &self.layers
    }
}

impl<M: Model<Batch = DecoderBatch, Flow = TextFlow>> Section<M> for DecoderStack {
    fn len(&self) -> usize {
        self.layers.len()
    }

    fn run(&self, range: Range<usize>, flow: TextFlow, batch: &DecoderBatch, cx: &mut Ctx) -> Result<TextFlow> {
        let TextFlow { hidden, padding } = flow;
        let is_last = range.end == self.layers.len();
        let options = RunOptions { range, caches: None, return_hidden: false };
        let rows = Rows { length: hidden.shape().dims()[1], numbers: batch.numbers.as_ref() };
        let scope = self.positions.scope(Visible::but(padding.as_ref()), rows, cx)?;
        let shared = Shared::from(scope);
        let output = cx.at("decoder", |cx| self.layers.run(hidden, &shared, options, cx))?;
        let hidden = match &self.output_norm {
            Some(norm) if is_last => norm.forward(&output.carry, cx)?, // [B, L, D]
            _ => output.carry,
        };
        let hidden = match &self.project_out {
            Some(map) if is_last => map.forward(&hidden, cx)?, // [B, L, word_size]
            _ => hidden,
        };
        Ok(TextFlow { hidden, padding })
    }
}
