//! Tensors: contiguous, typed at run time, immutable once shared; and storages, whose content is shared by design.
//!
//! Constructors are in `create.rs`, printing in `display.rs`.

mod create;
mod display;
mod storage;

pub use storage::{Storage, Watch};

use crate::buffer::Buffer;
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::kernel::Dest;
use crate::lane::{Lane, Mark};
use crate::shape::Shape;
use crate::view::{View, ViewMut};
use std::ops::Range;
use std::rc::Rc;

/// A contiguous, row-major tensor. Cloning shares the memory; reshaping and slicing the leading axis are views.
#[derive(Debug, Clone)]
pub struct Tensor {
    buffer: Rc<Buffer>,
    offset: usize,
    shape: Shape,
    dtype: DType,
}

impl Tensor {
    /// The values on the host. Waits for the compute lane.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            let expected = T::DTYPE.name().into();
            return Err(Error::DType { op: "to_vec", what: "tensor".into(), expected, got: self.dtype });
        }
        let mut values = vec![T::zeroed(); self.shape.elements()];
        self.device().backend().download(self.view()?, bytemuck::cast_slice_mut(&mut values), Lane::Compute)?;
        Ok(values)
    }

    /// The single value of a tensor with one f32 element. Waits for the compute lane.
    pub fn item(&self) -> Result<f32> {
        match self.to_vec::<f32>()?.as_slice() {
            [value] => Ok(*value),
            values => Err(Error::shape("item", "elements", 1, values.len())),
        }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        self.buffer.device()
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// Exactly `N` dimensions, naming the operation that asks.
    pub fn dims<const N: usize>(&self, op: &'static str) -> Result<[usize; N]> {
        self.shape.split(op)
    }

    /// The elements in another shape.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        if shape.elements() != self.elements() {
            return Err(Error::shape("reshape", "elements", format!("{} of {}", self.elements(), self.shape), shape));
        }
        Ok(Tensor { shape, ..self.clone() })
    }

    /// Part of the leading axis.
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        let Some((&first, inner)) = self.shape.dims().split_first() else {
            return Err(Error::shape("slice", "rank", "at least 1", 0));
        };
        if range.start > range.end || range.end > first {
            return Err(Error::shape("slice", "range", format!("inside 0..{first}"), format!("{range:?}")));
        }
        let mut dims = self.shape.dims().to_vec();
        dims[0] = range.len();
        let offset = self.offset + range.start * inner.iter().product::<usize>();
        Ok(Tensor { offset, shape: Shape::new(&dims)?, ..self.clone() })
    }

    /// Whether this is the only handle on the memory.
    pub fn is_alone(&self) -> bool {
        Rc::strong_count(&self.buffer) == 1
    }

    /// Whether an op may write in place: this is the only handle on the memory, and no other lane than the compute lane
    /// has used it. A message may still be under way from there, and its receiver may be late: a fresh result does not
    /// wait.
    pub fn may_be_overwritten(&self) -> bool {
        self.is_alone() && self.buffer.is_of_compute_alone()
    }

    /// A message leaves from here until this mark: who is given a view to write waits for it.
    pub(crate) fn reads_until(&self, mark: Mark) {
        self.buffer.reads_until(mark);
    }

    /// The compute lane has waited for this end of another lane's work on the memory.
    pub(crate) fn joined(&self, end: Mark) {
        self.buffer.joined(end);
    }

    /// A readable view for the compute lane.
    pub fn view(&self) -> Result<View<'_>> {
        self.view_on(Lane::Compute)
    }

    /// A readable view for another lane.
    pub fn view_on(&self, on: Lane) -> Result<View<'_>> {
        self.buffer.view(self.offset, self.elements(), self.dtype, on)
    }

    /// A writable view for the compute lane, which waits until messages sent from the memory have left.
    pub fn view_mut(&mut self) -> Result<ViewMut<'_>> {
        self.view_mut_on(Lane::Compute)
    }

    /// The tensor as the destination of a kernel, which overwrites it or adds to it.
    pub fn dest(&mut self, add: bool) -> Result<Dest<'_>> {
        Ok(Dest { view: self.view_mut()?, add })
    }

    /// A writable view for another lane.
    ///
    /// # Errors
    /// The memory is shared with another tensor.
    pub fn view_mut_on(&mut self, on: Lane) -> Result<ViewMut<'_>> {
        if !self.is_alone() {
            let message = format!("a tensor {} shares its memory and cannot be written", self.shape);
            return Err(Error::argument("view_mut", message));
        }
        self.buffer.view_mut(self.offset, self.elements(), self.dtype, on)
    }
}
