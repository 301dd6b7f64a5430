//! The inputs of blocks that are recomputed, from the forward to the backward pass: on the device, in pieces on
//! tensor-parallel ranks, or in the host's memory. Defines [`InputKeeper`], of a list, and [`KeptInputs`], of a block.

use super::bundle::{Bundle, Detached};
use super::policy::InputStore;
use crate::error::Result;
use crate::param::Builder;
use crate::shard::host::HostValues;
use bmtrain_core::backend::Mark;
use bmtrain_core::comm::{Communicator, tensors};
use bmtrain_core::{DType, Lane, Segment, Shape, Tensor, Var};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Keeps inputs for a list.
#[derive(Debug, Clone, Default)]
pub(super) struct InputKeeper {
    tensor_ranks: Option<Arc<dyn Communicator>>,
    /// Host memory of inputs that have come back: taking memory from the system for every block would cost a step more
    /// than the copy. Works of one lane run in order, so it is free for the next inputs that leave.
    shelf: Rc<RefCell<Vec<HostValues>>>,
}

/// The carry of a block, kept for its recomputation.
#[derive(Debug)]
pub(super) struct KeptInputs<C> {
    /// Its values, or what stands for those that are elsewhere: the piece of this rank, or one element.
    carry: Detached<C>,
    away: Away,
}

#[derive(Debug)]
enum Away {
    Nowhere,
    Sharded {
        ranks: Arc<dyn Communicator>,
        shapes: Vec<Shape>,
    },
    Host {
        values: Vec<HostInput>,
        keeper: InputKeeper,
        /// Mark after which everything that was asked for has arrived.
        ready: Option<Mark>,
    },
}

#[derive(Debug)]
struct HostInput {
    shape: Shape,
    dtype: DType,
    values: HostValues,
    /// On the device, once it was asked for.
    arriving: Option<Tensor>,
}

impl InputKeeper {
    pub(super) fn new(builder: &Builder) -> Self {
        InputKeeper { tensor_ranks: builder.tensor_ranks().cloned(), shelf: Rc::default() }
    }

    pub(super) fn keep<C: Bundle>(&self, carry: Detached<C>, store: InputStore) -> Result<KeptInputs<C>> {
        match (store, &self.tensor_ranks) {
            (InputStore::Sharded, Some(ranks)) => {
                let pieces = values(&carry.bundle).iter().map(|value| piece(value, &**ranks)).collect::<Result<_>>()?;
                let shapes = values(&carry.bundle).iter().map(Tensor::shape).collect();
                let carry = with_values(&carry, pieces);
                Ok(KeptInputs { carry, away: Away::Sharded { ranks: Arc::clone(ranks), shapes } })
            }
            (InputStore::Host, _) => self.send(carry),
            _ => Ok(KeptInputs { carry, away: Away::Nowhere }),
        }
    }

    /// Copy the values to the host, after what the compute lane has done so far.
    fn send<C: Bundle>(&self, carry: Detached<C>) -> Result<KeptInputs<C>> {
        let all = values(&carry.bundle);
        let Some(device) = all.first().map(Tensor::device).filter(|device| !device.backend().memory_is_host()) else {
            return Ok(KeptInputs { carry, away: Away::Nowhere });
        };
        device.backend().wait(Lane::Copy, device.backend().mark(Lane::Compute)?)?;
        let (mut kept, mut markers) = (Vec::with_capacity(all.len()), Vec::with_capacity(all.len()));
        for value in &all {
            let values = self.take(value)?;
            values.store(value.view_on(Lane::Copy)?, 0)?;
            kept.push(HostInput { shape: value.shape(), dtype: value.dtype(), values, arriving: None });
            markers.push(Tensor::empty_in(device, [1], value.dtype(), Segment::Activations)?);
        }
        Ok(KeptInputs {
            carry: with_values(&carry, markers),
            away: Away::Host { values: kept, keeper: self.clone(), ready: None },
        })
    }

    /// Host memory for a value, from the shelf if there is some of this length.
    fn take(&self, value: &Tensor) -> Result<HostValues> {
        let (len, dtype) = (value.elements(), value.dtype());
        let mut shelf = self.shelf.borrow_mut();
        match shelf.iter().position(|free| free.is(len, dtype)) {
            Some(at) => Ok(shelf.swap_remove(at)),
            None => HostValues::zeros(value.device(), len, dtype),
        }
    }
}

impl<C: Bundle> KeptInputs<C> {
    /// Begin to bring them back, if that is work beside the compute lane.
    pub(super) fn prefetch(&mut self) -> Result<()> {
        let Away::Host { values: kept, ready, .. } = &mut self.away else { return Ok(()) };
        let markers = values(&self.carry.bundle);
        for (input, marker) in kept.iter_mut().zip(&markers).filter(|(input, _)| input.arriving.is_none()) {
            let device = marker.device();
            let mut back = Tensor::empty_in(device, input.shape, input.dtype, Segment::Activations)?;
            device.backend().wait(Lane::Copy, device.backend().mark(Lane::Compute)?)?;
            input.values.fetch(0, back.view_mut_on(Lane::Copy)?)?;
            input.arriving = Some(back);
            *ready = Some(device.backend().mark(Lane::Copy)?);
        }
        Ok(())
    }

    /// The carry as it entered the block. Collective over the tensor-parallel ranks where they keep pieces.
    pub(super) fn bring(mut self) -> Result<Detached<C>> {
        self.prefetch()?;
        match self.away {
            Away::Nowhere => Ok(self.carry),
            Away::Sharded { ranks, shapes } => {
                let pieces = values(&self.carry.bundle);
                let whole = pieces.iter().zip(shapes).map(|(piece, shape)| {
                    let all = tensors::all_gather(&*ranks, piece)?;
                    Ok(all.slice(0..shape.elements())?.reshape(shape)?)
                });
                let whole = whole.collect::<Result<_>>()?;
                Ok(with_values(&self.carry, whole))
            }
            Away::Host { values: kept, keeper, ready } => {
                let mut back = Vec::with_capacity(kept.len());
                for HostInput { values, arriving, .. } in kept {
                    back.extend(arriving);
                    keeper.shelf.borrow_mut().push(values);
                }
                if let (Some(value), Some(ready)) = (back.first(), ready) {
                    value.device().backend().wait(Lane::Compute, ready)?;
                }
                Ok(with_values(&self.carry, back))
            }
        }
    }

    /// Bytes on the device.
    pub(super) fn bytes(&self) -> usize {
        self.carry.bytes()
    }
}

fn values<C: Bundle>(bundle: &C) -> Vec<Tensor> {
    bundle.vars().into_iter().map(Var::into_value).collect()
}

fn with_values<C: Bundle>(carry: &Detached<C>, values: Vec<Tensor>) -> Detached<C> {
    let bundle = carry.bundle.rebuild(&mut values.into_iter().map(Var::constant));
    Detached { bundle, needs_grad: carry.needs_grad.clone() }
}

/// A copy of this rank's elements of a value that all ranks have, with unspecified ones after the last.
fn piece(value: &Tensor, ranks: &dyn Communicator) -> Result<Tensor> {
    let (device, elements) = (value.device(), value.elements());
    let length = elements.div_ceil(ranks.size()).max(1);
    let start = (ranks.rank() * length).min(elements);
    let held = length.min(elements - start);
    let mut piece = Tensor::empty_in(device, [length], value.dtype(), Segment::Activations)?;
    let from = value.view()?.part(start, held)?;
    device.backend().copy(from, piece.view_mut()?.part(0, held)?, Lane::Compute)?;
    Ok(piece)
}
