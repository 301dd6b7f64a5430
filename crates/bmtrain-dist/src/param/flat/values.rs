//! The values of a flat storage: at rest, gathered by a block or on demand, updated by an optimizer.

use super::Flat;
use crate::error::Result;
use crate::shard::ZeroLevel;
use bmtrain_core::backend::Mark;
use bmtrain_core::{Lane, Segment, Storage};

/// What is pending on the values, and where all of them are.
#[derive(Debug)]
pub(super) struct ValueState {
    /// When an update on another lane is done; `None` once the compute lane has waited for it.
    update: Option<Mark>,
    residence: Residence,
}

#[derive(Debug)]
enum Residence {
    /// At rest, on every rank: there is nothing to gather.
    Replicated,
    /// Nowhere: each rank stores its shard.
    AtRest,
    /// In a copy beside the shard, until every holder has released it.
    Gathered {
        copy: Storage,
        /// When it is complete; `None` once the compute lane has waited for it.
        ready: Option<Mark>,
        holds: usize,
    },
}

impl ValueState {
    pub(super) fn new(is_sharded: bool) -> Self {
        let residence = if is_sharded { Residence::AtRest } else { Residence::Replicated };
        ValueState { update: None, residence }
    }

    fn rest(&mut self) {
        if matches!(self.residence, Residence::Gathered { .. }) {
            self.residence = Residence::AtRest;
        }
    }
}

impl Flat {
    /// The values at rest: this rank's shard where values are sharded, else all of them. After [`Flat::settle`] they
    /// include the last update.
    pub fn values(&self) -> &Storage {
        &self.values
    }

    /// Record that another lane updates the values until this mark.
    pub fn updates_until(&self, mark: Mark) {
        self.state.borrow_mut().update = Some(mark);
    }

    /// Let the compute lane wait for an update on another lane.
    pub fn settle(&self) -> Result<()> {
        let update = &mut self.state.borrow_mut().update;
        if let Some(mark) = *update {
            self.device.backend().wait(Lane::Compute, mark)?;
            *update = None;
        }
        Ok(())
    }

    /// The full values, if they are gathered or replicated; the compute lane waits for them.
    pub fn full_values(&self) -> Result<Option<Storage>> {
        let ValueState { update, residence } = &mut *self.state.borrow_mut();
        let (full, pending) = match residence {
            Residence::AtRest => return Ok(None),
            Residence::Replicated => (self.values.clone(), *update),
            Residence::Gathered { copy, ready, .. } => (copy.clone(), *ready),
        };
        if let Some(mark) = pending {
            self.device.backend().wait(Lane::Compute, mark)?;
            // An all-gather begins after the update.
            *update = None;
            if let Residence::Gathered { ready, .. } = residence {
                *ready = None;
            }
        }
        Ok(Some(full))
    }

    pub(crate) fn wait_gathered(&self) -> Result<()> {
        self.full_values().map(drop)
    }

    /// Begin to gather the values, which stay gathered until every call has its [`Flat::release`]. Collective.
    pub fn gather(&self) -> Result<()> {
        let update = {
            let state = &mut *self.state.borrow_mut();
            match &mut state.residence {
                Residence::Replicated => return Ok(()),
                Residence::Gathered { holds, .. } => {
                    *holds += 1;
                    return Ok(());
                }
                Residence::AtRest => state.update,
            }
        };
        if let Some(mark) = update {
            self.device.backend().wait(Lane::Zero, mark)?;
        }
        let copy = self.collectives(self.dtype).all_gather(&self.values, Segment::Gathered)?;
        if let Some((block, census)) = &self.block
            && self.sharding.level == ZeroLevel::Three
        {
            census.enter(*block, &copy);
        }
        let ready = Some(self.device.backend().mark(Lane::Zero)?);
        self.state.borrow_mut().residence = Residence::Gathered { copy, ready, holds: 1 };
        Ok(())
    }

    /// Undo one [`Flat::gather`]; the last frees the copy.
    pub fn release(&self) {
        let mut state = self.state.borrow_mut();
        match &mut state.residence {
            Residence::Gathered { holds, .. } if *holds > 1 => *holds -= 1,
            _ => state.rest(),
        }
    }

    /// Whether there is a gathered copy beside the shard.
    pub fn is_gathered(&self) -> bool {
        matches!(self.state.borrow().residence, Residence::Gathered { .. })
    }

    /// The full values of a parameter; outside of blocks they are gathered on demand, until [`Flat::finish_batch`] or
    /// [`Flat::release_on_demand`].
    pub(in crate::param) fn gather_on_demand(&self) -> Result<Option<Storage>> {
        if self.block.is_none() && matches!(self.state.borrow().residence, Residence::AtRest) {
            self.gather()?;
        }
        self.full_values()
    }

    /// Release values that were gathered on demand.
    pub fn release_on_demand(&self) {
        if self.block.is_none() {
            self.state.borrow_mut().rest();
        }
    }

    /// A pass through the block was recorded: its gradients are not complete before its backward pass. With ZeRO-2 the
    /// values stay gathered until then.
    pub(crate) fn begin_pass(&self) -> Result<()> {
        self.recorded_passes.set(self.recorded_passes.get() + 1);
        if self.sharding.level == ZeroLevel::Two { self.gather() } else { Ok(()) }
    }

    /// The backward pass of a recorded pass is done, or will not come.
    pub(crate) fn end_pass(&self) {
        self.recorded_passes.set(self.recorded_passes.get().saturating_sub(1));
        if self.sharding.level == ZeroLevel::Two {
            self.release();
        }
    }

    pub(crate) fn has_recorded_pass(&self) -> bool {
        self.recorded_passes.get() > 0
    }

    /// All-gather the updated values, where every rank stores all values and updates a shard.
    pub fn publish(&self) -> Result<()> {
        self.state.borrow_mut().rest();
        let is_trained = self.trainable.iter().any(|trainable| trainable.get());
        if !self.sharding.shards_state() || self.sharding.shards_values() || !is_trained {
            return Ok(());
        }
        self.settle()?;
        let owned = self.layout.owned(self.sharding.ranks.rank());
        let shard = Storage::empty(&self.device, owned.len(), self.dtype, Segment::Workspace)?;
        let backend = self.device.backend();
        backend.copy(self.values.view(owned)?, shard.view_mut(0..shard.len())?, Lane::Compute)?;
        self.collectives(self.dtype).all_gather_into(&shard, &self.values)?;
        Ok(backend.wait(Lane::Compute, backend.mark(Lane::Zero)?)?)
    }

    /// Gather a storage that is sharded like optimizer state: for inspection and for single files.
    pub fn gather_state(&self, state: &Storage) -> Result<Storage> {
        if !self.sharding.shards_state() {
            return Ok(state.clone());
        }
        let full = self.collectives(state.dtype()).all_gather(state, Segment::Workspace)?;
        let backend = self.device.backend();
        backend.wait(Lane::Compute, backend.mark(Lane::Zero)?)?;
        Ok(full)
    }
}
