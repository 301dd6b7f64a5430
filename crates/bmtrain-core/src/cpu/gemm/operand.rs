//! Operands and results of products: slices of three dtypes with strides, and the checks of their lengths.

use half::slice::HalfFloatSliceExt;

pub use crate::cpu::floats::{Floats as Source, FloatsMut as Target};
use crate::error::{Error, Result};

/// Elements `start..start + to.len()` as f32.
pub(super) fn widen(data: Source<'_>, start: usize, to: &mut [f32]) {
    if to.is_empty() {
        // Of a product with empty sums nothing is read, wherever its rows would start.
        return;
    }
    let end = start + to.len();
    match data {
        Source::F32(data) => to.copy_from_slice(&data[start..end]),
        Source::F16(data) => data[start..end].convert_to_f32_slice(to),
        Source::Bf16(data) => {
            for (wide, narrow) in to.iter_mut().zip(&data[start..end]) {
                *wide = f32::from_bits(u32::from(narrow.to_bits()) << 16);
            }
        }
    }
}

/// One operand: element (i, j) is at `data[i * row_stride + j * col_stride]`; one of the strides is 1.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a> {
    /// The elements.
    pub data: Source<'a>,
    /// Distance between rows.
    pub row_stride: usize,
    /// Distance between columns.
    pub col_stride: usize,
    /// Whether f32 elements may be rounded to bf16. They are where the instruction set multiplies bf16, and the
    /// other operand is bf16 or may be rounded too; elsewhere they stay as they are.
    pub in_bf16: bool,
}

impl<'a> Operand<'a> {
    /// A matrix whose rows start `leading` elements apart.
    pub fn rows(data: Source<'a>, leading: usize) -> Self {
        Operand { data, row_stride: leading, col_stride: 1, in_bf16: false }
    }

    /// The transpose of a matrix whose rows start `leading` elements apart.
    pub fn transposed(data: Source<'a>, leading: usize) -> Self {
        Operand { data, row_stride: 1, col_stride: leading, in_bf16: false }
    }

    /// The same, whose f32 elements may be rounded to bf16 if `in_bf16`, see [`Operand::in_bf16`].
    pub fn rounded(self, in_bf16: bool) -> Self {
        Operand { in_bf16, ..self }
    }
}

/// An operand whose strides are known to stay inside its slice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Matrix<'a> {
    pub(super) data: Source<'a>,
    /// The index of element (0, 0).
    pub(super) start: usize,
    pub(super) row_stride: usize,
    pub(super) col_stride: usize,
    /// As [`Operand::in_bf16`].
    pub(super) in_bf16: bool,
}

impl<'a> Matrix<'a> {
    /// Checks an operand of `rows x cols`, whose start may move by up to `reach` elements (a batch).
    pub(super) fn new(
        operand: Operand<'a>,
        (rows, cols): (usize, usize),
        reach: usize,
        op: &'static str,
        name: &str,
    ) -> Result<Self> {
        let Operand { data, mut row_stride, mut col_stride, in_bf16 } = operand;
        // The stride of an axis of length 1 is never used: whatever it was, 1 is as good and keeps the paths few.
        if rows <= 1 {
            row_stride = 1;
        }
        if cols <= 1 {
            col_stride = 1;
        }
        if row_stride != 1 && col_stride != 1 {
            let got = format!("row stride {row_stride}, column stride {col_stride}");
            return Err(Error::shape(op, format!("strides of {name}"), "one stride of 1", got));
        }
        check_extent(data.len(), &[(rows, row_stride), (cols, col_stride)], reach, op, name)?;
        Ok(Matrix { data, start: 0, row_stride, col_stride, in_bf16 })
    }

    /// The matrix `distance` elements further on.
    pub(super) fn moved(self, distance: usize) -> Self {
        Matrix { start: self.start + distance, ..self }
    }
}

/// Checks that a slice of `len` elements holds every index of the given (length, stride) axes plus `reach`.
pub(super) fn check_extent(
    len: usize,
    axes: &[(usize, usize)],
    reach: usize,
    op: &'static str,
    name: &str,
) -> Result<()> {
    if axes.iter().any(|(length, _)| *length == 0) {
        return Ok(());
    }
    let last = axes.iter().try_fold(reach, |sum, (length, stride)| sum.checked_add((length - 1).checked_mul(*stride)?));
    match last {
        Some(last) if last < len => Ok(()),
        Some(last) => Err(Error::shape(op, format!("length of {name}"), format!("at least {}", last as u128 + 1), len)),
        None => Err(Error::shape(op, format!("strides of {name}"), "indices that fit the address space", "more")),
    }
}
