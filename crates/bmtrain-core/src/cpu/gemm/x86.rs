//! Innermost routines for x86-64.
//!
//! AVX-512F: 6 x 64 tiles, 24 of the 32 vector registers hold sums; four vectors of B per step (and not two, as is
//! usual) keep the loads of A below one per two multiply-adds, and 64 columns divide the widths of the usual models and
//! their heads. Tiles that read B in place are of 8 x 48: eight rows meet what is read of it once. AVX2 and FMA: 6 x 16
//! tiles, 12 of the 16 vector registers hold sums.
//!
//! Dot products are of 4 x 4 rows and no more: with more the addresses no longer fit the general registers and speed
//! falls by a quarter.
#![allow(unsafe_code)]

use half::{bf16, f16};
use std::arch::x86_64::*;

use super::kernel::{ALONE, DotRoutines, Dots, Kernel, RowStrip, RowStripRoutine, Strip, StripRoutine};
use super::left;
use super::table;
use super::tile::{self, Wide};
use crate::cpu::vector::transpose_16;
use crate::simd::Fused;

table::table!(
    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c")]
    AVX512: __m512, lanes 16, stretch 768, rows [1, 2, 3, 4, 5, 6], height 6, vectors [1, 2, 3, 4],
    in_place [
        1: [1, 2, 3, 4, 8], 2: [1, 2, 3, 4, 8], 3: [1, 2, 3, 4, 8], 4: [1, 2, 3, 4],
        5: [1, 2, 3, 4], 6: [1, 2, 3, 4], 7: [1, 2, 3], 8: [1, 2, 3]
    ],
    tall 8,
    dots [1, 2, 3, 4] by 4
);
table::table!(
    #[target_feature(enable = "avx2,fma,f16c")]
    AVX2: __m256, lanes 8, stretch 384, rows [1, 2, 3, 4, 5, 6], height 6, vectors [1, 2],
    in_place [1: [1, 2, 4, 8], 2: [1, 2, 4], 3: [1, 2, 3], 4: [1, 2, 3], 5: [1, 2], 6: [1, 2]],
    tall 6,
    dots [1, 2, 3, 4] by 3
);

/// # Safety
/// The machine has AVX-512.
#[inline(always)]
unsafe fn widen_bf16_512(narrow: __m256i) -> __m512 {
    // SAFETY: by the caller.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(narrow))) }
}

impl Wide<16> for __m512 {
    type Set = Fused;
    const MASKS: bool = true;

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { _mm512_mul_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: as above.
        unsafe { _mm512_reduce_add_ps(self) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: as above; the caller vouches for 16 elements.
        unsafe { widen_bf16_512(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_first_bf16(from: *const bf16, count: usize) -> Self {
        // SAFETY: the caller vouches for `count` elements, and no others are read.
        unsafe { widen_bf16_512(_mm256_maskz_loadu_epi16((1 << count) - 1, from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_first_f16(from: *const f16, count: usize) -> Self {
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16((1 << count) - 1, from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: as above; the caller vouches for `count` elements, and no others are read.
        unsafe { _mm512_maskz_loadu_ps((1 << count) - 1, from) }
    }

    #[inline(always)]
    unsafe fn transpose(r: [Self; 16]) -> [Self; 16] {
        // SAFETY: as above.
        unsafe { transpose_16(r) }
    }
}

impl Wide<8> for __m256 {
    type Set = Fused;

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        // SAFETY: the caller has the instructions.
        unsafe { _mm256_mul_ps(self, other) }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: as above.
        unsafe {
            let half = _mm_add_ps(_mm256_castps256_ps128(self), _mm256_extractf128_ps::<1>(self));
            let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
            _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
        }
    }

    #[inline(always)]
    unsafe fn sums(of: [Self; 4]) -> [f32; 4] {
        // SAFETY: as above; an array of four is written.
        unsafe {
            let [a, b, c, d] = of.map(|x| _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x)));
            let ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
            let cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
            let mut sums = [0.0; 4];
            let (even, odd) = (_mm_shuffle_ps::<0x88>(ab, cd), _mm_shuffle_ps::<0xDD>(ab, cd));
            _mm_storeu_ps(sums.as_mut_ptr(), _mm_add_ps(even, odd));
            sums
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: as above; the caller vouches for eight elements.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: as above.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn transpose(r: [Self; 8]) -> [Self; 8] {
        // SAFETY: as above.
        unsafe {
            let mut t = [_mm256_setzero_ps(); 8];
            for q in 0..2 {
                let (a, b, c, d) = (r[4 * q], r[4 * q + 1], r[4 * q + 2], r[4 * q + 3]);
                let (ab_low, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                let (cd_low, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                t[4 * q] = _mm256_shuffle_ps::<0x44>(ab_low, cd_low);
                t[4 * q + 1] = _mm256_shuffle_ps::<0xEE>(ab_low, cd_low);
                t[4 * q + 2] = _mm256_shuffle_ps::<0x44>(ab_high, cd_high);
                t[4 * q + 3] = _mm256_shuffle_ps::<0xEE>(ab_high, cd_high);
            }
            let mut out = [_mm256_setzero_ps(); 8];
            for c in 0..4 {
                out[c] = _mm256_permute2f128_ps::<0x20>(t[c], t[4 + c]);
                out[4 + c] = _mm256_permute2f128_ps::<0x31>(t[c], t[4 + c]);
            }
            out
        }
    }
}
