//! Products with a matrix in quantised blocks, and its rows by id; `gradient`: the gradients of these products.
//!
//! Rows of the matrix are dequantised, a group that the caches hold at a time, and multiplied by [`gemm`] as any f32
//! matrix. Few rows of x (decoding) meet a group once: then each thread takes groups of its own. Many rows (a prompt)
//! are worth all threads for each group.
//!
//! Numerics: an element of the result is summed by the same routines in the same order as by one product with the
//! dequantised matrix, because that order depends on m and k alone, so its bits are the same. (`gemm` does depend on
//! whether n is 1, and whether tiles multiply n columns: no group has so few rows unless the matrix has.) Where the
//! instruction set multiplies bf16 in tiles and x is bf16, dequantised rows are rounded to bf16 and multiplied there.

#![allow(unsafe_code)]

mod gradient;
pub(super) use gradient::input_gradient;

use super::access::{Rows, read, read_bytes, write_rows};
use super::floats::{Floats, FloatsMut, Spare, tiles};
use super::gemm::{self, Activation, Epilogue, Operand, Product, Source, Target};
use super::math::activate;
use super::rows::{add, checked_ids, rows_at_once};
use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::kernel::quantised::format_of;
use crate::kernel::{QuantisedLinear, QuantisedRows};
use crate::quantised::{BlockFormat, dequantise};
use crate::threads::Threads;
use crate::view::{View, ViewMut};
use half::{bf16, f16};
use std::ops::Range;

const NAME: &str = "quantised_linear";

/// Most rows of x for which threads take groups of their own: the rows that `gemm` multiplies without packing.
const FEW: usize = 16;

/// Rows of a group for few rows of x: a multiple of the rows that `gemm` multiplies at a time, few enough that the
/// second-level cache keeps them.
const GROUP: usize = 24;

/// Elements of a group for many rows of x, and the least of its rows: x is packed again for each group.
const ELEMENTS: usize = 1 << 20;
const LEAST_ROWS: usize = 96;

/// Below this many elements, waking a second thread costs more than it saves.
const WORTH_SPLITTING: usize = 64 << 10;

/// Rows that a thread dequantises at a time, of a group that all threads share.
const ROWS_AT_ONCE: usize = 16;

mod scratch {
    crate::cpu::scratch::scratch! {
        /// Rows of the matrix, dequantised.
        matrix,
        /// Results of a group on their way to their places.
        results,
    }
}
pub(super) use scratch::bytes;

/// A matrix in blocks.
#[derive(Clone, Copy)]
struct Blocks<'a> {
    format: BlockFormat,
    bytes: &'a [u8],
    row_bytes: usize,
}

impl<'a> Blocks<'a> {
    fn new(op: &'static str, what: &str, view: View<'a>, columns: usize) -> Result<Self> {
        let format = format_of(op, what, view.dtype())?;
        let row_bytes = format.row_bytes(columns).ok_or_else(|| Error::shape(op, what, "whole blocks", columns))?;
        Ok(Blocks { format, bytes: read_bytes(view), row_bytes })
    }

    /// Rows from `first` on until `out` is full.
    fn rows(&self, first: usize, columns: usize, out: &mut [f32]) {
        let rows = out.len().checked_div(columns).unwrap_or(0);
        dequantise(self.format, &self.bytes[first * self.row_bytes..(first + rows) * self.row_bytes], out);
    }

    /// These columns, whole blocks, of rows from `first` on until `out` is full.
    fn band(&self, first: usize, columns: Range<usize>, out: &mut [f32]) {
        let of = |column: usize| column / self.format.elements() * self.format.bytes();
        for (row, out) in self.bytes.chunks_exact(self.row_bytes).skip(first).zip(out.chunks_exact_mut(columns.len())) {
            dequantise(self.format, &row[of(columns.start)..of(columns.end)], out);
        }
    }
}

/// Start of each group of `rows` rows, the last one taking a few rows that are left.
fn groups(n: usize, rows: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let count = if n % rows < gemm::LEAST_COLUMNS { n / rows } else { n.div_ceil(rows) }.max(1);
    (0..count).map(move |index| (index * rows, if index + 1 == count { n - index * rows } else { rows }))
}

