//! Blocks by the vector registers of AArch64: BFMMLA of FEAT_BF16.
//!
//! The instruction multiplies two rows by two columns, of four terms each, and adds to a *square* of 2 x 2 sums, which
//! is a register. Squares become parts of rows, and rows squares, where sums are loaded and stored.
#![allow(unsafe_code)]

use super::{BLOCK, FETCHED, Multiply, STEP, STEP_LEN, Sums, TILE};
use crate::cpu::vector::{LINE, SECOND, fetch};
use half::bf16;
use std::arch::aarch64::{
    float32x4_t, uint16x8_t, vcombine_u16, vdupq_n_f32, vld1_u16, vld1q_f32, vld1q_u16, vreinterpretq_f32_u64,
    vreinterpretq_u16_u32, vreinterpretq_u32_u16, vreinterpretq_u64_f32, vst1q_f32, vzip1q_u32, vzip1q_u64, vzip2q_u32,
    vzip2q_u64,
};
use std::arch::asm;
use std::hint::black_box;

/// Terms of one instruction.
const TERMS: usize = 4;

/// Columns of a group, which are half a tile, and the squares beside each other in them.
const COLUMNS: usize = 8;
const ACROSS: usize = COLUMNS / 2;

/// Pairs of rows in the tallest group: with the columns of four squares and two rows, 30 of 32 registers are in use.
const TALLEST: usize = 6;

/// Sums a group of pairs of rows over all steps, from a row and a column on.
type Routine = unsafe fn(&Multiply<'_>, usize, usize);

/// `ROUTINES[pairs - 1]`.
static ROUTINES: [Routine; TALLEST] = [group::<1>, group::<2>, group::<3>, group::<4>, group::<5>, group::<6>];

/// Computes a block whose lengths were checked by [`super::Session::multiply`].
///
/// # Safety
/// As for that function; the machine must have FEAT_BF16.
pub(super) unsafe fn multiply(block: Multiply<'_>) {
    let pairs = block.rows.div_ceil(2);
    let groups = pairs.div_ceil(TALLEST);
    let (height, taller) = (pairs / groups, pairs % groups);
    let mut first = 0;
    for index in 0..groups {
        let pairs = height + usize::from(index < taller);
        for column in (0..block.columns).step_by(COLUMNS) {
            // SAFETY: by the caller; these rows and columns begin in the block.
            unsafe { ROUTINES[pairs - 1](&block, first, column) };
        }
        first += 2 * pairs;
    }
}

/// # Safety
/// As for [`multiply`], of rows `first..first + 2 * PAIRS`, whose last one may be beyond the block, and of [`COLUMNS`]
/// columns from `column` on.
#[target_feature(enable = "neon,bf16")]
unsafe fn group<const PAIRS: usize>(block: &Multiply<'_>, first: usize, column: usize) {
    let Multiply { a, b, rows, from, to, next, .. } = *block;
    let at = |sums: Sums, i: usize, half: usize| sums.first.wrapping_add(i * sums.row + column + half * TERMS);
    // SAFETY: the caller vouches for the sums, which are read and written by half tiles of rows of the block; operands
    // are whole steps with 32 rows and two tiles of columns.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); ACROSS]; PAIRS];
        if let Some(from) = from {
            for (pair, squares) in sums.iter_mut().enumerate() {
                let i = first + 2 * pair;
                for half in 0..2 {
                    let upper = vld1q_f32(at(from, i, half));
                    let lower = if i + 1 < rows { vld1q_f32(at(from, i + 1, half)) } else { upper };
                    [squares[2 * half], squares[2 * half + 1]] = exchange(upper, lower);
                }
            }
        }
        for step in 0..a.len() / STEP_LEN {
            let a = a.as_ptr().add(step * STEP_LEN + first * STEP);
            let b = b.as_ptr().add(step * STEP_LEN + column / TILE * (STEP_LEN / 2) + column % TILE * 2);
            if first == 0 && column == 0 {
                for line in 0..FETCHED {
                    fetch::<SECOND>(next.as_ptr().cast::<f32>().wrapping_add((step * FETCHED + line) * LINE));
                }
            }
            for p in (0..STEP).step_by(TERMS) {
                // A row of pairs is `STEP` numbers.
                let b = b.add(p / 2 * STEP);
                let ([c0, c1], [c2, c3]) = (columns(b), columns(b.add(COLUMNS)));
                for (pair, squares) in sums.iter_mut().enumerate() {
                    let a = a.add(2 * pair * STEP + p).cast();
                    let rows = vcombine_u16(vld1_u16(a), vld1_u16(a.add(STEP)));
                    for (sum, columns) in squares.iter_mut().zip([c0, c1, c2, c3]) {
                        *sum = add_product(*sum, rows, columns);
                    }
                }
            }
        }
        for (pair, squares) in sums.iter().enumerate() {
            let i = first + 2 * pair;
            for half in 0..2 {
                let [upper, lower] = exchange(squares[2 * half], squares[2 * half + 1]);
                vst1q_f32(at(to, i, half), upper);
                if i + 1 < rows {
                    vst1q_f32(at(to, i + 1, half), lower);
                }
            }
        }
    }
}

