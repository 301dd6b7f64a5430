//! Runs the arguments of [`Gemm`] on the engine of this module.

use crate::cpu::elementwise::add_scaled;
use crate::cpu::floats::{Floats, FloatsMut};
use crate::cpu::gemm::{self, BatchedProduct, Operand, Product};
use crate::cpu::math::{activate, times_slope};
use crate::cpu::reduce::column_sum;
use crate::cpu::threads::Threads;
use crate::dtype::DType;
use crate::error::Result;
use crate::kernel::{AddScaled, ColumnSum, Gemm, Matrix};

const NAME: &str = "gemm";

pub(in crate::cpu) fn gemm(threads: &Threads, a: Gemm<'_>) -> Result<()> {
    let Gemm { m, n, k, alpha, a, b, mut beta, mut c, batch, epilogue } = a;
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
    // To f32 it is added after the product: the same bits as a sum of its own, over however many stretches. A 16-bit
    // result begins with it and is rounded once.
    let is_last = c.view.dtype() == DType::F32;
    if let Some(residual) = epilogue.residual.filter(|_| !is_last) {
        add_scaled(threads, AddScaled { alpha: 1.0, a: residual, beta: 0.0, b: None, out: c.view.reborrow() })?;
        beta = 1.0;
    }
    let activation = epilogue.activation.map(|activation| move |run: &mut [f32]| activate(activation, run));
    let bias = Floats::maybe(NAME, epilogue.bias)?;
    let slope = epilogue.derivative.map(|(activation, points)| {
        let times = move |run: &mut [f32], points: &[f32]| times_slope(activation, points, run);
        Floats::of(NAME, points).map(|points| (points, times))
    });
    let slope = slope.transpose()?;
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
        c: FloatsMut::of(NAME, c.view.reborrow())?,
        ldc: c.ld,
        epilogue: gemm::Epilogue {
            bias,
            pre_activation: copy.map(|copy| (copy, n)),
            activation: activation.as_ref().map(|activation| activation as gemm::Activation<'_>),
            gradient: slope.as_ref().map(|(points, times)| (*points, n, times as gemm::ActivationGradient<'_>)),
        },
    };
    let of_product = if threads.count() == 1 { gemm::Threads::Calling } else { gemm::Threads::Pool(threads) };
    if count == [1; 3] {
        gemm::product(of_product, first)?;
    } else {
        gemm::product_batch(of_product, BatchedProduct { first, count, a_stride, b_stride, c_stride })?;
    }
    match epilogue.residual.filter(|_| is_last) {
        Some(a) => add_scaled(threads, AddScaled { alpha: 1.0, a, beta: 1.0, b: None, out: c.view }),
        None => Ok(()),
    }
}

fn operand(matrix: Matrix<'_>) -> Result<Operand<'_>> {
    let data = Floats::of(NAME, matrix.view)?;
    Ok(if matrix.transposed { Operand::transposed(data, matrix.ld) } else { Operand::rows(data, matrix.ld) })
}
