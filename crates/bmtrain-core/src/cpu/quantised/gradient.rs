//! The gradient of the input of a product with a matrix in quantised blocks.
//!
//! A band of the matrix's columns is dequantised at a time, in all its rows, so that each element of the gradient is
//! one sum: a product with the dequantised matrix has the same bits, and 16-bit results are rounded once.

use super::super::floats::{Floats, FloatsMut};
use super::super::gemm::{self, Combination, Epilogue, Operand, Product, Source};
use super::super::math::times_slope;
use super::{Blocks, ELEMENTS, ROWS_AT_ONCE, in_bf16, scratch};
use crate::error::Result;
use crate::kernel::{Dest, QuantisedInputGradient};
use crate::threads::Threads;

const NAME: &str = "quantised_input_gradient";

/// Least columns of a band: dy is packed again for each.
const LEAST_COLUMNS: usize = 256;

/// Columns of a band of a matrix of `n` rows in blocks of `elements`: whole blocks.
fn band(n: usize, elements: usize) -> usize {
    (ELEMENTS / n.max(1)).max(LEAST_COLUMNS).next_multiple_of(elements)
}

pub(in crate::cpu) fn input_gradient(threads: &Threads, a: QuantisedInputGradient<'_>) -> Result<()> {
    let QuantisedInputGradient { m, n, k, dy, weight, dx: Dest { view: dx, add }, derivative } = a;
    if m == 0 || k == 0 {
        return Ok(());
    }
    let blocks = Blocks::new(NAME, "weight", weight, k)?;
    let in_bf16 = in_bf16(threads, dy);
    let (dy, mut dx) = (Floats::of(NAME, dy)?, FloatsMut::of(NAME, dx)?);
    let slope = derivative.map(|(activation, points)| {
        let times = move |run: &mut [f32], points: &[f32]| times_slope(activation, points, run);
        Floats::of(NAME, points).map(|points| (points, times))
    });
    let slope = slope.transpose()?;
    let of_product = if threads.count() == 1 { gemm::Threads::Calling } else { gemm::Threads::Pool(threads) };
    let width = band(n, blocks.format.elements());
    scratch::with(|scratch::Scratch { matrix, .. }| {
        for first in (0..k).step_by(width) {
            let columns = width.min(k - first);
            let matrix = matrix.take(n * columns);
            threads.for_each_piece(matrix, ROWS_AT_ONCE * columns, |index, piece| {
                blocks.band(index * ROWS_AT_ONCE, first..first + columns, piece);
            });
            let len = (m - 1) * k + columns;
            let gradient = slope.as_ref().map(|(points, times)| (points.part(first, len), k, times as Combination<'_>));
            gemm::product(
                of_product,
                Product {
                    m,
                    n: columns,
                    k: n,
                    alpha: 1.0,
                    a: Operand::rows(dy, n).rounded(in_bf16),
                    b: Operand::rows(Source::F32(matrix), columns).rounded(in_bf16),
                    beta: if add { 1.0 } else { 0.0 },
                    c: dx.part(first, len),
                    ldc: k,
                    epilogue: Epilogue { combination: gradient, ..Epilogue::default() },
                },
            )?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::BlockFormat;

    #[test]
    fn bands_are_whole_blocks_of_bounded_size() {
        for format in BlockFormat::ALL {
            for n in [0, 1, 64, 576, 3072, 4096, 1 << 17] {
                let width = band(n, format.elements());
                assert!(width.is_multiple_of(format.elements()) && width >= LEAST_COLUMNS, "{format}: {n} x {width}");
                assert!(width == LEAST_COLUMNS || n * width <= ELEMENTS + n * format.elements(), "{format}: {n}");
            }
        }
    }
}
