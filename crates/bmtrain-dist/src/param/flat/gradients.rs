//! The gradients of a flat storage, from the first contribution of a backward pass to the reduced gradients of the
//! whole batch, which the optimizer reads.
//!
//! ```text
//! this rank    idle ─ backward ─▶ accumulating ─ finish_batch or finish_step ─▶ idle
//! whole batch  Idle ─ finish_batch ─▶ Reducing ─ finish_step ─▶ Reduced ─ clear_grads ─▶ Idle
//! ```
//!
//! Where gradients are reduced once a step, `Reducing` is left out.

use super::Flat;
use crate::error::Result;
use crate::shard::Span;
use crate::shard::collectives::Sums;
use bmtrain_core::autograd::SinkTarget;
use bmtrain_core::kernel::Fill;
use bmtrain_core::{Lane, Segment, Storage};

#[derive(Debug)]
pub(super) struct Gradients {
    /// This rank's gradients that no collective has taken yet; none while it is idle.
    local: Option<Accumulating>,
    /// The gradients of all ranks.
    batch: BatchGradients,
    /// Which parameters `batch` has a gradient of.
    reduced: Vec<bool>,
    /// The backward pass of the step's last micro-batch has begun.
    is_last_micro_batch: bool,
}

/// Full gradients of this rank: of a micro-batch, or of all since the last step where they are reduced once a step.
#[derive(Debug)]
struct Accumulating {
    storage: Storage,
    /// Which parameters have a gradient; the ranges of the others are not initialized.
    written: Vec<bool>,
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
        Gradients { local: None, batch: BatchGradients::Idle, reduced, is_last_micro_batch: false }
    }
}

impl Flat {
    /// Whether parameter `index` has had a gradient since the last step.
    pub fn has_grad(&self, index: usize) -> bool {
        let gradients = self.gradients.borrow();
        let is_set = |flags: &[bool]| flags.get(index) == Some(&true);
        gradients.local.as_ref().is_some_and(|local| is_set(&local.written)) || is_set(&gradients.reduced)
    }

    /// Gradients of this rank's micro-batch, or of all since the last step where they are reduced once a step.
    pub fn grads(&self) -> Option<Storage> {
        self.gradients.borrow().local.as_ref().map(|local| local.storage.clone())
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
        let has_memory = gradients.local.is_some() || !matches!(gradients.batch, BatchGradients::Idle);
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
        let Some(local) = self.take_local()? else { return Ok(()) };
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
        let shard = match (&gradients.batch, &gradients.local) {
            (BatchGradients::Reduced(reduced), _) => return Ok(Some((reduced.clone(), first))),
            (BatchGradients::Reducing(sums), _) => collectives.peek(sums)?,
            (BatchGradients::Idle, Some(local)) if sharding.is_shared() => {
                self.fill_unwritten(local)?;
                Some(collectives.reduce_scatter(&local.storage)?)
            }
            (BatchGradients::Idle, local) => local.as_ref().map(|local| local.storage.clone()),
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
        let batch = &mut self.gradients.borrow_mut().batch;
        *batch = match std::mem::take(batch) {
            BatchGradients::Reducing(sums) => match collectives.finish(sums)? {
                Some(shard) if sharding.is_shared() && !sharding.shards_state() => {
                    BatchGradients::Reduced(collectives.all_gather(&shard, Segment::Gradients)?)
                }
                Some(sum) => BatchGradients::Reduced(sum),
                None => BatchGradients::Idle,
            },
            finished => finished,
        };
        Ok(())
    }

    /// Where gradients are reduced once a step: reduce the sum over this rank's micro-batches.
    fn reduce(&self) -> Result<()> {
        let Some(local) = self.take_local()? else { return Ok(()) };
        let (collectives, sharding) = (self.collectives(self.grad_dtype), &self.sharding);
        let sum = if sharding.shards_state() {
            collectives.reduce_scatter(&local)?
        } else {
            if sharding.is_shared() {
                collectives.all_reduce(&local)?;
            }
            local
        };
        let batch = &mut self.gradients.borrow_mut().batch;
        match batch {
            // The micro-batch that was declared the last one was followed by another contribution.
            BatchGradients::Reduced(earlier) => collectives.add(&sum, earlier)?,
            _ => *batch = BatchGradients::Reduced(sum),
        }
        Ok(())
    }

    /// Free all gradients.
    pub fn clear_grads(&self) {
        let mut gradients = self.gradients.borrow_mut();
        *gradients = Gradients::new(gradients.reduced.len());
    }

    /// Where the next contribution to the gradient of parameter `index` goes.
    pub(in crate::param) fn grad_target(&self, index: usize) -> bmtrain_core::Result<SinkTarget> {
        let gradients = &mut *self.gradients.borrow_mut();
        let local = match &mut gradients.local {
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

    /// This rank's gradients, if there are any, complete for a collective: a parameter without a gradient, be it frozen
    /// or not used, has zeros. It may have one in another micro-batch of the step.
    fn take_local(&self) -> Result<Option<Storage>> {
        let gradients = &mut *self.gradients.borrow_mut();
        let Some(local) = gradients.local.take() else { return Ok(None) };
        self.fill_unwritten(&local)?;
        for (reduced, written) in gradients.reduced.iter_mut().zip(local.written) {
            *reduced |= written;
        }
        Ok(Some(local.storage))
    }

    /// Write zeros where parameters have no gradient.
    fn fill_unwritten(&self, local: &Accumulating) -> Result<()> {
        let unwritten = local.written.iter().enumerate().filter(|(_, written)| !**written);
        for (index, _) in unwritten.filter(|_| self.sharding.is_reduced()) {
            self.device.launch(Fill { value: 0.0, out: local.storage.view_mut(self.span(index).range())? })?;
        }
        Ok(())
    }
}
