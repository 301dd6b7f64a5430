//! The flat storage of parameters that are gathered together: one block's parameters of one dtype and group.

mod gradients;

use super::Param;
use super::census::Census;
use crate::error::Result;
use crate::shard::exchange::{Exchange, Sums};
use crate::shard::{ShardLayout, Sharding, Span, ZeroLevel};
use bmtrain_core::backend::Mark;
use bmtrain_core::{DType, Device, Lane, Segment, Storage};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::{Rc, Weak};

/// A flat storage with its gradients, of which this rank may hold a shard only.
///
/// Values are whole where nothing is cut, else only between [`Flat::gather`] and [`Flat::release`]. Gradients are whole
/// from the first contribution of a backward pass until [`Flat::finish_batch`] hands them to the owners of their
/// parameters, or, where they are exchanged once a step, until [`Flat::finish_step`]. The memory that the activations
/// of a block leave behind serves its gradients.
#[derive(Debug)]
pub struct Flat {
    device: Device,
    layout: ShardLayout,
    dtype: DType,
    grad_dtype: DType,
    sharding: Sharding,
    /// The block that gathers it, by its number; what is outside of blocks is gathered when it is asked for.
    block: Option<(usize, Rc<Census>)>,
    /// Which parameters are trained now.
    trainable: Vec<Rc<Cell<bool>>>,
    /// Values at rest: this rank's shard where values are cut, else all.
    values: Storage,
    /// Until when another lane updates the values.
    update: Cell<Option<Mark>>,
    gathered: RefCell<Option<Gathered>>,
    /// Who needs the values whole now.
    holds: Cell<usize>,
    /// Passes through its block that were recorded and have not been walked back.
    uses: Cell<usize>,
    grads: RefCell<Option<Storage>>,
    /// Which parameters `grads` holds a gradient of.
    written: Vec<Cell<bool>>,
    sums: RefCell<Sums>,
    /// Which parameters have had a gradient since the last step.
    summed: Vec<Cell<bool>>,
    /// Gradients of the whole batch, for the optimizer: of the shard where state is cut, else whole.
    reduced: RefCell<Option<Storage>>,
    /// The last micro-batch of the step is walked back.
    closing: Cell<bool>,
    /// An optimizer updates parameters that lie here.
    claimed: Cell<bool>,
    /// All storages of the model.
    siblings: Siblings,
}

/// All storages of a model, which hold each other no longer than the parameters do.
pub(super) type Siblings = Rc<RefCell<Vec<Weak<Flat>>>>;

#[derive(Debug)]
struct Gathered {
    storage: Storage,
    /// When it is there; `None` once the compute lane has waited for it.
    ready: Option<Mark>,
}

/// What this rank updates of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedPart {
    /// Elements of the parameter.
    pub of_param: Range<usize>,
    /// Where they lie in [`Flat::values`].
    pub in_values: Range<usize>,
    /// Where they lie in optimizer state and in [`Flat::reduced`].
    pub in_state: Range<usize>,
}

impl Flat {
    /// Lay out and allocate a storage for these parameters, with gradients in `grad_dtype`.
    pub(super) fn new(
        device: &Device,
        sharding: &Sharding,
        (dtype, grad_dtype): (DType, DType),
        block: Option<(usize, Rc<Census>)>,
        members: &[Param],
        siblings: &Siblings,
    ) -> Result<Rc<Self>> {
        let lengths: Vec<usize> = members.iter().map(|param| param.local_shape().elements()).collect();
        let layout = ShardLayout::new(dtype, &lengths, sharding.ranks.size());
        let len = if sharding.cuts_values() { layout.shard_len() } else { layout.gathered_len() };
        // Zeros, so that the gaps between parameters are numbers too.
        let values = Storage::zeros(device, len, dtype, Segment::Parameters)?;
        let flags = || members.iter().map(|_| Cell::new(false)).collect();
        let flat = Rc::new(Flat {
            device: device.clone(),
            layout,
            dtype,
            grad_dtype,
            sharding: sharding.clone(),
            block,
            trainable: members.iter().map(Param::trainable_flag).collect(),
            values,
            update: Cell::default(),
            gathered: RefCell::default(),
            holds: Cell::new(0),
            uses: Cell::new(0),
            grads: RefCell::default(),
            written: flags(),
            sums: RefCell::default(),
            summed: flags(),
            reduced: RefCell::default(),
            closing: Cell::new(false),
            claimed: Cell::new(false),
            siblings: Rc::clone(siblings),
        });
        siblings.borrow_mut().push(Rc::downgrade(&flat));
        Ok(flat)
    }

