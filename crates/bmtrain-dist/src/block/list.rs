//! The list of blocks: how it is built and what a run of it may do. `run.rs` is the loop over its blocks, `backward.rs`
//! the loop in reverse.

use super::inputs::InputKeeper;
use super::{Block, BlockOptions, BlockPolicy};
use crate::error::{Error, Result};
use crate::param::{Builder, Flat, Param};
use bmtrain_core::Ctx;
use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;

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
    pub(super) keeper: InputKeeper,
}

impl<B> Clone for TransformerBlockList<B> {
    fn clone(&self) -> Self {
        let (entries, asked) = (Rc::clone(&self.entries), Rc::clone(&self.asked));
        TransformerBlockList { entries, asked, keeper: self.keeper.clone() }
    }
}

impl<B> fmt::Debug for TransformerBlockList<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransformerBlockList({} blocks)", self.entries.len())
    }
}

/// Options of a run.
pub struct RunOptions<'a, C> {
    /// Range of the blocks.
    pub range: Range<usize>,
    /// One cache per block of the range, for decoding; not together with a tape.
    pub caches: Option<&'a mut [C]>,
    /// Return the carry that entered each block, with gradient.
    pub return_hidden: bool,
}

/// Result of a run.
#[derive(Debug, Clone)]
pub struct ListOutput<C> {
    /// Output of the last block.
    pub carry: C,
    /// Input of each block, if it was asked for.
    pub hidden: Vec<C>,
}

impl<B: Block + 'static> TransformerBlockList<B> {
    /// Build `count` blocks named `{builder}.0`, `{builder}.1`, …, with a policy for all or for each by its index
    /// ([`BlockPolicy`]).
    ///
    /// A block may use parameters that were declared outside of blocks. It may not use parameters of another block,
    /// which are not gathered while it computes: for a block at several places there is
    /// [`TransformerBlockList::in_order`].
    ///
    /// # Errors
    /// What `build` returns; a policy that does not fit the ranks.
    pub fn build(
        builder: &Builder,
        count: usize,
        policy: impl Into<BlockPolicy>,
        mut build: impl FnMut(usize, &Builder) -> Result<B>,
    ) -> Result<Self> {
        let (policy, mut entries) = (policy.into(), Vec::with_capacity(count));
        for index in 0..count {
            entries.push(listed(&builder.index(index), policy.of(index), |inner| build(index, inner))?);
        }
        Ok(TransformerBlockList::new(builder, entries))
    }

    /// One block, named as the builder.
    pub(super) fn of_one(
        builder: &Builder,
        options: BlockOptions,
        build: impl FnOnce(&Builder) -> Result<B>,
    ) -> Result<Self> {
        let entry = listed(builder, options, build)?;
        Ok(TransformerBlockList::new(builder, vec![entry]))
    }

    fn new(builder: &Builder, entries: Vec<Rc<ListedBlock<B>>>) -> Self {
        TransformerBlockList { entries: Rc::new(entries), asked: builder.asked(), keeper: InputKeeper::new(builder) }
    }

    /// These blocks in another order, in which a block may appear more than once: `[0, 0, 1, 1]` runs the first twice
    /// and then the second twice. Its gradient is the sum over its places, reduced once; random numbers differ by
    /// place.
    pub fn in_order(&self, order: &[usize]) -> Result<Self> {
        let entry = |&number: &usize| match self.entries.get(number) {
            Some(entry) => Ok(Rc::clone(entry)),
            None => Err(Error::setting("block list", format!("block {number} of {} in the order", self.len()))),
        };
        let entries = order.iter().map(entry).collect::<Result<_>>()?;
        Ok(TransformerBlockList { entries: Rc::new(entries), ..self.clone() })
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

/// Build a block, and find the storages of its parameters.
fn listed<B>(
    builder: &Builder,
    options: BlockOptions,
    build: impl FnOnce(&Builder) -> Result<B>,
) -> Result<Rc<ListedBlock<B>>> {
    options.check(builder)?;
    let before = builder.count();
    let block = builder.with_level(options.zero).block(build)?;
    let mut flats: Vec<Rc<Flat>> = Vec::new();
    let flat_ones = |param: &&Param| param.block_format().is_none();
    for param in builder.since(before).iter().filter(flat_ones) {
        let flat = param.place()?.0;
        if !flats.iter().any(|known| Rc::ptr_eq(known, flat)) {
            flats.push(Rc::clone(flat));
        }
    }
    Ok(Rc::new(ListedBlock { block, flats, options }))
}
