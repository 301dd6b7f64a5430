//! Matrix products: the arguments of [`Gemm`] handed to the engine in [`super::gemm`].

use super::floats::{Floats, FloatsMut};
use super::gemm::{self, BatchedProduct, Operand, Product, Source, Target};
use super::math::activate;
use super::threads::Threads;
use crate::error::Result;
use crate::kernel::{Gemm, Matrix};

const NAME: &str = "gemm";

impl<'a> From<Floats<'a>> for Source<'a> {
    fn from(floats: Floats<'a>) -> Self {
        match floats {
            Floats::F32(data) => Source::F32(data),
            Floats::F16(data) => Source::F16(data),
            Floats::Bf16(data) => Source::Bf16(data),
        }
    }
}

impl<'a> From<FloatsMut<'a>> for Target<'a> {
    fn from(floats: FloatsMut<'a>) -> Self {
        match floats {
            FloatsMut::F32(data) => Target::F32(data),
            FloatsMut::F16(data) => Target::F16(data),
            FloatsMut::Bf16(data) => Target::Bf16(data),
        }
    }
}

pub(super) fn gemm(threads: &Threads, a: Gemm<'_>) -> Result<()> {
    let Gemm { m, n, k, alpha, a, b, beta, c, batch, epilogue } = a;
    let count = [batch.outer, batch.inner, 1];
    if m == 0 || n == 0 || count.contains(&0) {
        return Ok(());
    }
    let activation = epilogue.activation.map(|activation| move |run: &mut [f32]| activate(activation, run));
    let bias = Floats::maybe(NAME, epilogue.bias)?;
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
        c: FloatsMut::of(NAME, c.view)?.into(),
        ldc: c.ld,
        epilogue: gemm::Epilogue {
            bias: bias.map(Source::from),
            pre_activation: copy.map(|copy| (Target::from(copy), n)),
            activation: activation.as_ref().map(|activation| activation as gemm::Activation<'_>),
            gradient: None,
        },
    };
    let threads = if threads.count() == 1 { gemm::Threads::Calling } else { gemm::Threads::Pool(threads.pool()) };
    if count == [1; 3] {
        return gemm::product(threads, first);
    }
    gemm::product_batch(threads, BatchedProduct { first, count, a_stride, b_stride, c_stride })
}

fn operand(matrix: Matrix<'_>) -> Result<Operand<'_>> {
    let data = Source::from(Floats::of(NAME, matrix.view)?);
    Ok(if matrix.transposed { Operand::transposed(data, matrix.ld) } else { Operand::rows(data, matrix.ld) })
}
