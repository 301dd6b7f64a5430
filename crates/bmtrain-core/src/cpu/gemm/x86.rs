//! Innermost routines for x86-64, written once for both widths of vectors.
//!
//! AVX-512F: 6 x 64 tiles, 24 of the 32 vector registers hold sums; four vectors of B per step (and not two, as is
//! usual) keep the loads of A below one per two multiply-adds, and 64 columns divide the widths of the usual models and
//! their heads. AVX2 and FMA: 6 x 16 tiles, 12 of the 16 vector registers hold sums.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::kernel::{Dots, Kernel, Strip, StripRoutine};
use super::left;
use crate::cpu::vector::Vector;

/// How many rows ahead `copy` looks.
const ROWS_AHEAD: usize = 8;

/// Rows of a tile.
const ROWS: usize = 6;

/// How far ahead A is fetched from the second-level cache: four updates of the addresses.
const AHEAD: usize = 4 * UNROLL * ROWS;

/// Steps of k between two updates of the addresses.
const UNROLL: usize = 4;

/// f32 per cache line.
const LINE: usize = 16;

/// Enough to hide the latency of two units (4 to 5 steps each), few enough that the compiler keeps all in registers.
const SPIN_VECTORS: usize = 12;

/// What the routines need beside [`Vector`].
trait Wide<const LANES: usize>: Vector {
    /// Whether `load_first` exists.
    const MASKS: bool;
    unsafe fn multiply(self, other: Self) -> Self;
    /// The sum of the lanes.
    unsafe fn sum(self) -> f32;
    /// `count` elements, and zeros in the other lanes.
    unsafe fn load_first(from: *const f32, count: usize) -> Self;
    unsafe fn transpose(rows: [Self; LANES]) -> [Self; LANES];
}

/// See [`super::kernel::StripRoutine`].
///
/// STEP is the distance between columns of a packed A, or 0 if A is read in place. Of a packed A all offsets are known,
/// so several steps of k share one update of the addresses, which a chain of additions would otherwise make the limit.
#[inline(always)]
unsafe fn strip<V: Wide<LANES>, const LANES: usize, const ROWS: usize, const VECTORS: usize, const STEP: usize>(
    t: &Strip,
) {
    // SAFETY: the caller vouches for every address that follows from the strides of `t` and from ROWS and VECTORS;
    // prefetches have no effect on validity.
    unsafe {
        let (a_row, a_step) = if STEP > 0 { (1, STEP) } else { (t.a_row, t.a_step) };
        let unroll = if STEP > 0 { UNROLL } else { 1 };
        let fetch_sums = |c: *mut f32| {
            for i in 0..ROWS {
                for j in (0..VECTORS * LANES).step_by(LINE) {
                    _mm_prefetch::<_MM_HINT_T0>(c.wrapping_add(i * t.c_row + j).cast());
                }
            }
        };
        let (alpha, beta) = (V::splat(t.alpha), V::splat(t.beta));
        let mut next = t.next;
        let last = next.wrapping_add(t.lines * LINE);
        let share = t.lines.div_ceil(t.tiles.max(1)) * LINE;
        fetch_sums(t.c);
        for index in 0..t.tiles {
            let (mut a, mut b, mut left) = (t.a.add(index * t.a_tile), t.b, t.k);
            let c = t.c.add(index * ROWS * t.c_row);
            fetch_sums(c.wrapping_add(ROWS * t.c_row));
            let end = next.wrapping_add(share).min(last);
            let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
            while left >= unroll {
                if next < end {
                    _mm_prefetch::<_MM_HINT_T1>(next.cast());
                    next = next.wrapping_add(LINE);
                }
                if STEP > 0 {
                    _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(AHEAD).cast());
                    _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(AHEAD + LINE).cast());
                }
                for p in 0..unroll {
                    step(&mut sums, (a.add(p * a_step), a_row), b.add(p * VECTORS * LANES));
                }
                a = a.wrapping_add(unroll * a_step);
                b = b.wrapping_add(unroll * VECTORS * LANES);
                left -= unroll;
            }
            for p in 0..left {
                step(&mut sums, (a.add(p * a_step), a_row), b.add(p * VECTORS * LANES));
            }
            for (i, row) in sums.iter().enumerate() {
                for (v, sum) in row.iter().enumerate() {
                    let c = c.add(i * t.c_row + v * LANES);
                    let value = alpha.multiply(*sum);
                    if t.beta == 0.0 { value } else { value.multiply_add(beta, V::load(c)) }.store(c);
                }
            }
        }
    }
}

