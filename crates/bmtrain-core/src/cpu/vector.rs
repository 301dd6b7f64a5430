//! Vector registers, for loops that are written with them because the compiler does not find them by itself.
//!
//! Loops are generic over [`Vector`] and always inlined, into a function that is compiled for the instruction set.
#![allow(unsafe_code)]

/// A vector register of f32.
///
/// # Safety
/// The methods need the instructions of the type, and valid addresses of `LANES` elements.
pub(super) trait Vector: Copy {
    const LANES: usize;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// `self + x * y`, rounded once where the machine can.
    unsafe fn multiply_add(self, x: Self, y: Self) -> Self;
}

/// Asks the caches to fetch the line of an element, which may be beyond the end.
#[inline(always)]
pub(super) fn prefetch(data: &[f32], index: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction is in the baseline, and a prefetch has no effect on validity.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(data.as_ptr().wrapping_add(index).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (data, index);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    macro_rules! vector {
        ($type:ty, $lanes:literal, $splat:ident, $load:ident, $store:ident, $fma:ident) => {
            impl Vector for $type {
                const LANES: usize = $lanes;

                #[inline(always)]
                unsafe fn splat(value: f32) -> Self {
                    // SAFETY: the caller has the instructions.
                    unsafe { $splat(value) }
                }

                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    // SAFETY: the caller has the instructions and a valid address.
                    unsafe { $load(from) }
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    // SAFETY: as in `load`.
                    unsafe { $store(to, self) }
                }

                #[inline(always)]
                unsafe fn multiply_add(self, x: Self, y: Self) -> Self {
                    // SAFETY: as in `splat`.
                    unsafe { $fma(x, y, self) }
                }
            }
        };
    }
    vector!(__m512, 16, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps);
    vector!(__m256, 8, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps);
}
