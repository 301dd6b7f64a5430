//! Checks of the operands of kernels: lengths, dtypes, and what is computed in place.

use super::operand::{Dest, Operand};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::view::{Ranged, View};

/// Require an exact element count.
pub(crate) fn expect_len(op: &'static str, what: &str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::shape(op, what, format!("{expected} elements"), got)) }
}

/// Require one dtype.
pub(crate) fn expect_dtype(op: &'static str, what: &str, expected: DType, got: DType) -> Result<()> {
    if expected == got {
        Ok(())
    } else {
        Err(Error::DType { op, what: what.into(), expected: expected.name().into(), got })
    }
}

/// Require a floating-point type.
pub(crate) fn expect_float(op: &'static str, what: &str, got: DType) -> Result<()> {
    if got.is_float() {
        Ok(())
    } else {
        Err(Error::DType { op, what: what.into(), expected: "a floating-point type".into(), got })
    }
}

/// Require length and dtype.
pub(crate) fn expect_operand(
    op: &'static str,
    what: &str,
    len: usize,
    dtype: DType,
    operand: &impl Ranged,
) -> Result<()> {
    expect_len(op, what, len, operand.range().len)?;
    expect_dtype(op, what, dtype, operand.range().dtype)
}

/// Require length and a floating-point type.
pub(crate) fn expect_float_operand(op: &'static str, what: &str, len: usize, operand: &impl Ranged) -> Result<()> {
    expect_len(op, what, len, operand.range().len)?;
    expect_float(op, what, operand.range().dtype)
}

/// Require a type whose elements each have a place of their own; in a quantised block several share bytes.
pub(crate) fn expect_single(op: &'static str, what: &str, got: DType) -> Result<()> {
    match got {
        DType::Blocks(_) => {
            Err(Error::DType { op, what: what.into(), expected: "a type of single elements".into(), got })
        }
        _ => Ok(()),
    }
}

/// Elements of an operand.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Elements {
    Any,
    Float,
    F32,
    I64,
    I32,
    U8,
}

/// Require the elements of an operand, if it is there, and their number if one is given.
pub(crate) fn expect(
    op: &'static str,
    what: &str,
    operand: &impl Operand,
    elements: Elements,
    len: Option<usize>,
) -> Result<()> {
    let Some(range) = operand.range() else { return Ok(()) };
    if let Some(len) = len {
        expect_len(op, what, len, range.len)?;
    }
    match elements {
        Elements::Any => expect_single(op, what, range.dtype),
        Elements::Float => expect_float(op, what, range.dtype),
        Elements::F32 => expect_dtype(op, what, DType::F32, range.dtype),
        Elements::I64 => expect_dtype(op, what, DType::I64, range.dtype),
        Elements::I32 => expect_dtype(op, what, DType::I32, range.dtype),
        Elements::U8 => expect_dtype(op, what, DType::U8, range.dtype),
    }
}

/// Refuse to add what is computed in place.
pub(crate) fn expect_replaced(op: &'static str, x: Option<&View<'_>>, out: &Dest<'_>, message: &str) -> Result<()> {
    if x.is_none() && out.add { Err(Error::argument(op, message)) } else { Ok(()) }
}

/// Require a soft cap to be a number above 0, if there is one.
pub(crate) fn expect_soft_cap(op: &'static str, cap: Option<f32>) -> Result<()> {
    match cap.filter(|cap| !(cap.is_finite() && *cap > 0.0)) {
        Some(cap) => Err(Error::argument(op, format!("soft cap {cap} is not a number above 0"))),
        None => Ok(()),
    }
}
