//! Packing of whole steps by AVX-512.
#![allow(unsafe_code)]

use super::STEP;
use super::pack::{Lines, Step, Steps, pack_with};
use super::term::Term;
use crate::cpu::vector::transpose_16;
use std::arch::x86_64::{
    __m512, __m512i, _mm512_cvtne2ps_pbh, _mm512_loadu_ps, _mm512_permutexvar_epi64, _mm512_setr_epi64,
    _mm512_setzero_si512, _mm512_storeu_si512, _mm512_unpackhi_epi16, _mm512_unpacklo_epi16,
};
use std::ops::Range;

macro_rules! pack {
    ($name:ident: $type:ty, $features:literal) => {
        /// # Safety
        /// As for [`pack_with`], of these features.
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name<const LEFT: bool>(
            from: Lines<'_, $type>,
            lines: Range<usize>,
            terms: Range<usize>,
            to: &mut [half::bf16],
        ) {
            // SAFETY: by the caller.
            unsafe { pack_with::<Avx512, $type, LEFT>(from, lines, terms, to) }
        }
    };
}
pack!(bf16: half::bf16, "avx512f,avx512bw,avx512vl,avx512dq");
pack!(f32: f32, "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16");

pub(super) struct Avx512;

/// Vector `index` of a step.
#[inline(always)]
unsafe fn store(to: &mut Step, index: usize, vector: __m512i) {
    // SAFETY: the caller has the instructions; 32 elements from a multiple of 32 are inside the step.
    unsafe { _mm512_storeu_si512(to[index * 32..][..32].as_mut_ptr().cast(), vector) }
}

#[inline(always)]
unsafe fn load<T: Term>(from: *const T, stride: usize, run: usize) -> __m512i {
    // SAFETY: the caller vouches for 32 elements of each run.
    unsafe { T::load(from.add(run * stride)) }
}

/// 32 numbers from an address on, rounded.
///
/// # Safety
/// The machine must have AVX512_BF16, and the numbers be valid.
#[inline(always)]
pub(super) unsafe fn narrow(from: *const f32) -> __m512i {
    // SAFETY: by the caller; both types are 512 bits.
    unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from.add(16)), _mm512_loadu_ps(from))) }
}

/// The 16 vectors of a tile.
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn store_rows(to: &mut Step, half: usize, rows: &[__m512i; 16]) {
    for (row, vector) in rows.iter().enumerate() {
        // SAFETY: by the caller.
        unsafe { store(to, 16 * half + row, *vector) };
    }
}

/// The transpose of 16 x 16 numbers of 32 bits.
#[inline(always)]
unsafe fn transpose(rows: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: the caller has the instructions; both types are 512 bits.
    unsafe { std::mem::transmute(transpose_16(std::mem::transmute::<[__m512i; 16], [__m512; 16]>(rows))) }
}

/// Runs `2 * pair` and `2 * pair + 1` element by element in turn: the first 16 elements of both, and the others.
#[inline(always)]
unsafe fn interleaved<T: Term>(from: *const T, stride: usize, pair: usize) -> [__m512i; 2] {
    // SAFETY: by the caller.
    unsafe {
        // Quarters of the halves in turn: unpacking works on each 128-bit lane.
        let order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        let x = _mm512_permutexvar_epi64(order, load(from, stride, 2 * pair));
        let y = _mm512_permutexvar_epi64(order, load(from, stride, 2 * pair + 1));
        [_mm512_unpacklo_epi16(x, y), _mm512_unpackhi_epi16(x, y)]
    }
}

impl Steps for Avx512 {
    #[inline(always)]
    unsafe fn rows<T: Term>(from: *const T, stride: usize, to: &mut Step) {
        for run in 0..STEP {
            // SAFETY: by the caller, as below.
            unsafe { store(to, run, load(from, stride, run)) };
        }
    }

    #[inline(always)]
    unsafe fn columns<T: Term>(from: *const T, stride: usize, to: &mut Step) {
        for half in 0..2 {
            // SAFETY: as above.
            unsafe {
                let mut lines = [_mm512_setzero_si512(); 16];
                for (run, line) in lines.iter_mut().enumerate() {
                    *line = load(from, stride, 16 * half + run);
                }
                store_rows(to, half, &transpose(lines));
            }
        }
    }

    #[inline(always)]
    unsafe fn columns_across<T: Term>(from: *const T, stride: usize, to: &mut Step) {
        for pair in 0..STEP / 2 {
            // SAFETY: as above.
            unsafe {
                let [first, second] = interleaved(from, stride, pair);
                store(to, pair, first);
                store(to, 16 + pair, second);
            }
        }
    }

    #[inline(always)]
    unsafe fn rows_across<T: Term>(from: *const T, stride: usize, to: &mut Step) {
        // SAFETY: as above.
        unsafe {
            let (mut first, mut second) = ([_mm512_setzero_si512(); 16], [_mm512_setzero_si512(); 16]);
            for (pair, (first, second)) in first.iter_mut().zip(&mut second).enumerate() {
                [*first, *second] = interleaved(from, stride, pair);
            }
            store_rows(to, 0, &transpose(first));
            store_rows(to, 1, &transpose(second));
        }
    }
}
