//! Storages: memory that is shared on purpose and written in place.

use super::Tensor;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::Fill;
use crate::lane::Lane;
use crate::pool::Segment;
use crate::shape::Shape;
use crate::view::{View, ViewMut};
use std::ops::Range;
use std::rc::{Rc, Weak};

/// Reports whether the memory of a [`Storage`], which tensors may share, is in use.
#[derive(Debug, Clone)]
pub struct Watch(Weak<Buffer>);

impl Watch {
    /// Whether the storage, or a tensor taken from it, is still held.
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// Memory that is shared on purpose and written in place: parameters, their gradients, optimizer state, caches.
///
/// A tensor taken from a storage sees later writes. Copies that must not are made explicitly.
#[derive(Debug, Clone)]
pub struct Storage {
    buffer: Rc<Buffer>,
    len: usize,
    dtype: DType,
}

impl Storage {
    /// A storage of `len` elements, filled with zeros.
    pub fn zeros(device: &Device, len: usize, dtype: DType, segment: Segment) -> Result<Self> {
        let storage = Storage::empty(device, len, dtype, segment)?;
        device.launch(Fill { value: 0.0, out: storage.view_mut(0..len)? })?;
        Ok(storage)
    }

    /// A storage of unspecified content.
    pub fn empty(device: &Device, len: usize, dtype: DType, segment: Segment) -> Result<Self> {
        Storage::empty_on(device, len, dtype, segment, Lane::Compute)
    }

    /// As [`Storage::empty`], for memory whose first use is on another lane.
    pub fn empty_on(device: &Device, len: usize, dtype: DType, segment: Segment, first_use: Lane) -> Result<Self> {
        let bytes =
            len.checked_mul(dtype.size()).ok_or_else(|| Error::shape("storage", "length", "below 2^64 bytes", len))?;
        Ok(Storage { buffer: Rc::new(Buffer::new_on(device, bytes, segment, first_use)?), len, dtype })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.buffer.device()
    }

    /// A weak handle that reports whether the memory is in use.
    pub fn watch(&self) -> Watch {
        Watch(Rc::downgrade(&self.buffer))
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// A readable view of a range of elements, for the compute lane.
    pub fn view(&self, range: Range<usize>) -> Result<View<'_>> {
        self.view_on(range, Lane::Compute)
    }

    /// A readable view for another lane.
    pub fn view_on(&self, range: Range<usize>, on: Lane) -> Result<View<'_>> {
        self.buffer.view(range.start, range.len(), self.dtype, on)
    }

    /// A writable view of a range of elements, for the compute lane.
    pub fn view_mut(&self, range: Range<usize>) -> Result<ViewMut<'_>> {
        self.view_mut_on(range, Lane::Compute)
    }

    /// A writable view for another lane.
    pub fn view_mut_on(&self, range: Range<usize>, on: Lane) -> Result<ViewMut<'_>> {
        self.buffer.view_mut(range.start, range.len(), self.dtype, on)
    }

    /// A tensor over part of the storage, sharing its memory.
    ///
    /// # Errors
    /// A shape whose elements do not fit into the storage from `start` on.
    pub fn tensor(&self, start: usize, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        self.buffer.view(start, shape.elements(), self.dtype, Lane::Compute)?;
        Ok(Tensor { buffer: Rc::clone(&self.buffer), offset: start, shape, dtype: self.dtype })
    }
}
