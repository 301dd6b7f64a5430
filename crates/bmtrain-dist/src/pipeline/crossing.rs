//! Tensors across an edge: in full, or, where tensor-parallel ranks have the same values, a part of them from each.
//!
//! Tensor rank t of a stage sends to tensor rank t of the next, and ranks of one stage are neighbours: each part goes
//! over the links between stages once, and the receiving ranks gather the parts over the links between neighbours.

use crate::edge::EdgeTensor;
use crate::error::Result;
use bmtrain_core::comm::{Communicator, tensors};
use bmtrain_core::{DType, Device, Tensor};

/// The groups that tensors cross an edge between.
pub(super) struct Crossing<'a> {
    /// One rank of each stage.
    pub(super) stages: &'a dyn Communicator,
    /// The tensor-parallel ranks of this stage.
    pub(super) tensor: &'a dyn Communicator,
}

impl Crossing<'_> {
    /// Elements that each tensor-parallel rank sends, where they share the tensor.
    fn part(&self, tensor: &EdgeTensor) -> Option<usize> {
        let (elements, ranks) = (tensor.shape.elements(), self.tensor.size());
        let is_shared = tensor.is_replicated && ranks > 1 && elements > 0 && elements.is_multiple_of(ranks);
        is_shared.then(|| elements / ranks)
    }

    pub(super) fn send(&self, tensor: &EdgeTensor, value: &Tensor, to: usize) -> Result<()> {
        let Some(part) = self.part(tensor) else { return Ok(tensors::send(self.stages, value, to)?) };
        let first = part * self.tensor.rank();
        let own = value.reshape([value.elements()])?.slice(first..first + part)?; // [elements / T]
        Ok(tensors::send(self.stages, &own, to)?)
    }

    pub(super) fn receive(
        &self,
        device: &Device,
        tensor: &EdgeTensor,
        dtype: DType,
        from: usize,
    ) -> bmtrain_core::Result<Tensor> {
        let Some(part) = self.part(tensor) else {
            return tensors::recv(self.stages, device, tensor.shape, dtype, from);
        };
        let own = tensors::recv(self.stages, device, [part], dtype, from)?; // [elements / T]
        tensors::all_gather(self.tensor, &own)?.reshape(tensor.shape)
    }
}