pub(super) fn linear(threads: &Threads, a: QuantisedLinear<'_>) -> Result<()> {
    if a.m == 0 || a.n == 0 {
        return Ok(());
    }
    match a.y.dtype() {
        DType::F32 => typed::<f32>(threads, a),
        DType::F16 => typed::<f16>(threads, a),
        DType::BF16 => typed::<bf16>(threads, a),
        got => Err(super::floats::not_a_float(NAME, got)),
    }
}

/// A result of the type `T` as the kernels of `gemm` write it.
trait Written: Element + Default {
    fn target(values: &mut [Self]) -> Target<'_>;
    /// Room for `len` values in `len` f32.
    fn room(scratch: &mut [f32], len: usize) -> &mut [Self] {
        &mut bytemuck::cast_slice_mut(scratch)[..len]
    }
}

macro_rules! written {
    ($($rust:ty => $variant:ident),*) => {$(
        impl Written for $rust {
            fn target(values: &mut [Self]) -> Target<'_> {
                FloatsMut::$variant(values)
            }
        }
    )*};
}
written!(f32 => F32, f16 => F16, bf16 => Bf16);

/// The parts of a product that all groups share.
struct Operands<'a> {
    m: usize,
    n: usize,
    k: usize,
    x: Source<'a>,
    bias: Option<Source<'a>>,
    activation: Option<Activation<'a>>,
    blocks: Blocks<'a>,
    /// As [`Operand::in_bf16`], of both factors.
    in_bf16: bool,
}

impl Operands<'_> {
    /// The product of x and the rows of a group, from row `first` on, dequantised in `matrix`.
    fn product<'p>(
        &'p self,
        first: usize,
        matrix: &'p [f32],
        (c, ldc): (Target<'p>, usize),
        pre_activation: Option<(Target<'p>, usize)>,
    ) -> Product<'p> {
        let Operands { m, k, x, bias, activation, in_bf16, .. } = *self;
        let n = matrix.len() / k;
        Product {
            m,
            n,
            k,
            alpha: 1.0,
            a: Operand::rows(x, k).rounded(in_bf16),
            b: Operand::transposed(Source::F32(matrix), k).rounded(in_bf16),
            beta: 0.0,
            c,
            ldc,
            epilogue: Epilogue {
                bias: bias.map(|bias| bias.part(first, n)),
                pre_activation,
                activation,
                combination: None,
            },
        }
    }
}

/// Whether the dequantised matrix may be rounded to bf16: to the dtype of the other factor, or where f32 may be.
fn in_bf16(threads: &Threads, other: View<'_>) -> bool {
    other.dtype() == DType::BF16 || threads.bf16_products()
}

