//! The gradients of a flat storage: from the first contribution of a backward pass to those of the whole batch, which
//! the optimizer reads.

use super::Flat;
use crate::error::Result;
use crate::shard::Span;
use crate::shard::exchange::Sums;
use bmtrain_core::autograd::SinkTarget;
use bmtrain_core::kernel::Fill;
use bmtrain_core::{Lane, Segment, Storage};
use std::cell::Cell;

impl Flat {
    /// Whether parameter `index` has had a gradient since the last step.
    pub fn has_grad(&self, index: usize) -> bool {
        let is_set = |flags: &[Cell<bool>]| flags.get(index).is_some_and(Cell::get);
        is_set(&self.written) || is_set(&self.summed)
    }

    /// Gradients of this rank's micro-batch, or of all since the last step where they are exchanged once a step.
    pub fn grads(&self) -> Option<Storage> {
        self.grads.borrow().clone()
    }

    /// Gradients of the whole batch after [`Flat::finish_step`], for the elements that
    /// [`OwnedPart::in_state`](super::OwnedPart::in_state) names.
    pub fn reduced(&self) -> Option<Storage> {
        self.reduced.borrow().clone()
    }

    /// Hand the gradients of a micro-batch to the owners of the parameters, where that is done for every micro-batch or
    /// this is the last one of the step. The ranks have to have used the same parameters.
    ///
    /// # Errors
    /// No memory left; a failing exchange.
    pub fn finish_batch(&self) -> Result<()> {
        if !self.sharding.exchanges_each_batch() {
            return if self.closing.get() && self.sharding.is_shared() { self.reduce() } else { Ok(()) };
        }
        match self.take_grads()? {
            Some(whole) => self.exchange(self.grad_dtype).add_batch(&whole, &mut self.sums.borrow_mut()),
            None => Ok(()),
        }
    }

    /// From now on until the step, gradients that are complete are those of the whole batch: where they are exchanged
    /// once a step, a block's are while the block before it computes.
    pub(crate) fn close_step(&self) {
        self.closing.set(true);
    }

    /// The gradients of all ranks and micro-batches since the last step together, of this rank's shard, and where in
    /// the storage that begins: to look at; the step is not changed. The other ranks have to do the same.
    ///
    /// # Errors
    /// No memory left; a failing exchange.
    pub fn gradient_sums(&self) -> Result<Option<(Storage, usize)>> {
        let sharding = &self.sharding;
        let first = if sharding.cuts_state() { 0 } else { self.layout.owned(sharding.ranks.rank()).start };
        self.finish_batch()?;
        if let Some(reduced) = self.reduced() {
            return Ok(Some((reduced, first)));
        }
        let exchange = self.exchange(self.grad_dtype);
        let shard = if sharding.exchanges_each_batch() {
            exchange.look(&self.sums.borrow())?
        } else {
            match self.grads() {
                Some(whole) if sharding.is_shared() => {
                    self.complete(&whole)?;
                    Some(exchange.reduce_scatter(&whole)?)
                }
                whole => whole,
            }
        };
        let backend = self.device.backend();
        backend.wait(Lane::Compute, backend.mark(Lane::Zero)?)?;
        Ok(shard.map(|shard| (shard, 0)))
    }

    /// Bring the gradients of all micro-batches together, for the optimizer.
    ///
    /// # Errors
    /// No memory left; a failing exchange.
    pub fn finish_step(&self) -> Result<()> {
        self.closing.set(false);
        if !self.sharding.exchanges_each_batch() {
            return self.reduce();
        }
        self.finish_batch()?;
        let (exchange, sharding) = (self.exchange(self.grad_dtype), &self.sharding);
        let reduced = match exchange.finish(&mut self.sums.borrow_mut())? {
            Some(shard) if sharding.is_shared() && !sharding.cuts_state() => {
                Some(exchange.all_gather(&shard, Segment::Gradients)?)
            }
            sum => sum,
        };
        *self.reduced.borrow_mut() = reduced;
        Ok(())
    }

    /// The gradients in hand, which are those of all micro-batches of this rank, become part of those of the whole
    /// batch.
    fn reduce(&self) -> Result<()> {
        let Some(whole) = self.take_grads()? else { return Ok(()) };
        let (exchange, sharding) = (self.exchange(self.grad_dtype), &self.sharding);
        let sum = if sharding.cuts_state() {
            exchange.reduce_scatter(&whole)?
        } else {
            if sharding.is_shared() {
                exchange.all_reduce(&whole)?;
            }
            whole
        };
        let mut reduced = self.reduced.borrow_mut();
        match &*reduced {
            // Something came after what was taken for the last micro-batch.
            Some(earlier) => exchange.add(&sum, earlier)?,
            None => *reduced = Some(sum),
        }
        Ok(())
    }

    /// Forget all gradients and free their memory.
    pub fn clear_grads(&self) {
        self.written.iter().chain(&self.summed).for_each(|flag| flag.set(false));
        *self.grads.borrow_mut() = None;
        *self.sums.borrow_mut() = Sums::Empty;
        self.closing.set(false);
        *self.reduced.borrow_mut() = None;
    }

    /// Where the next contribution to the gradient of parameter `index` goes.
    pub(in crate::param) fn grad_target(&self, index: usize) -> bmtrain_core::Result<SinkTarget> {
        let mut grads = self.grads.borrow_mut();
        let storage = match &*grads {
            Some(storage) => storage.clone(),
            None => {
                let len = self.layout.gathered_len();
                grads.insert(Storage::empty(&self.device, len, self.grad_dtype, Segment::Gradients)?).clone()
            }
        };
        let Span { start, len } = self.span(index);
        let add = self.written.get(index).is_some_and(|written| written.replace(true));
        Ok(SinkTarget { storage, start, len, add })
    }

    /// The gradients in hand, complete for an exchange, if there are any: a parameter that was not used has zeros, as
    /// the sums count it all the same. A frozen one has zeros too: it may be trained in another micro-batch of the
    /// step.
    fn take_grads(&self) -> Result<Option<Storage>> {
        let Some(grads) = self.grads.borrow_mut().take() else { return Ok(None) };
        self.complete(&grads)?;
        for (written, summed) in self.written.iter().zip(&self.summed) {
            let now = written.replace(false);
            summed.set(summed.get() || now);
        }
        Ok(Some(grads))
    }

    /// Write the zeros of trained parameters that were not used.
    fn complete(&self, grads: &Storage) -> Result<()> {
        for (index, written) in self.written.iter().enumerate() {
            if self.sharding.is_exchanged() && !written.get() {
                self.device.launch(Fill { value: 0.0, out: grads.view_mut(self.span(index).range())? })?;
            }
        }
        Ok(())
    }
}
