//! The transformer block: the one unit of gathering, recomputation, release and pipelining.

mod backward;
pub mod bundle;
mod checkpoint;
mod inputs;
pub mod list;
mod policy;
mod ring;
mod run;
mod single;

pub use bundle::Bundle;
pub use checkpoint::checkpoint;
pub use list::{ListOutput, RunOptions, TransformerBlockList};
pub use policy::{BlockOptions, BlockPolicy, InputStore, Recompute};
pub use single::CheckpointBlock;

use crate::error::Result;
use bmtrain_core::Ctx;

/// One block of a list.
pub trait Block {
    /// Input and output of a block, e.g. the hidden states.
    type Carry: Bundle;
    /// Input shared by all blocks of the list, e.g. masks, a position bias, the encoder's output.
    type Shared: Bundle;
    /// The cache of a block between decoding steps, e.g. its KV cache; `()` for blocks without one.
    type Cache;

    /// The maths of the block, exactly as on a single device.
    fn forward(
        &self,
        carry: Self::Carry,
        shared: &Self::Shared,
        cache: Option<&mut Self::Cache>,
        cx: &mut Ctx,
    ) -> Result<Self::Carry>;

    /// The maths of the block at the last place of its list, whose output goes to what follows the list. A block may
    /// leave out what nothing there reads; by default it is [`Block::forward`].
    fn forward_last(
        &self,
        carry: Self::Carry,
        shared: &Self::Shared,
        cache: Option<&mut Self::Cache>,
        cx: &mut Ctx,
    ) -> Result<Self::Carry> {
        self.forward(carry, shared, cache, cx)
    }
}
