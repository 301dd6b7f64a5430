//! Elementwise kernels: sums, products, constants (here), activations (`activation`), casts (`cast`).

mod activation;
mod cast;
pub(super) use activation::{
    activation_backward, activation_forward, activation_in_place, gated_backward, gated_forward, gated_in_place,
};
pub(super) use cast::cast;

use super::access::write;
use super::floats::{Floats, FloatsMut, Spare, tiles};
use crate::dtype::{DType, Element, Float};
use crate::error::Result;
use crate::kernel::{AddScaled, Fill, Multiply};
use crate::simd::vectorised;
use crate::threads::Threads;
use half::{bf16, f16};

/// Elements of a piece of work: some tens of microseconds, well above what handing it to a thread costs.
const PIECE: usize = 1 << 15;

/// Run `work(inputs, out)` over tiles of inputs and output; with `old` the output tile holds its old values.
pub(super) fn each<const N: usize>(
    threads: &Threads,
    inputs: [Floats<'_>; N],
    out: FloatsMut<'_>,
    old: bool,
    work: impl Fn([&[f32]; N], &mut [f32]) + Send + Sync,
) {
    let len = out.len();
    threads.for_each_part(out.rows(1), len, PIECE, |first, len, mut out| {
        let (mut spares, mut out_spare) = ([const { Spare::new() }; N], Spare::new());
        for (start, len) in tiles(len) {
            let mut spares = spares.iter_mut();
            let inputs = inputs.map(|input| match spares.next() {
                Some(spare) => input.tile(first + start, len, spare),
                None => &[],
            });
            out.data.update(start, len, old, &mut out_spare, |out| work(inputs, out));
        }
    });
}

pub(super) fn add_scaled(threads: &Threads, a: AddScaled<'_>) -> Result<()> {
    const NAME: &str = "add_scaled";
    let (alpha, beta, out) = (a.alpha, a.beta, FloatsMut::of(NAME, a.out)?);
    let (a, b) = (Floats::of(NAME, a.a)?, Floats::maybe(NAME, a.b)?);
    match b {
        _ if beta == 0.0 => each(threads, [a], out, false, |[a], out| scaled(alpha, a, out)),
        Some(b) => each(threads, [a, b], out, false, |[a, b], out| sum(alpha, a, beta, b, out)),
        None => each(threads, [a], out, true, |[a], out| sum_in_place(alpha, a, beta, out)),
    }
    Ok(())
}

pub(super) fn multiply(threads: &Threads, a: Multiply<'_>) -> Result<()> {
    const NAME: &str = "multiply";
    let (add, out) = (a.out.add, FloatsMut::of(NAME, a.out.view)?);
    let (a, b) = (Floats::of(NAME, a.a)?, Floats::maybe(NAME, a.b)?);
    match b {
        Some(b) if add => each(threads, [a, b], out, true, |[a, b], out| product_added(a, b, out)),
        Some(b) => each(threads, [a, b], out, false, |[a, b], out| product(a, b, out)),
        None => each(threads, [a], out, true, |[a], out| product_in_place(a, out)),
    }
    Ok(())
}

vectorised! {
    fn scaled<I>(alpha: f32, a: &[f32], out: &mut [f32]) {
        for (out, a) in out.iter_mut().zip(a) {
            *out = alpha * a;
        }
    }

    fn sum<I>(alpha: f32, a: &[f32], beta: f32, b: &[f32], out: &mut [f32]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = I::mul_add(alpha, *a, beta * b);
        }
    }

    fn sum_in_place<I>(alpha: f32, a: &[f32], beta: f32, out: &mut [f32]) {
        for (out, a) in out.iter_mut().zip(a) {
            *out = I::mul_add(alpha, *a, beta * *out);
        }
    }

    fn product<I>(a: &[f32], b: &[f32], out: &mut [f32]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = a * b;
        }
    }

    fn product_added<I>(a: &[f32], b: &[f32], out: &mut [f32]) {
        for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = I::mul_add(*a, *b, *out);
        }
    }

    fn product_in_place<I>(a: &[f32], out: &mut [f32]) {
        for (out, a) in out.iter_mut().zip(a) {
            *out *= a;
        }
    }
}

pub(super) fn fill(threads: &Threads, a: Fill<'_>) -> Result<()> {
    fn with<T: Element>(threads: &Threads, a: Fill<'_>, value: T) -> Result<()> {
        threads.for_each_piece(write::<T>("fill", a.out)?, PIECE, |_, piece| piece.fill(value));
        Ok(())
    }
    let value = a.value;
    // `as` from float to integer saturates, and turns NaN into 0.
    match a.out.dtype() {
        DType::F32 => with(threads, a, value),
        DType::F16 => with(threads, a, <f16 as Float>::from_f32(value)),
        DType::BF16 => with(threads, a, <bf16 as Float>::from_f32(value)),
        DType::I64 => with(threads, a, value as i64),
        DType::I32 => with(threads, a, value as i32),
        DType::U8 => with(threads, a, value as u8),
        got @ DType::Blocks(_) => Err(super::floats::not_a_float("fill", got)),
    }
}
