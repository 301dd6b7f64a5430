//! A model, written once as stages: embed, block lists, head. A whole forward pass, a pass observed layer by layer and
//! a pipeline stage all come from the same three pieces.

use crate::block::Bundle;
use crate::error::{Error, Result};
use crate::param::Parameters;
use bmtrain_core::Ctx;
use std::ops::Range;

/// One stack of blocks inside a model, with what belongs before its first and behind its last block (an encoder's final
/// norm, a decoder's embedding).
pub trait Section<M: Model + ?Sized> {
    /// Number of blocks.
    fn len(&self) -> usize;

    /// Whether there is no block.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Run the blocks of `range`; with the first of them what comes before it, with the last what comes behind.
    ///
    /// # Errors
    /// Those of the blocks.
    fn run(&self, range: Range<usize>, flow: M::Flow, batch: &M::Batch, cx: &mut Ctx) -> Result<M::Flow>;
}

/// A model.
pub trait Model {
    /// What goes in, on the device.
    type Batch;
    /// What flows from embed through the blocks to the head, and between pipeline stages.
    type Flow: Bundle;
    /// What comes out.
    type Output;

    /// All parameters.
    fn parameters(&self) -> &Parameters;

    /// From ids to the input of the first block.
    ///
    /// # Errors
    /// Ids outside their tables, shapes that do not fit.
    fn embed(&self, batch: &Self::Batch, cx: &mut Ctx) -> Result<Self::Flow>;

    /// The stacks of blocks, in order.
    fn sections(&self) -> Vec<&dyn Section<Self>>;

    /// From the output of the last block to logits and, with labels, the loss.
    ///
    /// # Errors
    /// Labels out of range, shapes that do not fit.
    fn head(&self, flow: Self::Flow, batch: &Self::Batch, cx: &mut Ctx) -> Result<Self::Output>;

    /// Number of blocks over all sections.
    fn blocks(&self) -> usize {
        self.sections().iter().map(|section| section.len()).sum()
    }

    /// Run the blocks of `range`, numbered through all sections.
    ///
    /// # Errors
    /// Those of the blocks; a range outside.
    fn run_blocks(
        &self,
        range: Range<usize>,
        flow: Self::Flow,
        batch: &Self::Batch,
        cx: &mut Ctx,
    ) -> Result<Self::Flow> {
        let (mut flow, mut first) = (flow, 0);
        if range.start > range.end || range.end > self.blocks() {
            return Err(Error::setting("model", format!("blocks {range:?} of {}", self.blocks())));
        }
        for section in self.sections() {
            let last = first + section.len();
            let part = range.start.clamp(first, last) - first..range.end.clamp(first, last) - first;
            if !part.is_empty() {
                flow = section.run(part, flow, batch, cx)?;
            }
            first = last;
        }
        Ok(flow)
    }

    /// The whole model.
    ///
    /// # Errors
    /// Those of its stages.
    fn forward(&self, batch: &Self::Batch, cx: &mut Ctx) -> Result<Self::Output> {
        let flow = self.embed(batch, cx)?;
        let flow = self.run_blocks(0..self.blocks(), flow, batch, cx)?;
        let output = self.head(flow, batch, cx)?;
        self.put_away(cx);
        Ok(output)
    }

    /// Without a backward pass, nobody needs the whole parameters any more.
    fn put_away(&self, cx: &Ctx) {
        if !cx.is_recording() {
            self.parameters().release();
        }
    }

    /// The whole model, showing what enters the first block and what leaves each block.
    ///
    /// # Errors
    /// Those of its stages and of `observe`.
    fn forward_observed(
        &self,
        batch: &Self::Batch,
        cx: &mut Ctx,
        observe: &mut dyn FnMut(usize, &Self::Flow) -> Result<()>,
    ) -> Result<Self::Output> {
        let mut flow = self.embed(batch, cx)?;
        observe(0, &flow)?;
        for block in 0..self.blocks() {
            flow = self.run_blocks(block..block + 1, flow, batch, cx)?;
            observe(block + 1, &flow)?;
        }
        let output = self.head(flow, batch, cx)?;
        self.put_away(cx);
        Ok(output)
    }
}
