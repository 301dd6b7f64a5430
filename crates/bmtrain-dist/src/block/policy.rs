//! Activations kept of a block's forward pass, their place, and the sharding of its parameters: for all blocks of a
//! list, or for each by its index.

use crate::error::{Error, Result};
use crate::param::Builder;
use crate::shard::ZeroLevel;
use std::fmt;
use std::rc::Rc;

/// Activations kept of a block's forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Recompute {
    /// Everything its ops saved.
    #[default]
    Keep,
    /// Only its inputs; the block runs again on the backward pass.
    Checkpoint,
    /// Only the inputs of the first of this number of consecutive blocks. They run again together, and what they save
    /// is kept until their gradients are computed: `B / n` inputs and the activations of n blocks instead of B and one.
    /// 1 is [`Recompute::Checkpoint`].
    Every(usize),
    /// The inputs of attention alone, and everything that other ops saved. Attention keeps no probabilities in any
    /// case, so this saves the log-sum-exps and, where heads have norms or a rotation that is not in place, these; see
    /// [`checkpoint`](fn@super::checkpoint) for layers of one's own.
    Attention,
    /// Everything of the last blocks of a run, in the memory that the blocks' gradients take later, and only the inputs
    /// of those before them: about the peak of [`Recompute::Checkpoint`], with fewer blocks that run again. In later
    /// micro-batches of a step, whose gradients are there already, the same as [`Recompute::Checkpoint`].
    Auto,
}

/// Memory of the inputs of recomputed blocks between the forward and the backward pass. No bit depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum InputStore {
    /// On the device.
    #[default]
    Device,
    /// Each tensor-parallel rank keeps `1 / T` of them; the ranks all-gather them on the backward pass.
    Sharded,
    /// In the host's memory: they leave on the copy lane while the block computes, and return while the gradients
    /// of the block after it are computed. On the CPU the device's memory is the host's, and nothing moves.
    Host,
}

/// Policy of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockOptions {
    /// Activations that are kept.
    pub recompute: Recompute,
    /// Memory of the inputs of a recomputed block.
    pub inputs: InputStore,
    /// ZeRO level of the block's parameters; `None` is the level of
    /// [`BuilderOptions::sharding`](crate::param::BuilderOptions::sharding).
    pub zero: Option<ZeroLevel>,
}

impl From<Recompute> for BlockOptions {
    fn from(recompute: Recompute) -> Self {
        BlockOptions { recompute, ..BlockOptions::default() }
    }
}

impl BlockOptions {
    /// Refuse what does not fit the ranks.
    pub(super) fn check(&self, builder: &Builder) -> Result<()> {
        let refuse = |reason: &str| Err(Error::setting("block list", reason));
        if self.recompute == Recompute::Every(0) {
            return refuse("inputs of every 0th block: the number must be at least 1");
        }
        if self.inputs != InputStore::Device && matches!(self.recompute, Recompute::Keep | Recompute::Attention) {
            return refuse("where inputs are kept has no effect on blocks that are not recomputed");
        }
        if self.inputs == InputStore::Sharded && self.recompute == Recompute::Auto {
            return refuse("inputs sharded over tensor-parallel ranks, which Recompute::Auto lets decide one by one");
        }
        match (self.inputs, builder.tensor_ranks(), builder.token_ranks()) {
            (InputStore::Sharded, None, _) => refuse("inputs sharded over tensor-parallel ranks, and there is one"),
            (InputStore::Sharded, _, Some(_)) => {
                refuse("inputs sharded over tensor-parallel ranks, and sequence sharding has sharded them already")
            }
            _ => Ok(()),
        }
    }
}

/// Policy of the blocks of a list, by their index. [`BlockOptions`] and [`Recompute`] are policies for all alike.
#[derive(Clone)]
pub struct BlockPolicy(Rc<dyn Fn(usize) -> BlockOptions>);

impl BlockPolicy {
    /// The policy of each block is a function of its index in the list.
    pub fn by_index(options: impl Fn(usize) -> BlockOptions + 'static) -> Self {
        BlockPolicy(Rc::new(options))
    }

    /// The policy of a block.
    pub fn of(&self, index: usize) -> BlockOptions {
        (self.0)(index)
    }

    /// This policy with something changed for every block.
    #[must_use]
    pub fn map(self, change: impl Fn(BlockOptions) -> BlockOptions + 'static) -> Self {
        BlockPolicy::by_index(move |index| change(self.of(index)))
    }
}

impl Default for BlockPolicy {
    fn default() -> Self {
        BlockOptions::default().into()
    }
}

impl From<BlockOptions> for BlockPolicy {
    fn from(options: BlockOptions) -> Self {
        BlockPolicy::by_index(move |_| options)
    }
}

impl From<Recompute> for BlockPolicy {
    fn from(recompute: Recompute) -> Self {
        BlockOptions::from(recompute).into()
    }
}

impl fmt::Debug for BlockPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockPolicy({:?}, ..)", self.of(0))
    }
}
