//! Runs the arguments of [`Gemm`] on the engine of this module.

use crate::cpu::floats::{Floats, FloatsMut};
use crate::cpu::gemm::{self, BatchedProduct, Operand, Product};
use crate::cpu::math::{activate, times_slope};
use crate::cpu::reduce::column_sum;
use crate::cpu::rows::add;
use crate::cpu::threads::Threads;
use crate::error::Result;
use crate::kernel::{ColumnSum, Gemm, Matrix};

const NAME: &str = "gemm";

pub(in crate::cpu) fn gemm(threads: &Threads, a: Gemm<'_>) -> Result<()> {
    let Gemm { m, n, k, alpha, a, b, beta, c, batch, epilogue } = a;
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
    let levels = |[outer, inner]: [usize; 2]| [outer, inner, 0];
    let (a_stride, b_stride, c_stride) = (levels(a.batch), levels(b.batch), levels(c.batch));
    let first = Product {
        m,
        n,
        k,
        alpha,
        a: operand(a)?,
        b: operand(b)?,
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

fn operand(matrix: Matrix<'_>) -> Result<Operand<'_>> {
    let data = Floats::of(NAME, matrix.view)?;
    Ok(if matrix.transposed { Operand::transposed(data, matrix.ld) } else { Operand::rows(data, matrix.ld) })
}
