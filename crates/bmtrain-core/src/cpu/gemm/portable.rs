//! Innermost routines in plain Rust, for every other machine: 4 x 8 tiles in arrays that compilers keep in vectors.
#![allow(unsafe_code)]

use half::{bf16, f16};

use super::kernel::{ALONE, DotRoutines, Dots, Kernel, RowStrip, RowStripRoutine, Strip, StripRoutine};
use super::left;
use super::table;
use super::tile::{self, Stored, Wide};
use crate::cpu::vector::Eight;
use crate::simd::Separate;

table::table!(
    KERNEL: Eight, lanes 8, stretch 768, rows [1, 2, 3, 4], height 4, vectors [1],
    in_place [1: [1], 2: [1], 3: [1], 4: [1]], tall 4, dots [1, 2] by 2
);

impl Wide<8> for Eight {
    type Set = Separate;

    #[inline(always)]
    unsafe fn multiply(self, other: Self) -> Self {
        Eight(std::array::from_fn(|i| self.0[i] * other.0[i]))
    }

    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        self.0.iter().sum()
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the caller vouches for eight elements; an array needs no more alignment than one.
        Eight(unsafe { *from.cast::<[bf16; 8]>() }.map(Stored::widen))
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: as above.
        Eight(unsafe { *from.cast::<[f16; 8]>() }.map(Stored::widen))
    }

    #[inline(always)]
    unsafe fn transpose(rows: [Self; 8]) -> [Self; 8] {
        std::array::from_fn(|p| Eight(std::array::from_fn(|j| rows[j].0[p])))
    }
}
