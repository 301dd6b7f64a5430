//! Software models of products of blocks, from the definitions of TDPBF16PS and VDPBF16PS in Intel's manual and of
//! BFMMLA in Arm's: they have the bits of the instructions, but for the payload of a NaN.
#![allow(unsafe_code)]

use super::{Multiply, STEP, STEP_LEN, TILE};
use half::bf16;

/// An instruction, whose results a model has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cpu) enum Instruction {
    /// The product of tiles of AMX.
    Tdpbf16ps,
    /// The dot product of pairs of AVX512_BF16.
    Vdpbf16ps,
    /// The product of 2 x 4 by 4 x 2 of FEAT_BF16, where FPCR.EBF is 0, as it is unless a program sets it.
    Bfmmla,
}

/// Computes a block whose lengths were checked by [`super::Session::multiply`].
///
/// # Safety
/// As for that function.
pub(super) unsafe fn multiply(instruction: Instruction, block: Multiply<'_>) {
    let Multiply { a, b, rows, columns, from, to, .. } = block;
    let (height, width) = (rows.next_multiple_of(TILE), columns.next_multiple_of(TILE));
    for (i, j) in (0..height).flat_map(|i| (0..width).map(move |j| (i, j))) {
        // SAFETY: the element is of a whole tile, for which the caller vouches.
        let mut sum = from.map_or(0.0, |from| unsafe { *from.first.add(i * from.row + j) });
        for (a, b) in a.chunks_exact(STEP_LEN).zip(b.chunks_exact(STEP_LEN)) {
            let left = &a[i * STEP..][..STEP];
            let right = &b[j / TILE * (STEP_LEN / 2) + j % TILE * 2..];
            sum = instruction.add_step(sum, left, |p| right[p / 2 * STEP + p % 2]);
        }
        // SAFETY: as above.
        unsafe { *to.first.add(i * to.row + j) = sum };
    }
}

impl Instruction {
    /// The sum of an element after one step: `left` has the terms of its row, `right(p)` the terms of its column.
    pub(super) fn add_step(self, sum: f32, left: &[bf16], right: impl Fn(usize) -> bf16) -> f32 {
        let add = |to: f32, p: usize| multiply_add(widen(left[p]), widen(right(p)), to);
        match self {
            Instruction::Tdpbf16ps => {
                let chain = |first: usize| (first..left.len()).step_by(2).fold(0.0, add);
                flush(flush(sum) + flush(chain(0) + chain(1)))
            }
            Instruction::Vdpbf16ps => {
                let pairs = (0..left.len()).step_by(2);
                pairs.fold(flush(sum), |sum, even| add(add(sum, even + 1), even))
            }
            Instruction::Bfmmla => {
                // Exact where it is a normal number: it has 16 significant bits.
                let product = |p: usize| flush(widen(left[p]) * widen(right(p)));
                let pairs = (0..left.len()).step_by(2);
                pairs.fold(flush(sum), |sum, even| add_to_odd(sum, add_to_odd(product(even), product(even + 1))))
            }
        }
    }
}

/// A bf16 as f32; subnormal numbers are zeros.
fn widen(narrow: bf16) -> f32 {
    flush(f32::from_bits(u32::from(narrow.to_bits()) << 16))
}

/// Zero with the sign of a subnormal number, every other value as it is.
fn flush(value: f32) -> f32 {
    if value.is_subnormal() { 0.0_f32.copysign(value) } else { value }
}

/// `x * y + z`, rounded once; zero if the rounded result would be subnormal. `x` and `y` are bf16.
fn multiply_add(x: f32, y: f32, z: f32) -> f32 {
    let product = x * y;
    // A product of two bf16 has 16 significant bits: if it is a normal number it is exact.
    let sum =
        if product.is_normal() || product == 0.0 && (x == 0.0 || y == 0.0) { product + z } else { x.mul_add(y, z) };
    if sum.abs() == f32::MIN_POSITIVE {
        // The instruction rounds to 24 bits before it looks whether the result is subnormal, an f32 near the least
        // normal number has 23. What differs is the quarter of a unit below it. The sum is exact in f64: the addend is
        // a multiple of 2^-149, and a product near that has its last bit above 2^-180.
        const LEAST_THAT_ROUNDS_UP: f64 = f32::MIN_POSITIVE as f64 * (1.0 - 1.0 / (1_u64 << 25) as f64);
        let exact = f64::from(x) * f64::from(y) + f64::from(z);
        if exact.abs() < LEAST_THAT_ROUNDS_UP {
            return 0.0_f32.copysign(sum);
        }
    }
    flush(sum)
}

/// `x + y`, rounded to odd; zero if it is subnormal, infinite from 2^128 on. Neither number is subnormal.
fn add_to_odd(x: f32, y: f32) -> f32 {
    /// The bits that an f64 has beyond an f32's.
    const MORE: u64 = (1 << 29) - 1;
    let (x, y) = (f64::from(x), f64::from(y));
    let sum = x + y;
    if !sum.is_finite() {
        return sum as f32;
    }
    // Rounded to odd in f64, then again: that leaves the bits of one rounding. What the sum lacks is exact.
    let (large, small) = if x.abs() < y.abs() { (y, x) } else { (x, y) };
    let lacking = small - (sum - large);
    let bits = match sum.to_bits() {
        bits if lacking == 0.0 || bits & 1 == 1 => bits,
        bits if lacking.is_sign_negative() == sum.is_sign_negative() => bits + 1,
        bits => bits - 1,
    };
    let inexact = u64::from(bits & MORE != 0);
    // Subnormal sums are exact: both numbers are multiples of the least one.
    flush(f64::from_bits((bits & !MORE) | (inexact * (MORE + 1))) as f32)
}
