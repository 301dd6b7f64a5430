//! Vector registers, for loops that are written with them because the compiler does not find them by itself.
//!
//! Loops are generic over [`Vector`] and always inlined, into a function that is compiled for the instruction set.
#![allow(unsafe_code)]

use crate::simd::{Isa, Separate};

/// f32 per cache line.
pub(super) const LINE: usize = 16;

/// A vector register of f32, or two that are used as one.
///
/// # Safety
/// The methods need the instructions of the type, and valid addresses of `LANES` elements.
pub(super) trait Vector: Copy {
    const LANES: usize;
    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// `self + x * y`, rounded once where the instruction set can.
    unsafe fn multiply_add(self, x: Self, y: Self) -> Self;
}

/// The caches to fetch a line into: all levels, or those from the second on.
pub(super) const NEAREST: u8 = 1;
pub(super) const SECOND: u8 = 2;

/// Asks the caches from [`NEAREST`] or [`SECOND`] on to fetch the line of an address, which may be any.
#[inline(always)]
pub(super) fn fetch<const LEVEL: u8>(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        // SAFETY: the instruction is in the baseline, and a prefetch has no effect on validity.
        unsafe {
            if LEVEL == NEAREST {
                _mm_prefetch::<_MM_HINT_T0>(address.cast());
            } else {
                _mm_prefetch::<_MM_HINT_T1>(address.cast());
            }
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::asm;
        // SAFETY: as above.
        unsafe {
            if LEVEL == NEAREST {
                asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
            } else {
                asm!("prfm pldl2keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
            }
        }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Asks the nearest cache to fetch the line of an address, which may be any, so that it can be written.
#[inline(always)]
pub(super) fn fetch_to_write(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: processors without the instruction take it for one that does nothing; a prefetch has no effect on
    // validity.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks the caches to fetch the line of an element, which may be beyond the end.
#[inline(always)]
pub(super) fn prefetch(data: &[f32], index: usize) {
    fetch::<NEAREST>(data.as_ptr().wrapping_add(index));
}

/// `to[6 * p + i] = rows[i][p]`: a transpose whose rows are not a whole number of vectors.
#[inline(always)]
pub(super) fn interleave_6(rows: [&[f32; 4]; 6], to: &mut [f32; 24]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        // SAFETY: four numbers of each row and of each sixth of `to`; the instructions are in the baseline.
        unsafe {
            let [mut r0, mut r1, mut r2, mut r3, r4, r5] = rows.map(|row| _mm_loadu_ps(row.as_ptr()));
            _MM_TRANSPOSE4_PS(&mut r0, &mut r1, &mut r2, &mut r3);
            let (low, high) = (_mm_unpacklo_ps(r4, r5), _mm_unpackhi_ps(r4, r5));
            let sixths = [
                r0,
                _mm_movelh_ps(low, r1),
                _mm_shuffle_ps::<0xEE>(r1, low),
                r2,
                _mm_movelh_ps(high, r3),
                _mm_shuffle_ps::<0xEE>(r3, high),
            ];
            for (to, sixth) in to.chunks_exact_mut(4).zip(sixths) {
                _mm_storeu_ps(to.as_mut_ptr(), sixth);
            }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    for (p, to) in to.chunks_exact_mut(6).enumerate() {
        for (x, row) in to.iter_mut().zip(rows) {
            *x = row[p];
        }
    }
}

/// Eight numbers in plain Rust, for the portable set: compilers keep them in registers.
#[derive(Clone, Copy)]
pub(super) struct Eight(pub(super) [f32; 8]);

impl Vector for Eight {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Eight([value; 8])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: by the caller; an array of f32 needs no more alignment than one.
        Eight(unsafe { *from.cast() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as in `load`.
        unsafe { *to.cast() = self.0 }
    }

    #[inline(always)]
    unsafe fn multiply_add(self, x: Self, y: Self) -> Self {
        Eight(std::array::from_fn(|i| Separate::mul_add(x.0[i], y.0[i], self.0[i])))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::transpose_16;

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
    /// The transpose of 16 x 16 numbers of 32 bits.
    ///
    /// # Safety
    /// The machine must have AVX-512.
    #[inline(always)]
    pub(in crate::cpu) unsafe fn transpose_16(r: [__m512; 16]) -> [__m512; 16] {
        // SAFETY: by the caller.
        unsafe {
            let mut t = [_mm512_setzero_ps(); 16];
            // 2 x 2 blocks of 32 bits, then of 64: every 128-bit lane of t holds four elements of one column.
            for q in 0..4 {
                let (a, b, c, d) = (r[4 * q], r[4 * q + 1], r[4 * q + 2], r[4 * q + 3]);
                let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                t[4 * q] = _mm512_shuffle_ps::<0x44>(ab_low, cd_low);
                t[4 * q + 1] = _mm512_shuffle_ps::<0xEE>(ab_low, cd_low);
                t[4 * q + 2] = _mm512_shuffle_ps::<0x44>(ab_high, cd_high);
                t[4 * q + 3] = _mm512_shuffle_ps::<0xEE>(ab_high, cd_high);
            }
            // Then a 4 x 4 transpose of whole 128-bit lanes.
            let mut out = [_mm512_setzero_ps(); 16];
            for c in 0..4 {
                let (a, b, x, y) = (t[c], t[4 + c], t[8 + c], t[12 + c]);
                let (ab_even, ab_odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xDD>(a, b));
                let (xy_even, xy_odd) = (_mm512_shuffle_f32x4::<0x88>(x, y), _mm512_shuffle_f32x4::<0xDD>(x, y));
                out[c] = _mm512_shuffle_f32x4::<0x88>(ab_even, xy_even);
                out[8 + c] = _mm512_shuffle_f32x4::<0xDD>(ab_even, xy_even);
                out[4 + c] = _mm512_shuffle_f32x4::<0x88>(ab_odd, xy_odd);
                out[12 + c] = _mm512_shuffle_f32x4::<0xDD>(ab_odd, xy_odd);
            }
            out
        }
    }

    vector!(__m512, 16, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps);
    vector!(__m256, 8, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps);
}

#[cfg(target_arch = "aarch64")]
pub(super) use neon::Pair;

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::Vector;
    use std::arch::aarch64::*;

    /// Two registers of NEON: eight lanes, which is the least that packing and epilogues expect.
    #[derive(Clone, Copy)]
    pub(in crate::cpu) struct Pair(pub(in crate::cpu) float32x4_t, pub(in crate::cpu) float32x4_t);

    impl Vector for Pair {
        const LANES: usize = 8;

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: every processor of the target has the instructions.
            unsafe { Pair(vdupq_n_f32(value), vdupq_n_f32(value)) }
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: as above; the caller has a valid address.
            unsafe { Pair(vld1q_f32(from), vld1q_f32(from.add(4))) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: as in `load`.
            unsafe {
                vst1q_f32(to, self.0);
                vst1q_f32(to.add(4), self.1);
            }
        }

        #[inline(always)]
        unsafe fn multiply_add(self, x: Self, y: Self) -> Self {
            // SAFETY: as in `splat`.
            unsafe { Pair(vfmaq_f32(self.0, x.0, y.0), vfmaq_f32(self.1, x.1, y.1)) }
        }
    }
}