/// Four columns by four terms, in two registers. In memory the pairs of four columns are side by side.
///
/// # Safety
/// Two rows of four pairs must be valid, [`STEP`] elements apart.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn columns(from: *const bf16) -> [uint16x8_t; 2] {
    // SAFETY: by the caller.
    let (early, late) = unsafe { (vld1q_u16(from.cast()), vld1q_u16(from.add(STEP).cast())) };
    let (early, late) = (vreinterpretq_u32_u16(early), vreinterpretq_u32_u16(late));
    [vreinterpretq_u16_u32(vzip1q_u32(early, late)), vreinterpretq_u16_u32(vzip2q_u32(early, late))]
}

/// Two rows of four as two squares side by side, or the other way round.
#[inline]
#[target_feature(enable = "neon")]
fn exchange(x: float32x4_t, y: float32x4_t) -> [float32x4_t; 2] {
    let (x, y) = (vreinterpretq_u64_f32(x), vreinterpretq_u64_f32(y));
    [vreinterpretq_f32_u64(vzip1q_u64(x, y)), vreinterpretq_f32_u64(vzip2q_u64(x, y))]
}

/// Adds the products of two rows by two columns to a square. The standard library has no stable function for it.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn add_product(mut sums: float32x4_t, rows: uint16x8_t, columns: uint16x8_t) -> float32x4_t {
    // SAFETY: the function is called where the processor has the instruction, which reads and writes these registers
    // alone. The compiler is not told that it leaves memory alone: it would load all rows of a group before the first
    // product, and there are no registers for them beside the sums.
    unsafe {
        asm!(
            "bfmmla {sums:v}.4s, {rows:v}.8h, {columns:v}.8h",
            sums = inout(vreg) sums,
            rows = in(vreg) rows,
            columns = in(vreg) columns,
            options(nostack, preserves_flags),
        );
    }
    sums
}

/// Products in registers, of numbers of ordinary size: [`super::Unit::SPIN_OPERATIONS`] a round.
///
/// # Safety
/// The machine must have FEAT_BF16.
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn spin(rounds: usize) {
    /// Chains that hide the latency of the instruction.
    const CHAINS: usize = 16;
    /// Multiply-adds of one instruction.
    const OF_ONE: usize = 2 * 2 * TERMS;
    let numbers: [bf16; 2 * 2 * TERMS] = std::array::from_fn(|at| bf16::from_f32((at * 7 % 23) as f32 / 11.5 - 1.0));
    // SAFETY: there are two vectors of numbers.
    let (x, y) = unsafe { (vld1q_u16(numbers.as_ptr().cast()), vld1q_u16(numbers[2 * TERMS..].as_ptr().cast())) };
    let mut sums = [vdupq_n_f32(0.0); CHAINS];
    for _ in 0..rounds * (BLOCK * BLOCK * STEP / (CHAINS * OF_ONE)) {
        for sum in &mut sums {
            *sum = add_product(*sum, x, y);
        }
    }
    black_box(sums);
}