    /// An optimizer updates parameters that lie here: their gradients are kept until its step.
    pub(crate) fn claim(&self) {
        self.claimed.set(true);
    }

    /// Whether an optimizer updates parameters that lie here.
    pub(crate) fn is_claimed(&self) -> bool {
        self.claimed.get()
    }

    /// All storages of the model, this one among them.
    pub(crate) fn siblings(&self) -> Vec<Rc<Flat>> {
        self.siblings.borrow().iter().filter_map(Weak::upgrade).collect()
    }

    /// Where the parameters lie when they are whole.
    pub fn layout(&self) -> &ShardLayout {
        &self.layout
    }

    /// Dtype of the values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How the storage is shared.
    pub fn sharding(&self) -> &Sharding {
        &self.sharding
    }

    /// The values at rest: this rank's shard where values are cut, else all of them. Behind [`Flat::settle`] they are
    /// what the last step left.
    pub fn values(&self) -> &Storage {
        &self.values
    }

    /// Elements of optimizer state for this storage on this rank.
    pub fn state_len(&self) -> usize {
        if self.sharding.cuts_state() { self.layout.shard_len() } else { self.layout.gathered_len() }
    }

    /// The part of parameter `index` that this rank updates; empty when it owns none.
    pub fn owned(&self, index: usize) -> OwnedPart {
        let (span, rank) = (self.span(index), self.sharding.ranks.rank());
        let of_param = if self.sharding.cuts_state() { self.layout.owned_part(index, rank) } else { 0..span.len };
        self.place(index, of_param)
    }

    /// The part of parameter `index` whose values this rank holds at rest, and its range in [`Flat::values`].
    pub fn at_rest(&self, index: usize) -> (Range<usize>, Range<usize>) {
        if self.sharding.cuts_values() {
            let part = self.owned(index);
            return (part.of_param, part.in_values);
        }
        let span = self.span(index);
        (0..span.len, span.range())
    }

    /// The part of parameter `index` that this rank counts in the norm of all gradients: no element is counted twice.
    pub fn counted(&self, index: usize) -> OwnedPart {
        self.place(index, self.layout.owned_part(index, self.sharding.ranks.rank()))
    }

    fn place(&self, index: usize, of_param: Range<usize>) -> OwnedPart {
        let start = self.span(index).start + of_param.start;
        let shard_start = self.layout.owned(self.sharding.ranks.rank()).start;
        let at = |cut: bool| {
            let start = if cut && !of_param.is_empty() { start - shard_start } else { start };
            if of_param.is_empty() { 0..0 } else { start..start + of_param.len() }
        };
        OwnedPart { in_values: at(self.sharding.cuts_values()), in_state: at(self.sharding.cuts_state()), of_param }
    }

    /// Note that a lane updates the values until this mark: who uses them next waits for it.
    pub fn updates_until(&self, mark: Mark) {
        self.update.set(Some(mark));
    }

    /// Let the compute lane wait for an update on another lane.
    ///
    /// # Errors
    /// The update failed.
    pub fn settle(&self) -> Result<()> {
        if let Some(mark) = self.update.get() {
            self.device.backend().wait(Lane::Compute, mark)?;
            self.update.set(None);
        }
        Ok(())
    }

    /// The values of all parameters, if they are whole now.
    ///
    /// # Errors
    /// A failed gather.
    pub fn whole(&self) -> Result<Option<Storage>> {
        if !self.sharding.cuts_values() {
            self.settle()?;
            return Ok(Some(self.values.clone()));
        }
        let mut gathered = self.gathered.borrow_mut();
        let Some(gathered) = gathered.as_mut() else { return Ok(None) };
        if let Some(ready) = gathered.ready {
            self.device.backend().wait(Lane::Compute, ready)?;
            gathered.ready = None;
            // The gather began behind the update.
            self.update.set(None);
        }
        Ok(Some(gathered.storage.clone()))
    }

