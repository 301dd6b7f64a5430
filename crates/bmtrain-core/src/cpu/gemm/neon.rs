//! Innermost routines for AArch64: 6 x 16 tiles, 24 of the 32 vector registers hold sums.
#![allow(unsafe_code)]

use half::{bf16, f16};
use std::arch::aarch64::*;

use super::kernel::{ALONE, DotRoutines, Dots, Kernel, RowStrip, RowStripRoutine, Strip, StripRoutine};
use super::left;
use super::table;
use super::tile::{self, Stored, Wide};
use crate::cpu::vector::{Eight, Pair, Vector};
use crate::simd::Fused;

table::table!(
    #[target_feature(enable = "neon")]
    NEON: Pair, lanes 8, stretch 384, rows [1, 2, 3, 4, 5, 6], height 6, vectors [1, 2],
    in_place [1: [1, 2, 4, 8], 2: [1, 2, 4], 3: [1, 2, 4], 4: [1, 2], 5: [1, 2], 6: [1, 2]], tall 6,
    dots [1, 2] by 4
);

impl Wide<8> for Pair {
    type Set = Fused;

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        // SAFETY: every processor of the target has the instructions.
        unsafe { Pair(vmulq_f32(self.0, other.0), vmulq_f32(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        // SAFETY: as above.
        unsafe { vaddvq_f32(vaddq_f32(self.0, self.1)) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: as above; the caller vouches for eight elements.
        unsafe {
            let narrow = vld1q_u16(from.cast());
            let (low, high) = (vshll_n_u16::<16>(vget_low_u16(narrow)), vshll_high_n_u16::<16>(narrow));
            Pair(vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(high))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // The instruction for it takes a type that the standard library has not settled yet; these loops the compiler
        // turns into vector code.
        // SAFETY: the caller vouches for eight elements; an array needs no more alignment than one.
        unsafe { Self::load(Eight((*from.cast::<[f16; 8]>()).map(Stored::widen)).0.as_ptr()) }
    }

    #[inline(always)]
    unsafe fn transpose(r: [Self; 8]) -> [Self; 8] {
        // SAFETY: as above.
        unsafe {
            let low = (transpose_4([r[0].0, r[1].0, r[2].0, r[3].0]), transpose_4([r[4].0, r[5].0, r[6].0, r[7].0]));
            let high = (transpose_4([r[0].1, r[1].1, r[2].1, r[3].1]), transpose_4([r[4].1, r[5].1, r[6].1, r[7].1]));
            std::array::from_fn(|p| if p < 4 { Pair(low.0[p], low.1[p]) } else { Pair(high.0[p - 4], high.1[p - 4]) })
        }
    }
}

/// # Safety
/// None beyond the target's own instructions.
#[inline(always)]
unsafe fn transpose_4(r: [float32x4_t; 4]) -> [float32x4_t; 4] {
    // SAFETY: as above.
    unsafe {
        let wide = |x: float32x4_t| vreinterpretq_f64_f32(x);
        let narrow = |x: float64x2_t| vreinterpretq_f32_f64(x);
        let (a, b) = (vtrn1q_f32(r[0], r[1]), vtrn2q_f32(r[0], r[1]));
        let (c, d) = (vtrn1q_f32(r[2], r[3]), vtrn2q_f32(r[2], r[3]));
        [
            narrow(vtrn1q_f64(wide(a), wide(c))),
            narrow(vtrn1q_f64(wide(b), wide(d))),
            narrow(vtrn2q_f64(wide(a), wide(c))),
            narrow(vtrn2q_f64(wide(b), wide(d))),
        ]
    }
}
