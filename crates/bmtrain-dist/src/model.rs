//! A model, written once as embedding, stacks of blocks and head. A whole forward pass, a pass that observes the hidden
//! states and a pipeline stage are made of the same three parts.

use crate::block::Bundle;
use crate::edge::Edge;
use crate::error::{Error, Result};
use crate::param::Parameters;
use bmtrain_core::Ctx;
use std::ops::Range;

/// Something with parameters.
pub trait Module {
    /// All parameters.
    fn parameters(&self) -> &Parameters;
}

/// A model.
///
/// [`Model::forward`] is [`embed`](Model::embed), then [`run_stack`](Model::run_stack) for each of the
/// [`stacks`](Model::stacks), then [`head`](Model::head), then [`release`](Model::release):
///
/// ```
/// # use bmtrain_dist::{Model, Result, bmtrain_core::Ctx};
/// # fn forward<M: Model>(model: &M, batch: &M::Batch, cx: &mut Ctx) -> Result<M::Output> {
/// let mut flow = model.embed(batch, cx)?;
/// for (stack, blocks) in model.stacks().into_iter().enumerate().filter(|(_, blocks)| *blocks > 0) {
///     flow = model.run_stack(stack, 0..blocks, flow, batch, cx)?;
/// }
/// let output = model.head(flow, batch, cx)?;
/// model.release(cx);
/// Ok(output)
/// # }
/// ```
pub trait Model: Module {
    /// The input, on the device.
    type Batch;
    /// The hidden states: what embed passes to the blocks, the blocks to the head, and a pipeline stage to the next.
    type Flow: Bundle;
    /// The output of the head.
    type Output;

    /// From token ids to the input of the first block.
    fn embed(&self, batch: &Self::Batch, cx: &mut Ctx) -> Result<Self::Flow>;

    /// Number of blocks of each stack, in the order in which they run: one for an encoder or a decoder, two for an
    /// encoder-decoder.
    fn stacks(&self) -> Vec<usize>;

    /// Run the blocks `range` of a stack; with its last block also what follows it, such as a norm.
    fn run_stack(
        &self,
        stack: usize,
        range: Range<usize>,
        flow: Self::Flow,
        batch: &Self::Batch,
        cx: &mut Ctx,
    ) -> Result<Self::Flow>;

    /// From the output of the last block to logits and, with labels, the loss.
    fn head(&self, flow: Self::Flow, batch: &Self::Batch, cx: &mut Ctx) -> Result<Self::Output>;

    /// The flow that enters block `block`, counted through all stacks, where a pipeline stage begins there: each of its
    /// variables taken from the edge, in the order of [`Bundle::vars`]. `block` is the number of blocks where the head
    /// is on a stage of its own.
    ///
    /// # Errors
    /// A model that does not implement it cannot be divided into stages.
    fn receive(&self, block: usize, _batch: &Self::Batch, _edge: &mut Edge<'_>) -> Result<Self::Flow> {
        let reason =
            format!("the model does not declare what enters block {block}: implement Model::receive, or use one stage");
        Err(Error::setting("pipeline", reason))
    }

    /// Number of blocks of all stacks.
    fn blocks(&self) -> usize {
        self.stacks().iter().sum()
    }

    /// Run the blocks `range`, counted through all stacks.
    fn run_blocks(
        &self,
        range: Range<usize>,
        mut flow: Self::Flow,
        batch: &Self::Batch,
        cx: &mut Ctx,
    ) -> Result<Self::Flow> {
        if range.start > range.end || range.end > self.blocks() {
            return Err(Error::setting("model", format!("blocks {range:?} of {}", self.blocks())));
        }
        let mut first = 0;
        for (stack, count) in self.stacks().into_iter().enumerate() {
            let within = |block: usize| block.clamp(first, first + count) - first;
            let blocks = within(range.start)..within(range.end);
            if !blocks.is_empty() {
                flow = self.run_stack(stack, blocks, flow, batch, cx)?;
            }
            first += count;
        }
        Ok(flow)
    }

    /// The whole model.
    fn forward(&self, batch: &Self::Batch, cx: &mut Ctx) -> Result<Self::Output>;

    /// Without a backward pass the gathered parameters are not needed any more.
    fn release(&self, cx: &Ctx) {
        if !cx.is_recording() {
            self.parameters().release();
        }
    }

    /// The whole model; `observe` is called with the input of the first block and with the output of each block.
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
        self.release(cx);
        Ok(output)
    }
}
