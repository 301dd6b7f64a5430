//! Constructors of tensors, and copies.
//!
//! Those without a [`Segment`] count their memory as [`Segment::Data`]; the library's own code names the segment.

use super::Tensor;
use crate::buffer::Buffer;
use crate::device::Device;
use crate::dtype::{BlockFormat, DType, Element};
use crate::error::{Error, Result};
use crate::kernel::{Cast, Distribution, Fill, FillRandom};
use crate::lane::Lane;
use crate::philox::Key;
use crate::pool::Segment;
use crate::shape::Shape;
use std::ops::Range;
use std::rc::Rc;

impl Tensor {
    /// A tensor with the values of a host slice, in row-major order.
    ///
    /// ```
    /// use bmtrain_core::prelude::*;
    /// # fn main() -> Result<()> {
    /// let device = Device::cpu(1)?;
    /// let x = Tensor::from_slice(&device, [2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    /// assert_eq!(x.slice(1..2)?.to_vec::<f32>()?, [4.0, 5.0, 6.0]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_slice<T: Element>(device: &Device, shape: impl Into<Shape>, values: &[T]) -> Result<Self> {
        Tensor::from_slice_in(device, shape, values, Segment::Data)
    }

    /// As [`Tensor::from_slice`], in a memory segment.
    pub fn from_slice_in<T: Element>(
        device: &Device,
        shape: impl Into<Shape>,
        values: &[T],
        segment: Segment,
    ) -> Result<Self> {
        let shape = shape.into();
        if shape.elements() != values.len() {
            let expected = format!("{} for {shape}", shape.elements());
            return Err(Error::shape("from_slice", "values", expected, values.len()));
        }
        let mut tensor = Tensor::empty_in(device, shape, T::DTYPE, segment)?;
        device.backend().upload(bytemuck::cast_slice(values), tensor.view_mut()?, Lane::Compute)?;
        Ok(tensor)
    }

    /// A matrix of `columns` elements a row in quantised blocks, from the bytes of its rows.
    ///
    /// # Errors
    /// A row that does not end with a block; bytes that do not end with a row.
    pub fn from_blocks(device: &Device, format: BlockFormat, columns: usize, bytes: &[u8]) -> Result<Self> {
        const OP: &str = "from_blocks";
        let row = format.row_bytes(columns).filter(|row| *row > 0).ok_or_else(|| {
            Error::shape(OP, "columns", format!("whole blocks of {} elements", format.elements()), columns)
        })?;
        if !bytes.len().is_multiple_of(row) {
            return Err(Error::shape(OP, "bytes", format!("whole rows of {row}"), bytes.len()));
        }
        let shape = [bytes.len() / row, row];
        let mut tensor = Tensor::empty_in(device, shape, DType::Blocks(format), Segment::Data)?;
        device.backend().upload(bytes, tensor.view_mut()?, Lane::Compute)?;
        Ok(tensor)
    }

    /// A tensor of zeros.
    pub fn zeros(device: &Device, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        Tensor::full(device, shape, dtype, 0.0)
    }

    /// A tensor with one value everywhere.
    pub fn full(device: &Device, shape: impl Into<Shape>, dtype: DType, value: f32) -> Result<Self> {
        Tensor::full_in(device, shape, dtype, value, Segment::Data)
    }

    /// As [`Tensor::full`], in a memory segment.
    pub fn full_in(
        device: &Device,
        shape: impl Into<Shape>,
        dtype: DType,
        value: f32,
        segment: Segment,
    ) -> Result<Self> {
        let mut tensor = Tensor::empty_in(device, shape, dtype, segment)?;
        device.launch(Fill { value, out: tensor.view_mut()? })?;
        Ok(tensor)
    }

    /// An f32 tensor of samples from the standard normal distribution: a pure function of `seed` and the index of the
    /// element,
    /// the same on every device and for every number of threads.
    pub fn randn(device: &Device, shape: impl Into<Shape>, seed: u64) -> Result<Self> {
        let mut tensor = Tensor::empty_in(device, shape, DType::F32, Segment::Data)?;
        let distribution = Distribution::Normal(0.0, 1.0);
        let key = Key::new(seed, "randn");
        device.launch(FillRandom { distribution, key, offset: 0, out: tensor.view_mut()? })?;
        Ok(tensor)
    }

    /// The i64 tensor `[start, start + 1, ..., end - 1]`, for example of token ids or positions.
    pub fn arange(device: &Device, range: Range<i64>) -> Result<Self> {
        let values: Vec<i64> = range.collect();
        Tensor::from_slice(device, [values.len()], &values)
    }

    /// A copy of the elements in another dtype, as [`Segment::Activations`].
    pub(crate) fn copied(&self, dtype: DType) -> Result<Self> {
        let mut copy = Tensor::empty_in(self.device(), self.shape(), dtype, Segment::Activations)?;
        self.device().launch(Cast { x: self.view()?, out: copy.dest(false)? })?;
        Ok(copy)
    }

    /// The tensor itself where its memory may be written, else a copy.
    pub(crate) fn owned(self) -> Result<Self> {
        if self.may_be_overwritten() { Ok(self) } else { self.copied(self.dtype()) }
    }

    /// A tensor of unspecified content in a memory segment.
    pub fn empty_in(device: &Device, shape: impl Into<Shape>, dtype: DType, segment: Segment) -> Result<Self> {
        let shape = shape.into();
        let buffer = Rc::new(Buffer::new(device, shape.elements() * dtype.size(), segment)?);
        Ok(Tensor { buffer, offset: 0, shape, dtype })
    }
}
