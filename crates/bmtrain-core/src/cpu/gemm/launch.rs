//! Runs the arguments of [`Gemm`] on the engine of this module.

use crate::cpu::floats::{Floats, FloatsMut};
use crate::cpu::gemm::{self, BatchedProduct, Operand, Product};
use crate::cpu::math::{activate, times_slope};
use crate::cpu::reduce::column_sum;
use crate::cpu::rows::add;
use crate::error::Result;
use crate::fp8::{Fp8Factors, Fp8Format};
use crate::kernel::{ColumnSum, Gemm, Matrix};
use crate::threads::Threads;

const NAME: &str = "gemm";

pub(in crate::cpu) fn gemm(threads: &Threads, a: Gemm<'_>) -> Result<()> {
    let Gemm { m, n, k, alpha, a, b, beta, c, batch, epilogue, fp8 } = a;
    let count = [batch.outer, batch.inner, 1];
    if count.contains(&0) {
        return Ok(());
    }
    if let Some(out) = epilogue.sums_of_a {
        column_sum(threads, ColumnSum { rows: k, columns: m, x: a.view.part(0, k * m)?, out })?;
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    let activation = epilogue.activation.map(|activation| move |run: &mut [f32]| activate(activation, run));
    let bias = Floats::maybe(NAME, epilogue.bias)?;
    let slope = epilogue.derivative.map(|(activation, points)| {
        let times = move |run: &mut [f32], points: &[f32]| times_slope(activation, points, run);
        Floats::of(NAME, points).map(|points| (points, times))
    });
    let slope = slope.transpose()?;
    let slope = slope.as_ref().map(|(points, times)| (*points, n, times as gemm::Combination<'_>));
    // In f32 with the bits of an addition after the product.
    let plus = |run: &mut [f32], residual: &[f32]| add(residual, run);
    let added = Floats::maybe(NAME, epilogue.residual)?.map(|residual| (residual, n, &plus as gemm::Combination<'_>));
    let copy = epilogue.pre_activation.map(|copy| FloatsMut::of(NAME, copy)).transpose()?;
    let rounded = match fp8 {
        Some(Fp8Factors { a: of_a, b: of_b }) => Some([Rounded::of(of_a, &a, [m, k])?, Rounded::of(of_b, &b, [k, n])?]),
        None => None,
    };
    let (alpha, left, right) = match &rounded {
        Some([a, b]) => (alpha * a.factor * b.factor, a.operand(), b.operand()),
        None => {
            let in_bf16 = threads.bf16_products();
            (alpha, operand(&a)?.rounded(in_bf16), operand(&b)?.rounded(in_bf16))
        }
    };
    let levels = |[outer, inner]: [usize; 2]| [outer, inner, 0];
    let (a_stride, b_stride, c_stride) = (levels(a.batch), levels(b.batch), levels(c.batch));
    let first = Product {
        m,
        n,
        k,
        alpha,
        a: left,
        b: right,
        beta,
        c: FloatsMut::of(NAME, c.view)?,
        ldc: c.ld,
        epilogue: gemm::Epilogue {
            bias,
            pre_activation: copy.map(|copy| (copy, n)),
            activation: activation.as_ref().map(|activation| activation as gemm::Activation<'_>),
            combination: slope.or(added),
        },
    };
    let threads = if threads.count() == 1 { gemm::Threads::Calling } else { gemm::Threads::Pool(threads) };
    if count == [1; 3] {
        return gemm::product(threads, first);
    }
    gemm::product_batch(threads, BatchedProduct { first, count, a_stride, b_stride, c_stride })
}

/// A factor in 8 bits, widened: what a device would multiply.
struct Rounded {
    /// As the factor is stored, without gaps.
    values: Vec<f32>,
    columns: usize,
    transposed: bool,
    /// Factor of the product.
    factor: f32,
}

impl Rounded {
    fn of(format: Fp8Format, matrix: &Matrix<'_>, [rows, columns]: [usize; 2]) -> Result<Self> {
        let data = Floats::of(NAME, matrix.view)?;
        let (rows, columns) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
        let mut values = vec![0.0; rows * columns];
        for (row, to) in values.chunks_exact_mut(columns.max(1)).enumerate() {
            data.widen(row * matrix.ld, to);
        }
        // As bits: the largest of NaN and numbers is NaN.
        let largest = values.iter().map(|value| value.abs().to_bits()).max().map_or(0.0, f32::from_bits);
        let scale = format.scale(largest);
        values.iter_mut().for_each(|value| *value = format.decode(format.encode(*value * scale)));
        Ok(Rounded { values, columns, transposed: matrix.transposed, factor: scale.recip() })
    }

    fn operand(&self) -> Operand<'_> {
        let data = Floats::F32(&self.values);
        if self.transposed { Operand::transposed(data, self.columns) } else { Operand::rows(data, self.columns) }
    }
}

fn operand<'a>(matrix: &Matrix<'a>) -> Result<Operand<'a>> {
    let data = Floats::of(NAME, matrix.view)?;
    Ok(if matrix.transposed { Operand::transposed(data, matrix.ld) } else { Operand::rows(data, matrix.ld) })
}