    /// Begin to make the values whole, until as many calls of [`Flat::release`]. The other ranks have to do the same.
    ///
    /// # Errors
    /// No memory left; a failing exchange.
    pub fn gather(&self) -> Result<()> {
        self.holds.set(self.holds.get() + 1);
        if !self.sharding.cuts_values() || self.gathered.borrow().is_some() {
            return Ok(());
        }
        if let Some(mark) = self.update.get() {
            self.device.backend().wait(Lane::Zero, mark)?;
        }
        let storage = self.exchange(self.dtype).all_gather(&self.values, Segment::Gathered)?;
        if let Some((block, census)) = &self.block
            && self.sharding.level == ZeroLevel::Three
        {
            census.enter(*block, &storage);
        }
        let ready = Some(self.device.backend().mark(Lane::Zero)?);
        *self.gathered.borrow_mut() = Some(Gathered { storage, ready });
        Ok(())
    }

    /// One need of whole values less; after the last their memory is free again.
    pub fn release(&self) {
        self.holds.set(self.holds.get().saturating_sub(1));
        if self.holds.get() == 0 {
            *self.gathered.borrow_mut() = None;
        }
    }

    /// Whether the values take memory in whole beside the shard.
    pub fn is_gathered(&self) -> bool {
        self.gathered.borrow().is_some()
    }

    /// A pass through the block was recorded: its gradients are not complete before it is walked back. At level two the
    /// values stay whole until then.
    ///
    /// # Errors
    /// As [`Flat::gather`].
    pub(crate) fn begin_use(&self) -> Result<()> {
        self.uses.set(self.uses.get() + 1);
        if self.sharding.level == ZeroLevel::Two { self.gather() } else { Ok(()) }
    }

    /// It was walked back, or given up.
    pub(crate) fn end_use(&self) {
        self.uses.set(self.uses.get().saturating_sub(1));
        if self.sharding.level == ZeroLevel::Two {
            self.release();
        }
    }

    /// Whether no recorded pass will add to the gradients any more.
    pub(crate) fn is_unused(&self) -> bool {
        self.uses.get() == 0
    }

    /// The values for a parameter outside of blocks, which stay whole until [`Flat::finish_batch`] or
    /// [`Flat::put_away`].
    pub(super) fn bring(&self) -> Result<Option<Storage>> {
        if self.block.is_none() && self.holds.get() == 0 && self.sharding.cuts_values() {
            self.gather()?;
        }
        self.whole()
    }

    /// Give up whole values that nobody releases: those of parameters outside of blocks.
    pub fn put_away(&self) {
        if self.block.is_none() {
            self.holds.set(0);
            *self.gathered.borrow_mut() = None;
        }
    }

    /// Let every rank see what each has updated, where all hold all values and update a part.
    ///
    /// # Errors
    /// No memory left; a failing exchange.
    pub fn publish(&self) -> Result<()> {
        *self.gathered.borrow_mut() = None;
        let is_trained = self.trainable.iter().any(|trainable| trainable.get());
        if !self.sharding.cuts_state() || self.sharding.cuts_values() || !is_trained {
            return Ok(());
        }
        self.settle()?;
        let owned = self.layout.owned(self.sharding.ranks.rank());
        let shard = Storage::empty(&self.device, owned.len(), self.dtype, Segment::Workspace)?;
        let backend = self.device.backend();
        backend.copy(self.values.view(owned)?, shard.view_mut(0..shard.len())?, Lane::Compute)?;
        self.exchange(self.dtype).all_gather_into(&shard, &self.values)?;
        Ok(backend.wait(Lane::Compute, backend.mark(Lane::Zero)?)?)
    }

    /// A storage that is cut like optimizer state, whole: for looking at it and for single files.
    ///
    /// # Errors
    /// No memory left; a failing exchange.
    pub fn gather_state(&self, state: &Storage) -> Result<Storage> {
        if !self.sharding.cuts_state() {
            return Ok(state.clone());
        }
        let whole = self.exchange(state.dtype()).all_gather(state, Segment::Workspace)?;
        let backend = self.device.backend();
        backend.wait(Lane::Compute, backend.mark(Lane::Zero)?)?;
        Ok(whole)
    }

    /// The place of parameter `index` among whole values.
    pub(super) fn span(&self, index: usize) -> Span {
        self.layout.spans().get(index).copied().unwrap_or(Span { start: 0, len: 0 })
    }

    fn exchange(&self, dtype: DType) -> Exchange<'_> {
        Exchange { device: &self.device, sharding: &self.sharding, layout: &self.layout, dtype }
    }
}
