//! The gradients of a flat storage, from the first contribution of a backward pass to the reduced gradients of the
//! whole batch, which the optimizer reads.
//!
//! ```text
//! this rank    idle ─ backward ─▶ accumulating ─ finish_batch or finish_step ─▶ idle
//! whole batch  Idle ─ finish_batch ─▶ Reducing ─ finish_step ─▶ Reduced ─ clear_grads ─▶ Idle
//! ```
//!
//! Where gradients are reduced once a step, `Reducing` is left out. A tied parameter has two local sums, one for each
//! use, until they are reduced; `tied.rs` adds them.

use super::Flat;
use crate::error::Result;
use crate::shard::Span;
use crate::shard::collectives::Sums;
use bmtrain_core::autograd::SinkTarget;
use bmtrain_core::kernel::Fill;
use bmtrain_core::{Lane, Segment, Storage};

/// Use of a parameter from which a gradient comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::param) enum GradientUse {
    /// Its own place in the model.
    Own,
    /// The head of a model with tied embeddings.
    Tied,
}

#[derive(Debug)]
pub(super) struct Gradients {
    /// This rank's gradients that no collective has taken yet, by use; none while it is idle.
    pub(super) local: [Option<Accumulating>; 2],
    /// The gradients of all ranks.
    batch: BatchGradients,
    /// Parameters that have a gradient in `batch`.
    reduced: Vec<bool>,
    /// The backward pass of the step's last micro-batch has begun.
    is_last_micro_batch: bool,
}

/// Full gradients of this rank: of a micro-batch, or of all since the last step where they are reduced once a step.
#[derive(Debug)]
pub(super) struct Accumulating {
    pub(super) storage: Storage,
    /// Parameters that have a gradient; the ranges of the others are not initialized.
    pub(super) written: Vec<bool>,
}

/// Gradients of the whole batch, over ranks and micro-batches.
#[derive(Debug, Default)]
enum BatchGradients {
    /// None since the last step.
    #[default]
    Idle,
    /// This rank's shard of the micro-batches so far.
    Reducing(Sums),
    /// Complete, for the optimizer: the shard where optimizer state is sharded, else all.
    Reduced(Storage),
}

impl Gradients {
    pub(super) fn new(params: usize) -> Self {
        let reduced = vec![false; params];
        Gradients { local: [None, None], batch: BatchGradients::Idle, reduced, is_last_micro_batch: false }
    }
}

impl Flat {
    /// Whether parameter `index` has had a gradient since the last step.
    pub fn has_grad(&self, index: usize) -> bool {
        let gradients = self.gradients.borrow();
        let is_set = |flags: &[bool]| flags.get(index) == Some(&true);
        gradients.local.iter().flatten().any(|local| is_set(&local.written)) || is_set(&gradients.reduced)
    }

    /// Gradients of the whole batch after [`Flat::finish_step`], for the elements that
    /// [`OwnedPart::in_state`](super::OwnedPart::in_state) names.
    pub fn reduced(&self) -> Option<Storage> {
        match &self.gradients.borrow().batch {
            BatchGradients::Reduced(gradients) => Some(gradients.clone()),
            _ => None,
        }
    }

    /// Bytes of the gradients that an optimizer will get and that have no memory yet, from below; 0 where a recorded
    /// pass, whose backward pass comes first, counts on them already.
    pub(crate) fn gradients_to_come(&self) -> usize {
        let gradients = self.gradients.borrow();
        let has_memory =
            gradients.local.iter().any(Option::is_some) || !matches!(gradients.batch, BatchGradients::Idle);
        let is_trained = self.claimed.get() && self.trainable.iter().any(|trainable| trainable.get());
        if has_memory || !is_trained || self.has_recorded_pass() {
            return 0;
        }
        self.state_len() * self.grad_dtype.size()
    }

    /// Reduce the gradients of a micro-batch, where that is done for every micro-batch or this is the step's last one.
    /// Collective: the ranks have used the same parameters.
    pub fn finish_batch(&self) -> Result<()> {
        if !self.sharding.reduces_each_batch() {
            let is_last = self.gradients.borrow().is_last_micro_batch;
            return if is_last && self.sharding.is_shared() { self.reduce() } else { Ok(()) };
        }
        let Some(local) = self.sum_of_uses(self.take_local()?, false)? else { return Ok(()) };
        let batch = &mut self.gradients.borrow_mut().batch;
        let sums = if let BatchGradients::Reducing(sums) = std::mem::take(batch) { Some(sums) } else { None };
        *batch = BatchGradients::Reducing(self.collectives(self.grad_dtype).add_batch(&local, sums)?);
        Ok(())
    }

    /// The step's last micro-batch begins: where gradients are reduced once a step, a block's gradients may now be
    /// reduced while the block before it computes.
    pub(crate) fn begin_last_micro_batch(&self) {
        self.gradients.borrow_mut().is_last_micro_batch = true;
    }

