//! Blocks by the vector registers: VDPBF16PS of AVX512_BF16.
//!
//! On AMD's processors, Zen 4 and later, it does twice as many multiply-adds a cycle as f32 has.
#![allow(unsafe_code)]

use super::{BLOCK, FETCHED, Multiply, STEP, STEP_LEN, Sums, TILE};
use crate::cpu::vector::{LINE, SECOND, fetch, fetch_to_write};
use half::bf16;
use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_ps, _mm512_storeu_si512,
};
use std::hint::black_box;

/// Rows of the tallest group: with two vectors of B, 24 of the 32 registers are in use.
const TALLEST: usize = 11;

/// Sums a group of rows over all steps.
type Routine = unsafe fn(&Multiply<'_>, usize);

macro_rules! routines {
    ($vectors:literal: $($rows:literal)*) => { [$(group::<$rows, $vectors>),*] };
}

/// `ROUTINES[vectors - 1][rows - 1]`.
static ROUTINES: [[Routine; TALLEST]; 2] =
    [routines!(1: 1 2 3 4 5 6 7 8 9 10 11), routines!(2: 1 2 3 4 5 6 7 8 9 10 11)];

/// Computes a block whose lengths were checked by [`super::Session::multiply`].
///
/// # Safety
/// As for that function; the machine must have AVX512_BF16.
pub(super) unsafe fn multiply(block: Multiply<'_>) {
    let routines = &ROUTINES[usize::from(block.columns > TILE)];
    let groups = block.rows.div_ceil(TALLEST);
    let (height, taller) = (block.rows / groups, block.rows % groups);
    let mut first = 0;
    for index in 0..groups {
        let rows = height + usize::from(index < taller);
        // SAFETY: by the caller; these rows are of the block.
        unsafe { routines[rows - 1](&block, first) };
        first += rows;
    }
}

/// # Safety
/// As for [`multiply`], of rows `first..first + ROWS` and columns of `VECTORS` tiles.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn group<const ROWS: usize, const VECTORS: usize>(block: &Multiply<'_>, first: usize) {
    let Multiply { a, b, from, to, next, .. } = *block;
    let at = |sums: Sums, i: usize, v: usize| sums.first.wrapping_add((first + i) * sums.row + v * TILE);
    // SAFETY: the caller vouches for the sums, which are read and written by whole vectors inside whole tiles; operands
    // are whole steps with 32 rows and two tiles of columns.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        if let Some(from) = from {
            for (i, row) in sums.iter_mut().enumerate() {
                for (v, sum) in row.iter_mut().enumerate() {
                    *sum = _mm512_loadu_ps(at(from, i, v));
                }
            }
        }
        for step in 0..a.len() / STEP_LEN {
            let (a, b) = (a.as_ptr().add(step * STEP_LEN + first * STEP), b.as_ptr().add(step * STEP_LEN));
            if first == 0 {
                for line in 0..FETCHED {
                    fetch::<SECOND>(next.as_ptr().cast::<f32>().wrapping_add((step * FETCHED + line) * LINE));
                }
            }
            for pair in 0..STEP / 2 {
                let mut columns = [load_pairs(b.add(pair * STEP)); VECTORS];
                for (v, columns) in columns.iter_mut().enumerate().skip(1) {
                    *columns = load_pairs(b.add(v * STEP_LEN / 2 + pair * STEP));
                }
                for (i, row) in sums.iter_mut().enumerate() {
                    let terms = broadcast(a.add(i * STEP + 2 * pair));
                    for (sum, columns) in row.iter_mut().zip(columns) {
                        *sum = _mm512_dpbf16_ps(*sum, columns, terms);
                    }
                }
            }
        }
        for (i, row) in sums.iter().enumerate() {
            for (v, sum) in row.iter().enumerate() {
                _mm512_storeu_ps(at(to, i, v), *sum);
            }
        }
    }
}

/// # Safety
/// 32 elements must be valid, and the machine have AVX512_BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn load_pairs(from: *const bf16) -> __m512bh {
    // SAFETY: by the caller; both types are 512 bits.
    unsafe { std::mem::transmute(_mm512_loadu_si512(from.cast())) }
}

/// A pair in every lane.
///
/// # Safety
/// Two elements must be valid, and the machine have AVX512_BF16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn broadcast(from: *const bf16) -> __m512bh {
    // SAFETY: as above.
    unsafe { std::mem::transmute(_mm512_set1_epi32(from.cast::<i32>().read_unaligned())) }
}

/// Dot products in registers, of numbers of ordinary size: [`super::Unit::SPIN_OPERATIONS`] a round.
///
/// # Safety
/// The machine must have AVX512_BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn spin(rounds: usize) {
    /// Chains that hide the latency of the instruction.
    const CHAINS: usize = 16;
    let numbers: [bf16; 2 * STEP] = std::array::from_fn(|at| bf16::from_f32((at * 7 % 23) as f32 / 11.5 - 1.0));
    // SAFETY: there are two vectors of numbers.
    let (x, y) = unsafe { (load_pairs(numbers.as_ptr()), load_pairs(numbers.as_ptr().add(STEP))) };
    let mut sums: [__m512; CHAINS] = [_mm512_setzero_ps(); CHAINS];
    for _ in 0..rounds * (BLOCK * BLOCK * STEP / (CHAINS * STEP)) {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, x, y);
        }
    }
    black_box(sums);
}

/// Rounds rows of sums, see [`super::Unit::round`]. The instruction takes subnormal numbers for zeros: sums of
/// products are never subnormal.
///
/// # Safety
/// The machine must have AVX512_BF16; `columns` is a multiple of [`BLOCK`], and `to` valid for as many rows.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn round((from, width): (&[f32], usize), columns: usize, (to, row): (*mut bf16, usize)) {
    /// Rows ahead: each is on another page, which the hardware does not foresee.
    const AHEAD: usize = 4;
    for (i, sums) in from.chunks_exact(width).enumerate() {
        let to = to.wrapping_add(i * row);
        for j in (0..columns).step_by(BLOCK) {
            fetch_to_write(to.wrapping_add(AHEAD * row + j).cast());
            let sums = &sums[j..j + BLOCK];
            // SAFETY: there are 32 numbers from here on, in the sums and in the row.
            unsafe {
                let (low, high) = (_mm512_loadu_ps(sums.as_ptr()), _mm512_loadu_ps(sums.as_ptr().add(TILE)));
                let rounded: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
                _mm512_storeu_si512(to.add(j).cast(), rounded);
            }
        }
    }
}
