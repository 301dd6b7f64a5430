//! The gradient of a tied parameter: the sums of its two uses, added when they are reduced, on one stage as on two.
//!
//! On two pipeline stages the first has the sum of the embedding's gradients and the last the sum of the head's. One
//! all-reduce in the order of the stages adds them, so both have the bits that one stage computes.

use super::Flat;
use super::gradients::Accumulating;
use crate::error::Result;
use bmtrain_core::comm::{Collective, Reduction};
use bmtrain_core::kernel::AddScaled;
use bmtrain_core::{Lane, Segment, Shape, Storage, Tensor};

impl Flat {
    /// The sum of the gradients of both uses, on the zero lane; where two stages hold the parameter, a collective of
    /// these. With `keeps` the terms stay as they are.
    pub(super) fn sum_of_uses(&self, [own, tied]: [Option<Storage>; 2], keeps: bool) -> Result<Option<Storage>> {
        let collectives = self.collectives(self.grad_dtype);
        let is_trained = self.trainable.iter().any(|trainable| trainable.get());
        let (sum, other) = match (own, tied) {
            (None, None) if self.ends.is_none() || !is_trained => return Ok(None),
            (None, None) => {
                let len = self.layout.gathered_len();
                (Storage::zeros(&self.device, len, self.grad_dtype, Segment::Gradients)?, None)
            }
            (Some(own), tied) => (own, tied),
            (None, Some(tied)) => (tied, None),
        };
        if other.is_none() && self.ends.is_none() {
            return Ok(Some(sum));
        }
        collectives.follow_compute()?;
        let sum = if keeps { self.copy(&sum)? } else { sum };
        if let Some(other) = other {
            collectives.add(&other, &sum)?;
        }
        if let Some(ends) = &self.ends {
            let data = sum.view_mut_on(0..sum.len(), Lane::Zero)?;
            ends.launch(self.device.backend(), Collective::AllReduce { data, by: Reduction::Sum }, Lane::Zero)?;
        }
        Ok(Some(sum))
    }

    /// This rank's gradient of parameter `index`, if there is one.
    pub(in crate::param) fn grad_tensor(&self, index: usize, shape: Shape) -> Result<Option<Tensor>> {
        let gradients = self.gradients.borrow();
        let start = self.span(index).start;
        let of = |local: &Option<Accumulating>| match local {
            Some(local) if local.written.get(index) == Some(&true) => {
                Ok::<_, crate::Error>(Some(local.storage.tensor(start, shape)?))
            }
            _ => Ok(None),
        };
        let [own, tied] = &gradients.local;
        Ok(match (of(own)?, of(tied)?) {
            (Some(own), Some(tied)) => {
                let mut sum = Tensor::empty_in(&self.device, shape, self.grad_dtype, Segment::Gradients)?;
                let (a, b) = (tied.view()?, Some(own.view()?));
                self.device.launch(AddScaled { alpha: 1.0, a, beta: 1.0, b, out: sum.view_mut()? })?;
                Some(sum)
            }
            (own, tied) => own.or(tied),
        })
    }

    /// A copy, on the zero lane.
    fn copy(&self, from: &Storage) -> Result<Storage> {
        let (len, backend) = (from.len(), self.device.backend());
        let copy = Storage::empty_on(&self.device, len, from.dtype(), Segment::Gradients, Lane::Zero)?;
        backend.copy(from.view_on(0..len, Lane::Zero)?, copy.view_mut_on(0..len, Lane::Zero)?, Lane::Zero)?;
        Ok(copy)
    }
}
