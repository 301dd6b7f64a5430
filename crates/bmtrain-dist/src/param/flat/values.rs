//! The values of a flat storage: at rest, gathered by a block or on demand, updated by an optimizer.

use super::{AtRest, Flat};
use crate::error::{Error, Result};
use crate::shard::ZeroLevel;
use crate::shard::host::HostValues;
use bmtrain_core::backend::Mark;
use bmtrain_core::{Lane, Segment, Storage};

/// Pending work on the values, and the place of all of them.
#[derive(Debug)]
pub(super) struct ValueState {
    /// Mark of an update on another lane; `None` once the compute lane has waited for it.
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
        /// Mark after which it is complete; `None` once the compute lane has waited for it.
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
    ///
    /// # Errors
    /// Where they are in the host's memory, see [`Flat::values_to_read`].
    pub fn values(&self) -> Result<&Storage> {
        match &self.at_rest {
            AtRest::Device(values) => Ok(values),
            AtRest::Host(_) => {
                let reason = "its values are offloaded to the host: AdamOffload updates them there, and nothing on the \
                              device does";
                Err(Error::setting("offloaded parameters", reason))
            }
        }
    }

    pub(crate) fn values_at_rest(&self) -> &AtRest {
        &self.at_rest
    }

    /// The values at rest, or a copy of them on the device if they are in the host's memory.
    pub fn values_to_read(&self) -> Result<Storage> {
        self.settle()?;
        match &self.at_rest {
            AtRest::Device(values) => Ok(values.clone()),
            AtRest::Host(host) => {
                let copy = self.fetch(host, Segment::Workspace)?;
                let backend = self.device.backend();
                backend.wait(Lane::Compute, backend.mark(Lane::Copy)?)?;
                Ok(copy)
            }
        }
    }

    /// Write to the values at rest, in the order of the compute lane.
    pub(in crate::param) fn write_values<E: From<Error>>(
        &self,
        write: impl FnOnce(&Storage) -> Result<(), E>,
    ) -> Result<(), E> {
        let values = self.values_to_read()?;
        write(&values)?;
        if let AtRest::Host(host) = &self.at_rest {
            let backend = self.device.backend();
            let mark = || -> Result<_> {
                backend.wait(Lane::Copy, backend.mark(Lane::Compute)?)?;
                host.store(values.view_on(0..values.len(), Lane::Copy)?, 0)?;
                Ok(backend.mark(Lane::Copy)?)
            };
            self.updates_until(mark()?);
        }
        Ok(())
    }

    /// A copy of values in the host's memory, complete in the order of the copy lane.
    fn fetch(&self, host: &HostValues, segment: Segment) -> Result<Storage> {
        let copy = Storage::empty_on(&self.device, host.len(), self.dtype, segment, Lane::Copy)?;
        host.fetch(0, copy.view_mut_on(0..copy.len(), Lane::Copy)?)?;
        Ok(copy)
    }

    /// Whether the values are elsewhere between gathers: on other ranks, or on the host.
    pub(in crate::param) fn is_gathered_to_use(&self) -> bool {
        self.sharding.shards_values() || matches!(self.at_rest, AtRest::Host(_))
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
            Residence::Replicated => (self.values()?.clone(), *update),
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
        let copy = self.gathered_copy()?;
        if let Some((block, census)) = &self.block
            && self.sharding.level == ZeroLevel::Three
        {
            census.enter(*block, &copy);
        }
        let ready = Some(self.device.backend().mark(Lane::Zero)?);
        self.state.borrow_mut().residence = Residence::Gathered { copy, ready, holds: 1 };
        Ok(())
    }

    /// All values, complete in the order of the zero lane.
    fn gathered_copy(&self) -> Result<Storage> {
        let host = match &self.at_rest {
            AtRest::Device(values) => return self.collectives(self.dtype).all_gather(values, Segment::Gathered),
            AtRest::Host(host) => host,
        };
        let shard = self.fetch(host, Segment::Gathered)?;
        let backend = self.device.backend();
        backend.wait(Lane::Zero, backend.mark(Lane::Copy)?)?;
        if self.sharding.is_shared() {
            self.collectives(self.dtype).all_gather(&shard, Segment::Gathered)
        } else {
            Ok(shard)
        }
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

    /// [`Flat::share_values`] after an optimizer step, which changes nothing of a storage without a trained parameter.
    pub(crate) fn publish(&self) -> Result<()> {
        match self.trainable.iter().any(|trainable| trainable.get()) {
            true => self.share_values(),
            false => {
                self.state.borrow_mut().rest();
                Ok(())
            }
        }
    }

    /// All-gather the values that each rank changed of its shard, where every rank stores all values.
    pub fn share_values(&self) -> Result<()> {
        self.state.borrow_mut().rest();
        if !self.sharding.shards_state() || self.sharding.shards_values() {
            return Ok(());
        }
        self.settle()?;
        let owned = self.layout.owned(self.sharding.ranks.rank());
        let shard = Storage::empty(&self.device, owned.len(), self.dtype, Segment::Workspace)?;
        let backend = self.device.backend();
        let values = self.values()?;
        backend.copy(values.view(owned)?, shard.view_mut(0..shard.len())?, Lane::Compute)?;
        self.collectives(self.dtype).all_gather_into(&shard, values)?;
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