/// One step of k: a column of A times a row of B.
#[inline(always)]
unsafe fn step<V: Vector, const ROWS: usize, const VECTORS: usize>(
    sums: &mut [[V; VECTORS]; ROWS],
    (a, a_row): (*const f32, usize),
    b: *const f32,
) {
    // SAFETY: the caller vouches for ROWS elements of A and VECTORS vectors of B.
    unsafe {
        let mut columns = [V::splat(0.0); VECTORS];
        for (v, column) in columns.iter_mut().enumerate() {
            *column = V::load(b.add(v * V::LANES));
        }
        for (i, row) in sums.iter_mut().enumerate() {
            let x = V::splat(*a.add(i * a_row));
            for v in 0..VECTORS {
                row[v] = row[v].multiply_add(x, columns[v]);
            }
        }
    }
}

/// See [`super::kernel::TransposeRoutine`]; square blocks in registers.
#[inline(always)]
unsafe fn transpose<V: Wide<LANES>, const LANES: usize>(
    from: *const f32,
    stride: usize,
    k: usize,
    to: *mut f32,
    width: usize,
) {
    // SAFETY: p + LANES <= k, so the loads stay inside the k elements of each of the LANES rows and the stores inside
    // the k rows of `to`; the caller vouches for both.
    unsafe {
        let mut p = 0;
        while p + LANES <= k {
            let mut rows = [V::splat(0.0); LANES];
            for (j, row) in rows.iter_mut().enumerate() {
                *row = V::load(from.add(j * stride + p));
            }
            for (j, row) in V::transpose(rows).into_iter().enumerate() {
                row.store(to.add((p + j) * width));
            }
            p += LANES;
        }
        while p < k {
            for j in 0..LANES {
                *to.add(p * width + j) = *from.add(j * stride + p);
            }
            p += 1;
        }
    }
}

/// See [`super::kernel::CopyRoutine`].
#[inline(always)]
unsafe fn copy<V: Vector, const COLUMNS: usize>(
    from: *const f32,
    stride: usize,
    k: usize,
    to: *mut f32,
    panels: usize,
) {
    for p in 0..k {
        for panel in 0..panels {
            let (from, to) =
                (from.wrapping_add(p * stride + panel * COLUMNS), to.wrapping_add((panel * k + p) * COLUMNS));
            for j in (0..COLUMNS).step_by(V::LANES) {
                // SAFETY: the caller vouches for the rows and the panels; a prefetch beyond them has no effect.
                unsafe {
                    // Rows are on different pages, where the hardware does not look ahead.
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(ROWS_AHEAD * stride + j).cast());
                    V::load(from.add(j)).store(to.add(j));
                }
            }
        }
    }
}

/// See [`super::kernel::DotsRoutine`].
#[inline(always)]
unsafe fn dots<V: Wide<LANES>, const LANES: usize, const ROWS: usize, const COLUMNS: usize>(d: &Dots) {
    // SAFETY: the caller vouches for k elements of each row; whole vectors are loaded only where LANES of them are
    // left, a part of a vector under a mask; a prefetch beyond them has no effect.
    unsafe {
        let mut sums = [[V::splat(0.0); COLUMNS]; ROWS];
        let ahead = d.ahead(COLUMNS);
        let mut p = 0;
        while p + LANES <= d.k {
            let mut y = [V::splat(0.0); COLUMNS];
            for (j, y) in y.iter_mut().enumerate() {
                let from = d.y.add(j * d.y_row + p);
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(ahead).cast());
                *y = V::load(from);
            }
            for (i, row) in sums.iter_mut().enumerate() {
                let x = V::load(d.x.add(i * d.x_row + p));
                for j in 0..COLUMNS {
                    row[j] = row[j].multiply_add(x, y[j]);
                }
            }
            p += LANES;
        }
        if V::MASKS && p < d.k {
            for (i, row) in sums.iter_mut().enumerate() {
                let x = V::load_first(d.x.add(i * d.x_row + p), d.k - p);
                for (j, sum) in row.iter_mut().enumerate() {
                    *sum = sum.multiply_add(x, V::load_first(d.y.add(j * d.y_row + p), d.k - p));
                }
            }
            p = d.k;
        }
        for (i, row) in sums.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                let mut total = sum.sum();
                for q in p..d.k {
                    total = (*d.x.add(i * d.x_row + q)).mul_add(*d.y.add(j * d.y_row + q), total);
                }
                *d.out.add(i * d.out_row + j) = total;
            }
        }
    }
}

/// See [`Kernel::spin`].
#[inline(always)]
unsafe fn spin<V: Wide<LANES>, const LANES: usize>(rounds: usize) -> f32 {
    // SAFETY: the caller has the instructions.
    unsafe {
        let mut sums = [V::splat(0.0); SPIN_VECTORS];
        let (x, y) = (V::splat(std::hint::black_box(0.999)), V::splat(std::hint::black_box(0.001)));
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = y.multiply_add(*sum, x);
            }
        }
        sums.into_iter().map(|sum| sum.sum()).sum()
    }
}