fn typed<T: Written>(threads: &Threads, a: QuantisedLinear<'_>) -> Result<()> {
    let QuantisedLinear { m, n, k, x, weight, y, epilogue } = a;
    let activation = epilogue.activation.map(|activation| move |run: &mut [f32]| activate(activation, run));
    let operands = Operands {
        m,
        n,
        k,
        x: Floats::of(NAME, x)?,
        bias: Floats::maybe(NAME, epilogue.bias)?,
        activation: activation.as_ref().map(|activation| activation as Activation<'_>),
        blocks: Blocks::new(NAME, "weight", weight, k)?,
        in_bf16: in_bf16(threads, x),
    };
    match epilogue.pre_activation {
        None if m <= FEW => few::<T>(threads, &operands, write_rows(NAME, y)?),
        copy => many(threads, &operands, y, copy),
    }
}

/// Threads take groups of their own.
fn few<T: Written>(threads: &Threads, operands: &Operands<'_>, y: Rows<'_, T>) -> Result<()> {
    let &Operands { m, n, k, ref blocks, .. } = operands;
    let groups: Vec<(usize, usize)> = groups(n, GROUP).collect();
    let one = |(first, rows): (usize, usize)| {
        scratch::with(|scratch::Scratch { matrix, results }| {
            let matrix = matrix.take(rows * k);
            blocks.rows(first, k, matrix);
            let results = T::room(results.take(m * rows), m * rows);
            gemm::product(gemm::Threads::Calling, operands.product(first, matrix, (T::target(results), rows), None))?;
            for (i, line) in results.chunks_exact(rows).enumerate() {
                // SAFETY: a group is given to one thread, and these columns are its own.
                unsafe { y.part(i * n + first, rows) }.copy_from_slice(line);
            }
            Ok(())
        })
    };
    let workers = if n * k < WORTH_SPLITTING { 1 } else { threads.count() };
    let (next, failed) = (gemm::Tickets::default(), std::sync::OnceLock::<Error>::new());
    let work = || {
        while let Some(run) = next.run(0..groups.len(), |_, left| left.div_ceil(2 * workers)) {
            if let Err(error) = groups[run].iter().try_for_each(|group| one(*group)) {
                // The first failure is reported.
                let _ = failed.set(error);
            }
        }
    };
    threads.run(workers, work);
    failed.into_inner().map_or(Ok(()), Err)
}

/// All threads dequantise a group, and multiply it.
fn many(threads: &Threads, operands: &Operands<'_>, y: ViewMut<'_>, pre_activation: Option<ViewMut<'_>>) -> Result<()> {
    let &Operands { m, n, k, ref blocks, .. } = operands;
    let mut y = FloatsMut::of(NAME, y)?;
    let mut copy = pre_activation.map(|copy| FloatsMut::of(NAME, copy)).transpose()?;
    let of_product = if threads.count() == 1 { gemm::Threads::Calling } else { gemm::Threads::Pool(threads) };
    scratch::with(|scratch::Scratch { matrix, .. }| {
        for (first, rows) in groups(n, (ELEMENTS / k.max(1)).max(LEAST_ROWS)) {
            let matrix = matrix.take(rows * k);
            threads.for_each_piece(matrix, ROWS_AT_ONCE * k, |index, piece| {
                blocks.rows(first + index * ROWS_AT_ONCE, k, piece);
            });
            let len = (m - 1) * n + rows;
            let copy = copy.as_mut().map(|copy| (copy.part(first, len), n));
            gemm::product(of_product, operands.product(first, matrix, (y.part(first, len), n), copy))?;
        }
        Ok(())
    })
}

pub(super) fn rows(threads: &Threads, a: QuantisedRows<'_>) -> Result<()> {
    const NAME: &str = "quantised_rows";
    let (columns, adds) = (a.columns, a.out.add);
    let ids = checked_ids(NAME, read(NAME, a.ids)?, a.entries)?;
    let (table, out) = (Blocks::new(NAME, "table", a.table, columns)?, FloatsMut::of(NAME, a.out.view)?);
    threads.for_each_part(out.rows(columns), ids.len(), rows_at_once(columns), |first, rows, mut out| {
        scratch::with(|scratch::Scratch { matrix, .. }| {
            let (values, mut spare) = (matrix.take(columns), Spare::new());
            for (row, id) in ids[first..first + rows].iter().enumerate() {
                table.rows(*id as usize, columns, values);
                for (start, len) in tiles(columns) {
                    let x = &values[start..start + len];
                    out.data.update(row * columns + start, len, adds, &mut spare, |out| {
                        if adds { add(x, out) } else { out.copy_from_slice(x) }
                    });
                }
            }
        });
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ctx, Device, Tensor, Var, ops};

    #[test]
    fn groups_cover_all_rows_and_none_is_too_small() {
        for (n, rows) in (1..200).flat_map(|n| [8, 24, 96].map(|rows| (n, rows))) {
            let groups: Vec<_> = groups(n, rows).collect();
            let mut next = 0;
            for (first, count) in &groups {
                let is_large = *count >= gemm::LEAST_COLUMNS || *count == n;
                let fits = *first == next && *count < rows + gemm::LEAST_COLUMNS && is_large;
                assert!(fits, "{n} in {rows}: {groups:?}");
                next += count;
            }
            assert_eq!(next, n);
        }
    }

    #[test]
    fn few_rows_need_scratch_for_one_group() {
        let (n, k) = (1000, 1024);
        let device = Device::cpu(1).unwrap();
        let cx = Ctx::inference(&device);
        let bytes = vec![0u8; n * BlockFormat::Q8_0.row_bytes(k).unwrap()];
        let weight = Var::constant(Tensor::from_blocks(&device, BlockFormat::Q8_0, k, &bytes).unwrap());
        let x = Var::constant(Tensor::zeros(&device, [3, k], DType::F32).unwrap());
        let y = ops::linear(&cx, &x, &weight, None, None).unwrap();
        assert_eq!(y.shape(), [3, n].into());
        let held = scratch::with(|scratch| scratch.bytes());
        // Rows of a group, the results and two cache lines.
        let most = 4 * (GROUP + 1) * (k + 3) + 1024;
        assert!((4 * GROUP * k..=most).contains(&held), "{held} of {most}");
    }
}
