//! The list of blocks: an explicit loop forward, one node on the outer tape, the loop in reverse on the backward pass.
//!
//! Defines [`TransformerBlockList`] with how it is built and run; `record` is the run on a tape, `backward` the
//! backward pass.

use super::Block;
use super::ring::Ring;
use crate::error::{Error, Result};
use crate::param::{Builder, Flat};
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
}

/// Policy of one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockOptions {
    /// Keep or recompute.
    pub recompute: Recompute,
}

/// A block and what the list has to know of it.
pub(super) struct Entry<B> {
    pub(super) block: B,
    /// The storages of its parameters.
    pub(super) flats: Vec<Rc<Flat>>,
    pub(super) options: BlockOptions,
}

/// Blocks of one kind, run one after the other.
///
/// Keeping and recomputing give the same bits: the recomputation draws the same random numbers, as they are addressed
/// by the place in the list.
pub struct TransformerBlockList<B> {
    /// By place; a block may have several places.
    entries: Rc<Vec<Rc<Entry<B>>>>,
    /// Counts how often trained parameters were asked for.
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

/// What a run of a list may do besides running.
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
    /// A block may use parameters that were declared outside of blocks. It may not use those of another block, which
    /// are not whole while it works: for a block in several places there is [`TransformerBlockList::in_order`].
    ///
    /// # Errors
    /// Those of `build`.
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
            for param in &builder.since(before) {
                let flat = param.place()?.0;
                if !flats.iter().any(|known| Rc::ptr_eq(known, flat)) {
                    flats.push(Rc::clone(flat));
                }
            }
            entries.push(Rc::new(Entry { block, flats, options }));
        }
        Ok(TransformerBlockList { entries: Rc::new(entries), asked: builder.asked() })
    }

    /// The same blocks in another order, in which a block may stand more than once: `[0, 0, 1, 1]` runs the first twice
    /// and then the second twice. Its gradient is the sum over its places, exchanged once; random numbers differ by
    /// place.
    ///
    /// # Errors
    /// A number that no block has.
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

    /// The blocks, place by place.
    pub fn iter(&self) -> impl Iterator<Item = &B> {
        self.entries.iter().map(|entry| &entry.block)
    }

    /// Run all blocks.
    ///
    /// # Errors
    /// Those of the blocks.
    pub fn forward(&self, carry: B::Carry, shared: &B::Shared, cx: &mut Ctx) -> Result<B::Carry> {
        let options = RunOptions { range: 0..self.len(), caches: None, return_hidden: false };
        self.run(carry, shared, options, cx).map(|output| output.carry)
    }

    /// Run some blocks.
    ///
    /// # Errors
    /// Those of the blocks; a range outside the list; caches together with a tape, or another number of them.
    pub fn run(
        &self,
        carry: B::Carry,
        shared: &B::Shared,
        mut options: RunOptions<'_, B::Cache>,
        cx: &mut Ctx,
    ) -> Result<ListOutput<B::Carry>> {
        let range = options.range.clone();
        if range.start > range.end || range.end > self.len() {
            return Err(Error::setting("block list", format!("blocks {range:?} of {}", self.len())));
        }
        if let Some(caches) = &options.caches {
            if caches.len() != range.len() {
                return Err(Error::setting(
                    "block list",
                    format!("{} caches for {} blocks", caches.len(), range.len()),
                ));
            }
            if cx.is_recording() {
                return Err(Error::setting("block list", "caches are for inference: run without a tape"));
            }
        }
        if range.is_empty() {
            return Ok(ListOutput { carry, hidden: Vec::new() });
        }
        if cx.is_recording() {
            return self.record(carry, shared, range, options.return_hidden, cx);
        }
        let (mut carry, mut hidden, mut ring) = (carry, Vec::new(), Ring::default());
        for index in range.clone() {
            if options.return_hidden {
                hidden.push(carry.clone());
            }
            let cache = options.caches.as_mut().and_then(|caches| caches.get_mut(index - range.start));
            let block = &self.entry(index).block;
            ring.enter(index, (index + 1 < range.end).then_some(index + 1), |index| self.flats(index))?;
            carry = cx.at_index(index, |cx| block.forward(carry, shared, cache, cx))?;
            ring.leave(index);
        }
        Ok(ListOutput { carry, hidden })
    }
}

impl<B> TransformerBlockList<B> {
    /// The block at a place inside the list.
    pub(super) fn entry(&self, place: usize) -> &Entry<B> {
        &self.entries[place]
    }

    /// The storages of the block at a place.
    pub(super) fn flats(&self, place: usize) -> Vec<Rc<Flat>> {
        self.entries.get(place).map_or_else(Vec::new, |entry| entry.flats.clone())
    }
}
