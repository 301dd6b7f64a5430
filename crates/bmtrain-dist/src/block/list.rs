//! The list of blocks: how it is built and what a run of it may do. `run.rs` is the loop over its blocks, `backward.rs`
//! the loop in reverse.

use super::Block;
use crate::error::{Error, Result};
use crate::param::{Builder, Flat, Param};
use bmtrain_core::Ctx;
use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

/// What is kept of a block's forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Recompute {
    /// Everything its ops saved.
    #[default]
    Keep,
    /// Only its inputs; the block runs again on the backward pass.
    Checkpoint,
    /// Everything of the last blocks of a run, in the memory that the blocks' gradients take later, and only the inputs
    /// of those before them: about the peak of [`Recompute::Checkpoint`], with fewer blocks that run again. In later
    /// micro-batches of a step, whose gradients are there already, the same as [`Recompute::Checkpoint`].
    Auto,
}

/// Policy of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockOptions {
    /// What is kept.
    pub recompute: Recompute,
}

pub(super) struct ListedBlock<B> {
    pub(super) block: B,
    pub(super) flats: Vec<Rc<Flat>>,
    pub(super) options: BlockOptions,
}

/// Blocks of one kind, run one after the other.
///
/// What is kept changes no bit: dropout in the recomputation samples the same random numbers, as they are addressed by
/// the place in the list.
pub struct TransformerBlockList<B> {
    /// By place; a block may have several places.
    entries: Rc<Vec<Rc<ListedBlock<B>>>>,
    /// The counter of uses of trained parameters.
    pub(super) asked: Rc<Cell<u64>>,
}

impl<B> Clone for TransformerBlockList<B> {
    fn clone(&self) -> Self {
        TransformerBlockList { entries: Rc::clone(&self.entries), asked: Rc::clone(&self.asked) }
    }
}

impl<B> fmt::Debug for TransformerBlockList<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransformerBlockList({} blocks)", self.entries.len())
    }
}

/// Options of a run.
pub struct RunOptions<'a, C> {
    /// Which blocks.
    pub range: Range<usize>,
    /// One cache per block of the range, for decoding; not together with a tape.
    pub caches: Option<&'a mut [C]>,
    /// Return the carry that entered each block, with gradient.
    pub return_hidden: bool,
}

/// Result of a run.
#[derive(Debug, Clone)]
pub struct ListOutput<C> {
    /// What left the last block.
    pub carry: C,
    /// What entered each block, if it was asked for.
    pub hidden: Vec<C>,
}

impl<B: Block + 'static> TransformerBlockList<B> {
    /// Build `count` blocks named `{builder}.0`, `{builder}.1`, …
    ///
    /// A block may use parameters that were declared outside of blocks. It may not use parameters of another block,
    /// which are not gathered while it computes: for a block at several places there is
    /// [`TransformerBlockList::in_order`].
    pub fn build(
        builder: &Builder,
        count: usize,
        options: BlockOptions,
        mut build: impl FnMut(usize, &Builder) -> Result<B>,
    ) -> Result<Self> {
        let mut entries = Vec::with_capacity(count);
        for index in 0..count {
            let before = builder.count();
            let block = builder.index(index).block(|inner| build(index, inner))?;
            let mut flats: Vec<Rc<Flat>> = Vec::new();
            let flat_ones = |param: &&Param| param.block_format().is_none();
            for param in builder.since(before).iter().filter(flat_ones) {
                let flat = param.place()?.0;
                if !flats.iter().any(|known| Rc::ptr_eq(known, flat)) {
                    flats.push(Rc::clone(flat));
                }
            }
            entries.push(Rc::new(ListedBlock { block, flats, options }));
        }
        Ok(TransformerBlockList { entries: Rc::new(entries), asked: builder.asked() })
    }

    /// The same blocks in another order, in which a block may appear more than once: `[0, 0, 1, 1]` runs the first
    /// twice and then the second twice. Its gradient is the sum over its places, reduced once; random numbers differ by
    /// place.
    pub fn in_order(&self, order: &[usize]) -> Result<Self> {
        let entry = |&number: &usize| match self.entries.get(number) {
            Some(entry) => Ok(Rc::clone(entry)),
            None => Err(Error::setting("block list", format!("block {number} of {} in the order", self.len()))),
        };
        let entries = order.iter().map(entry).collect::<Result<_>>()?;
        Ok(TransformerBlockList { entries: Rc::new(entries), asked: Rc::clone(&self.asked) })
    }

    /// Number of places.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The blocks, in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = &B> {
        self.entries.iter().map(|entry| &entry.block)
    }

    /// Run all blocks.
    pub fn forward(&self, carry: B::Carry, shared: &B::Shared, cx: &mut Ctx) -> Result<B::Carry> {
        let options = RunOptions { range: 0..self.len(), caches: None, return_hidden: false };
        self.run(carry, shared, options, cx).map(|output| output.carry)
    }

    /// Refuse options that do not fit the list or the context.
    pub(super) fn check(&self, options: &RunOptions<'_, B::Cache>, cx: &Ctx) -> Result<()> {
        let refuse = |reason: String| Err(Error::setting("block list", reason));
        let range = &options.range;
        if range.start > range.end || range.end > self.len() {
            return refuse(format!("blocks {range:?} of {}", self.len()));
        }
        match &options.caches {
            Some(caches) if caches.len() != range.len() => {
                refuse(format!("{} caches for {} blocks", caches.len(), range.len()))
            }
            Some(_) if cx.is_recording() => refuse("caches are for inference: run without a tape".into()),
            _ => Ok(()),
        }
    }
}

impl<B> TransformerBlockList<B> {
    pub(super) fn entry(&self, place: usize) -> &ListedBlock<B> {
        &self.entries[place]
    }

    /// Bytes of gradients that parameters of these blocks do not have yet and get until the optimizer's step.
    pub(super) fn gradients_to_come(&self, places: Range<usize>) -> usize {
        let mut flats: Vec<&Rc<Flat>> = Vec::new();
        for flat in places.flat_map(|place| &self.entries[place].flats) {
            if !flats.iter().any(|known| Rc::ptr_eq(known, flat)) {
                flats.push(flat);
            }
        }
        flats.into_iter().map(|flat| flat.gradients_to_come()).sum()
    }

    pub(super) fn flats(&self, place: usize) -> Vec<Rc<Flat>> {
        self.entries.get(place).map_or_else(Vec::new, |entry| entry.flats.clone())
    }
}
