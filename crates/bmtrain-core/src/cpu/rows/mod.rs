//! Kernels that move rows: embeddings (`embedding`), permutations (`permute`), strided copies (here).

mod embedding;
mod permute;
pub(super) use embedding::{checked_ids, embedding_backward, embedding_forward};
pub(super) use permute::permute;

use super::access::{read, write};
use super::floats::{Floats, FloatsMut, Spare, tiles};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::kernel::RowCopy;
use crate::simd::vectorised;
use crate::threads::{Divide, Threads};
use half::{bf16, f16};

/// Elements of a piece of work.
const PIECE: usize = 1 << 15;

pub(super) fn rows_at_once(columns: usize) -> usize {
    (PIECE / columns.max(1)).max(1)
}

/// Written elements of any type in rows; the last row may be shorter.
pub(super) struct Strided<'a, T> {
    pub(super) data: &'a mut [T],
    pub(super) stride: usize,
}

impl<T: Send> Divide for Strided<'_, T> {
    fn divide(self, rows: usize) -> (Self, Self) {
        let (at, stride) = ((rows * self.stride).min(self.data.len()), self.stride);
        let (head, tail) = self.data.split_at_mut(at);
        (Strided { data: head, stride }, Strided { data: tail, stride })
    }
}

pub(super) fn row_copy(threads: &Threads, a: RowCopy<'_>) -> Result<()> {
    if a.out.add {
        return row_add(threads, a);
    }
    match a.x.dtype() {
        DType::F32 => copy_rows::<f32>(threads, a),
        DType::F16 => copy_rows::<f16>(threads, a),
        DType::BF16 => copy_rows::<bf16>(threads, a),
        DType::I64 => copy_rows::<i64>(threads, a),
        DType::I32 => copy_rows::<i32>(threads, a),
        DType::U8 => copy_rows::<u8>(threads, a),
        got @ DType::Blocks(_) => Err(not_elements("row_copy", got)),
    }
}

/// Elements of a matrix in blocks have no place of their own.
fn not_elements(op: &'static str, got: DType) -> Error {
    Error::DType { op, what: "x".into(), expected: "a type of single elements".into(), got }
}

fn copy_rows<T: Element>(threads: &Threads, a: RowCopy<'_>) -> Result<()> {
    const NAME: &str = "row_copy";
    let (columns, x_ld, stride) = (a.columns, a.x_ld, a.out_ld);
    let (x, data) = (read::<T>(NAME, a.x)?, write::<T>(NAME, a.out.view)?);
    threads.for_each_part(Strided { data, stride }, a.rows, rows_at_once(columns), |first, rows, out| {
        for row in 0..rows {
            let from = (first + row) * x_ld;
            out.data[row * stride..row * stride + columns].copy_from_slice(&x[from..from + columns]);
        }
    });
    Ok(())
}

fn row_add(threads: &Threads, a: RowCopy<'_>) -> Result<()> {
    const NAME: &str = "row_copy";
    let (columns, x_ld, out_ld) = (a.columns, a.x_ld, a.out_ld);
    let (x, out) = (Floats::of(NAME, a.x)?, FloatsMut::of(NAME, a.out.view)?);
    threads.for_each_part(out.rows(out_ld), a.rows, rows_at_once(columns), |first, rows, mut out| {
        let (mut x_spare, mut out_spare) = (Spare::new(), Spare::new());
        for row in 0..rows {
            for (start, len) in tiles(columns) {
                let x = x.tile((first + row) * x_ld + start, len, &mut x_spare);
                out.data.update(row * out_ld + start, len, true, &mut out_spare, |out| add(x, out));
            }
        }
    });
    Ok(())
}

vectorised! {
    pub(super) fn add<I>(x: &[f32], out: &mut [f32]) {
        for (out, x) in out.iter_mut().zip(x) {
            *out += x;
        }
    }
}
