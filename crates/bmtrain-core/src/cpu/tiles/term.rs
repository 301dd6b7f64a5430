//! Elements of packed operands: bf16, and f32 that is rounded on the way.
#![allow(unsafe_code)]

use crate::dtype::Float;
use half::bf16;
#[cfg(target_arch = "x86_64")]
use {
    super::pack::Lines,
    super::pack_x86,
    std::arch::x86_64::{__m512i, _mm512_loadu_si512},
    std::ops::Range,
};

/// An element of an operand.
pub(super) trait Term: Copy {
    const ZERO: Self;

    /// Rounded to nearest even.
    fn narrow(self) -> bf16;

    /// Whether this machine packs such elements by vectors.
    #[cfg(target_arch = "x86_64")]
    fn has_vectors() -> bool;

    /// 32 elements from an address on, narrowed.
    ///
    /// # Safety
    /// The machine must have the vectors, and the elements be valid.
    #[cfg(target_arch = "x86_64")]
    unsafe fn load(from: *const Self) -> __m512i;

    /// [`super::pack::pack_with`] by vectors.
    ///
    /// # Safety
    /// As for that function; the machine must have the vectors.
    #[cfg(target_arch = "x86_64")]
    unsafe fn pack<const LEFT: bool>(from: Lines<'_, Self>, lines: Range<usize>, terms: Range<usize>, to: &mut [bf16]);
}

impl Term for bf16 {
    const ZERO: Self = bf16::ZERO;

    #[inline(always)]
    fn narrow(self) -> bf16 {
        self
    }

    #[cfg(target_arch = "x86_64")]
    fn has_vectors() -> bool {
        true
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load(from: *const Self) -> __m512i {
        // SAFETY: by the caller.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn pack<const LEFT: bool>(from: Lines<'_, Self>, lines: Range<usize>, terms: Range<usize>, to: &mut [bf16]) {
        // SAFETY: by the caller.
        unsafe { pack_x86::bf16::<LEFT>(from, lines, terms, to) }
    }
}

impl Term for f32 {
    const ZERO: Self = 0.0;

    /// As VCVTNE2PS2BF16 does, which takes subnormal numbers for zeros.
    #[inline(always)]
    fn narrow(self) -> bf16 {
        Float::from_f32(if self.is_subnormal() { 0.0_f32.copysign(self) } else { self })
    }

    #[cfg(target_arch = "x86_64")]
    fn has_vectors() -> bool {
        is_x86_feature_detected!("avx512bf16")
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn load(from: *const Self) -> __m512i {
        // SAFETY: by the caller.
        unsafe { pack_x86::narrow(from) }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn pack<const LEFT: bool>(from: Lines<'_, Self>, lines: Range<usize>, terms: Range<usize>, to: &mut [bf16]) {
        // SAFETY: by the caller.
        unsafe { pack_x86::f32::<LEFT>(from, lines, terms, to) }
    }
}