impl Wide<16> for __m512 {
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
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: as above; the caller vouches for `count` elements, and no others are read.
        unsafe { _mm512_maskz_loadu_ps((1 << count) - 1, from) }
    }

    #[inline(always)]
    unsafe fn transpose(r: [Self; 16]) -> [Self; 16] {
        // SAFETY: as above.
        unsafe {
            let mut t = [_mm512_setzero_ps(); 16];
            // 2 x 2 blocks of f32, then of f64: every 128-bit lane of t holds four elements of one column.
            for q in 0..4 {
                let (a, b, c, d) = (r[4 * q], r[4 * q + 1], r[4 * q + 2], r[4 * q + 3]);
                let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                t[4 * q] = _mm512_shuffle_ps::<0x44>(ab_low, cd_low);
                t[4 * q + 1] = _mm512_shuffle_ps::<0xEE>(ab_low, cd_low);
                t[4 * q + 2] = _mm512_shuffle_ps::<0x44>(ab_high, cd_high);
                t[4 * q + 3] = _mm512_shuffle_ps::<0xEE>(ab_high, cd_high);
            }
            // then a 4 x 4 transpose of whole 128-bit lanes.
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
}

impl Wide<8> for __m256 {
    const MASKS: bool = false;

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

    unsafe fn load_first(_: *const f32, _: usize) -> Self {
        unreachable!("it has no masks")
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

macro_rules! strips {
    ($step:expr, [$($rows:literal),+], $vectors:tt) => { &[$(strips!(of $rows, $step, $vectors)),+] };
    (of $rows:literal, $step:expr, [$($vectors:literal),+]) => {
        &[$(strip::<$rows, $vectors, { $step }>),+] as &[StripRoutine]
    };
}

/// The table of an instruction set, with routines that are compiled for it.
macro_rules! table {
    (
        $table:ident, $features:literal, $vector:ty, $lanes:literal, $stretch:literal, $vectors:tt, [$($dots:literal),+]
    ) => {
        pub(super) static $table: Kernel = {
            const COLUMNS: usize = $vectors.len() * $lanes;

            #[target_feature(enable = $features)]
            unsafe fn strip<const ROWS: usize, const VECTORS: usize, const STEP: usize>(t: &Strip) {
                // SAFETY: by the caller, as everywhere below.
                unsafe { super::x86::strip::<$vector, $lanes, ROWS, VECTORS, STEP>(t) }
            }

            #[target_feature(enable = $features)]
            unsafe fn transpose(from: *const f32, stride: usize, k: usize, to: *mut f32, width: usize) {
                // SAFETY: as above.
                unsafe { super::x86::transpose::<$vector, $lanes>(from, stride, k, to, width) }
            }

            #[target_feature(enable = $features)]
            unsafe fn copy(from: *const f32, stride: usize, k: usize, to: *mut f32, panels: usize) {
                // SAFETY: as above.
                unsafe { super::x86::copy::<$vector, COLUMNS>(from, stride, k, to, panels) }
            }

            #[target_feature(enable = $features)]
            unsafe fn dots<const ROWS: usize, const COLUMNS: usize>(d: &Dots) {
                // SAFETY: as above.
                unsafe { super::x86::dots::<$vector, $lanes, ROWS, COLUMNS>(d) }
            }

            #[target_feature(enable = $features)]
            unsafe fn spin(rounds: usize) -> f32 {
                // SAFETY: as above.
                unsafe { super::x86::spin::<$vector, $lanes>(rounds) }
            }

            Kernel {
                lanes: $lanes,
                stretch: $stretch,
                strips: strips!(0, [1, 2, 3, 4, 5, 6], $vectors),
                packed_strips: strips!(ROWS, [1, 2, 3, 4, 5, 6], $vectors),
                pack_left: left::pack::<ROWS>,
                transpose,
                copy,
                dots: &[$(dots::<$dots, 4>),+],
                single_dots: &[$(dots::<$dots, 1>),+],
                dot_columns: 4,
                spin,
                spin_operations: SPIN_VECTORS * $lanes * 2,
            }
        };
    };
}

// 4 x 4 dot products and no larger: with more rows the addresses no longer fit the general registers and speed falls by
// a quarter.
table!(AVX512, "avx512f", __m512, 16, 768, [1, 2, 3, 4], [1, 2, 3, 4]);
table!(AVX2, "avx2,fma", __m256, 8, 384, [1, 2], [1, 2, 3]);
