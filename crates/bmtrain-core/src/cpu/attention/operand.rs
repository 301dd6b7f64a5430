//! Heads as the loops of attention see them: rows of f32, whatever the tensors hold and however they are strided.
#![allow(unsafe_code)]

use crate::cpu::access::{self, Rows};
use crate::cpu::floats::Floats;
use crate::dtype::{DType, Float};
use crate::error::{Error, Result};
use crate::kernel::{Heads, HeadsMut};
use half::{bf16, f16};
use std::ops::Range;

#[derive(Debug, Clone, Copy)]
pub(super) struct ReadHeads<'a> {
    data: Floats<'a>,
    batch_stride: usize,
    row_stride: usize,
    head_size: usize,
}

impl<'a> ReadHeads<'a> {
    pub(super) fn new(op: &'static str, heads: Heads<'a>, head_size: usize) -> Result<Self> {
        let Heads { view, batch_stride, row_stride } = heads;
        Ok(ReadHeads { data: Floats::of(op, view)?, batch_stride, row_stride, head_size })
    }

    pub(super) fn is_bf16(&self) -> bool {
        matches!(self.data, Floats::Bf16(_))
    }

    /// Rows `range` of a head where they are, and the distance between two of them. The range is not empty.
    pub(super) fn in_place(&self, sequence: usize, head: usize, range: Range<usize>) -> (Floats<'a>, usize) {
        let start = sequence * self.batch_stride + head * self.head_size + range.start * self.row_stride;
        (self.data.part(start, (range.len() - 1) * self.row_stride + self.head_size), self.row_stride)
    }

    /// Rows `range` of a head, widened, one every `stride` elements of `to`; the elements between are zeroed.
    pub(super) fn rows(&self, sequence: usize, head: usize, range: Range<usize>, to: &mut [f32], stride: usize) {
        let start = sequence * self.batch_stride + head * self.head_size;
        for (row, to) in range.zip(to.chunks_exact_mut(stride)) {
            let (to, rest) = to.split_at_mut(self.head_size);
            self.data.widen(start + row * self.row_stride, to);
            rest.fill(0.0);
        }
    }
}

pub(super) struct WriteHeads<'a> {
    data: Sink<'a>,
    batch_stride: usize,
    row_stride: usize,
    head_size: usize,
    add: bool,
}

enum Sink<'a> {
    F32(Rows<'a, f32>),
    F16(Rows<'a, f16>),
    Bf16(Rows<'a, bf16>),
}

impl<'a> WriteHeads<'a> {
    pub(super) fn new(op: &'static str, heads: HeadsMut<'a>, head_size: usize) -> Result<Self> {
        let HeadsMut { view, batch_stride, row_stride, add } = heads;
        let data = match view.dtype() {
            DType::F32 => Sink::F32(access::write_rows(op, view)?),
            DType::F16 => Sink::F16(access::write_rows(op, view)?),
            DType::BF16 => Sink::Bf16(access::write_rows(op, view)?),
            got => {
                let expected = "a floating-point type".into();
                return Err(Error::DType { op, what: "heads".into(), expected, got });
            }
        };
        Ok(WriteHeads { data, batch_stride, row_stride, head_size, add })
    }

    /// Write `factor * values`, one row of a head, or add it to what is there. The length of `values` is the head size.
    ///
    /// # Safety
    /// No other thread reads or writes this row of this head meanwhile.
    #[inline]
    pub(super) unsafe fn row(&self, sequence: usize, head: usize, row: usize, values: &[f32], factor: f32) {
        let start = sequence * self.batch_stride + row * self.row_stride + head * self.head_size;
        // SAFETY: the caller is alone with this row, rows of different heads and rows do not overlap because the row
        // stride is at least as wide as all heads (checked at launch), and `part` checks the range.
        unsafe {
            match &self.data {
                Sink::F32(rows) => self.store(rows.part(start, values.len()), values, factor),
                Sink::F16(rows) => self.store(rows.part(start, values.len()), values, factor),
                Sink::Bf16(rows) => self.store(rows.part(start, values.len()), values, factor),
            }
        }
    }

    #[inline(always)]
    fn store<T: Float>(&self, to: &mut [T], values: &[f32], factor: f32) {
        if self.add {
            to.iter_mut().zip(values).for_each(|(to, value)| *to = T::from_f32(to.to_f32() + factor * value));
        } else {
            to.iter_mut().zip(values).for_each(|(to, value)| *to = T::from_f32(factor * value));
        }
    }
}
