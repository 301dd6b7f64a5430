//! The flat storage of parameters that are gathered together: one block's parameters of one number type and group.

use super::Param;
use crate::error::Result;
use crate::mesh::Mesh;
use crate::shard::{ShardLayout, Span};
use bmtrain_core::autograd::SinkTarget;
use bmtrain_core::{DType, Device, Segment, Storage};
use std::cell::{Cell, RefCell};

/// A flat storage with its gradients.
///
/// Gradients exist from the first contribution of a backward pass until the optimizer has used them: the memory that the
/// activations of a block leave behind serves its gradients.
#[derive(Debug)]
pub struct Flat {
    device: Device,
    layout: ShardLayout,
    dtype: DType,
    grad_dtype: DType,
    values: Storage,
    grads: RefCell<Option<Storage>>,
    /// Which parameters have a gradient.
    written: Vec<Cell<bool>>,
}

impl Flat {
    /// Lay out and allocate a storage for these parameters, with gradients in `grad_dtype`.
    pub(super) fn new(
        device: &Device,
        _mesh: &Mesh,
        dtype: DType,
        grad_dtype: DType,
        members: &[Param],
    ) -> Result<Self> {
        let lengths: Vec<usize> = members.iter().map(|param| param.local_shape().elements()).collect();
        let layout = ShardLayout::new(dtype, &lengths, 1);
        // Zeros, so that the gaps between parameters are numbers too.
        let values = Storage::zeros(device, layout.gathered_len(), dtype, Segment::Parameters)?;
        let written = members.iter().map(|_| Cell::new(false)).collect();
        Ok(Flat { device: device.clone(), layout, dtype, grad_dtype, values, grads: RefCell::new(None), written })
    }

    /// Where the parameters lie.
    pub fn layout(&self) -> &ShardLayout {
        &self.layout
    }

    /// Number type of the values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The values.
    pub fn values(&self) -> &Storage {
        &self.values
    }

    /// The gradients, if a backward pass has made any.
    pub fn grads(&self) -> Option<Storage> {
        self.grads.borrow().clone()
    }

    /// Whether parameter `index` has a gradient.
    pub fn has_grad(&self, index: usize) -> bool {
        self.written.get(index).is_some_and(Cell::get)
    }

    /// Forget all gradients and free their memory.
    pub fn clear_grads(&self) {
        self.written.iter().for_each(|written| written.set(false));
        *self.grads.borrow_mut() = None;
    }

    /// The place of parameter `index`.
    pub(super) fn span(&self, index: usize) -> Span {
        self.layout.spans().get(index).copied().unwrap_or(Span { start: 0, len: 0 })
    }

    /// Where the next contribution to the gradient of parameter `index` goes.
    pub(super) fn grad_target(&self, index: usize) -> bmtrain_core::Result<SinkTarget> {
        let mut grads = self.grads.borrow_mut();
        let storage = match &*grads {
            Some(storage) => storage.clone(),
            None => {
                let fresh =
                    Storage::empty(&self.device, self.layout.gathered_len(), self.grad_dtype, Segment::Gradients)?;
                grads.insert(fresh).clone()
            }
        };
        let Span { start, len } = self.span(index);
        let add = self.written.get(index).is_some_and(|written| written.replace(true));
        Ok(SinkTarget { storage, start, len, add })
    }
}
