//! A block by itself: [`CheckpointBlock`].

use super::{Block, BlockOptions, TransformerBlockList};
use crate::error::Result;
use crate::param::Builder;
use bmtrain_core::Ctx;

/// One block without a list, with the same recomputation and sharding: its parameters are gathered while it computes,
/// and its gradients are reduced after its backward pass.
///
/// Source: BMTrain's `CheckpointBlock`.
#[derive(Debug, Clone)]
pub struct CheckpointBlock<B> {
    list: TransformerBlockList<B>,
}

impl<B: Block + 'static> CheckpointBlock<B> {
    /// Build the block; its parameters have the builder's name.
    ///
    /// # Errors
    /// As [`TransformerBlockList::build`].
    pub fn build(
        builder: &Builder,
        options: impl Into<BlockOptions>,
        build: impl FnOnce(&Builder) -> Result<B>,
    ) -> Result<Self> {
        Ok(CheckpointBlock { list: TransformerBlockList::of_one(builder, options.into(), build)? })
    }

    /// The block.
    pub fn block(&self) -> &B {
        &self.list.entry(0).block
    }

    /// Run it. Its random numbers have the address of place 0 of a list at the context's site.
    pub fn forward(&self, carry: B::Carry, shared: &B::Shared, cx: &mut Ctx) -> Result<B::Carry> {
        self.list.forward(carry, shared, cx)
    }
}