    /// A copy of this rank's shard of the gradients of all ranks and micro-batches since the last step, and where in
    /// the storage it begins. For inspection: the step is not changed. Collective.
    pub fn gradient_sums(&self) -> Result<Option<(Storage, usize)>> {
        let sharding = &self.sharding;
        let first = if sharding.shards_state() { 0 } else { self.layout.owned(sharding.ranks.rank()).start };
        self.finish_batch()?;
        let (collectives, gradients) = (self.collectives(self.grad_dtype), self.gradients.borrow());
        let shard = match &gradients.batch {
            BatchGradients::Reduced(reduced) => return Ok(Some((reduced.clone(), first))),
            BatchGradients::Reducing(sums) => collectives.peek(sums)?,
            BatchGradients::Idle => {
                self.fill_unwritten(&gradients.local)?;
                let storage = |local: &Option<Accumulating>| local.as_ref().map(|local| local.storage.clone());
                let [own, tied] = &gradients.local;
                match self.sum_of_uses([storage(own), storage(tied)], true)? {
                    Some(sum) if sharding.is_shared() => Some(collectives.reduce_scatter(&sum)?),
                    sum => sum,
                }
            }
        };
        let backend = self.device.backend();
        backend.wait(Lane::Compute, backend.mark(Lane::Zero)?)?;
        Ok(shard.map(|shard| (shard, 0)))
    }

    /// Reduce the gradients of all micro-batches, for the optimizer. Collective.
    pub fn finish_step(&self) -> Result<()> {
        self.gradients.borrow_mut().is_last_micro_batch = false;
        if !self.sharding.reduces_each_batch() {
            return self.reduce();
        }
        self.finish_batch()?;
        let (collectives, sharding) = (self.collectives(self.grad_dtype), &self.sharding);
        let batch = std::mem::take(&mut self.gradients.borrow_mut().batch);
        let batch = match batch {
            BatchGradients::Reducing(sums) => match collectives.finish(sums)? {
                Some(shard) if sharding.is_shared() && !sharding.shards_state() => {
                    BatchGradients::Reduced(collectives.all_gather(&shard, Segment::Gradients)?)
                }
                Some(sum) => BatchGradients::Reduced(sum),
                None => BatchGradients::Idle,
            },
            finished => finished,
        };
        self.gradients.borrow_mut().batch = batch;
        Ok(())
    }

    /// Reduces the sum over this rank's micro-batches, where gradients are reduced once a step.
    fn reduce(&self) -> Result<()> {
        let Some(local) = self.sum_of_uses(self.take_local()?, false)? else { return Ok(()) };
        let (collectives, sharding) = (self.collectives(self.grad_dtype), &self.sharding);
        let sum = if sharding.shards_state() {
            collectives.reduce_scatter(&local)?
        } else {
            if sharding.is_shared() {
                collectives.all_reduce(&local)?;
            }
            local
        };
        let gradients = &mut *self.gradients.borrow_mut();
        match &gradients.batch {
            // The micro-batch that was declared the last one was followed by another contribution.
            BatchGradients::Reduced(earlier) => collectives.add(&sum, earlier)?,
            _ => gradients.batch = BatchGradients::Reduced(sum),
        }
        self.mark_all_reduced(gradients);
        Ok(())
    }

    /// Free all gradients.
    pub fn clear_grads(&self) {
        let mut gradients = self.gradients.borrow_mut();
        *gradients = Gradients::new(gradients.reduced.len());
    }

    /// Destination of the next contribution of a use to the gradient of parameter `index`.
    pub(in crate::param) fn grad_target(
        &self,
        index: usize,
        gradient_use: GradientUse,
    ) -> bmtrain_core::Result<SinkTarget> {
        let gradients = &mut *self.gradients.borrow_mut();
        let local = match &mut gradients.local[gradient_use as usize] {
            Some(local) => local,
            idle => {
                let len = self.layout.gathered_len();
                let storage = Storage::empty(&self.device, len, self.grad_dtype, Segment::Gradients)?;
                idle.insert(Accumulating { storage, written: vec![false; gradients.reduced.len()] })
            }
        };
        let Span { start, len } = self.span(index);
        let add = local.written.get_mut(index).is_some_and(|written| std::mem::replace(written, true));
        Ok(SinkTarget { storage: local.storage.clone(), start, len, add })
    }

    /// This rank's gradients by use, if there are any, complete for a sum: a parameter without a gradient, be it frozen
    /// or not used, has zeros. It may have one in another micro-batch of the step.
    fn take_local(&self) -> Result<[Option<Storage>; 2]> {
        let gradients = &mut *self.gradients.borrow_mut();
        self.fill_unwritten(&gradients.local)?;
        Ok([0, 1].map(|number| {
            let local = gradients.local[number].take()?;
            for (reduced, written) in gradients.reduced.iter_mut().zip(local.written) {
                *reduced |= written;
            }
            Some(local.storage)
        }))
    }

    /// Write zeros where parameters have no gradient, if something will be added there.
    fn fill_unwritten(&self, local: &[Option<Accumulating>; 2]) -> Result<()> {
        if !self.sharding.is_reduced() && self.ends.is_none() && local.iter().any(Option::is_none) {
            return Ok(());
        }
        for local in local.iter().flatten() {
            for (index, _) in local.written.iter().enumerate().filter(|(_, written)| !**written) {
                self.device.launch(Fill { value: 0.0, out: local.storage.view_mut(self.span(index).range())? })?;
            }
        }
        Ok(())
    }

    /// Marks as gradients of both stages what the two have all-reduced.
    fn mark_all_reduced(&self, gradients: &mut Gradients) {
        if self.ends.is_some() && !matches!(gradients.batch, BatchGradients::Idle) {
            gradients.reduced.fill(true);
        }
    }
}
