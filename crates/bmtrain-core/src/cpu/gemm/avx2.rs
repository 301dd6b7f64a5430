//! Innermost routines for x86-64 with AVX2 and FMA: 6 x 16 tiles, 12 of the 16 vector registers hold sums.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::kernel::{Dots, Kernel, Tile, TileRoutine};

const LANES: usize = 8;

/// Columns of the widest tile.
const COLUMNS: usize = 2 * LANES;

/// How far `copy` looks ahead.
const ROWS_AHEAD: usize = 8;

pub(super) static KERNEL: Kernel = Kernel {
    name: "avx2+fma",
    lanes: LANES,
    tiles: &[
        &[tile::<1, 1>, tile::<1, 2>],
        &[tile::<2, 1>, tile::<2, 2>],
        &[tile::<3, 1>, tile::<3, 2>],
        &[tile::<4, 1>, tile::<4, 2>],
        &[tile::<5, 1>, tile::<5, 2>],
        &[tile::<6, 1>, tile::<6, 2>] as &[TileRoutine],
    ],
    transpose,
    copy,
    dots: &[dots::<1, 4>, dots::<2, 4>, dots::<3, 4>],
    single_dots: &[dots::<1, 1>, dots::<2, 1>, dots::<3, 1>],
    dot_columns: 4,
    spin,
    spin_operations: SPIN_VECTORS * LANES * 2,
};

/// See [`super::kernel::TileRoutine`].
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const ROWS: usize, const VECTORS: usize>(t: &Tile) {
    // SAFETY: the caller vouches for every address that follows from the strides of `t` and from ROWS and VECTORS;
    // prefetches have no effect on validity.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); VECTORS]; ROWS];
        let (mut a, mut b) = (t.a, t.b);
        for i in 0..ROWS {
            _mm_prefetch::<_MM_HINT_T0>(t.c.add(i * t.c_row).cast());
        }
        for _ in 0..t.k {
            let mut columns = [_mm256_setzero_ps(); VECTORS];
            for (v, column) in columns.iter_mut().enumerate() {
                *column = _mm256_loadu_ps(b.add(v * LANES));
            }
            for (i, row) in sums.iter_mut().enumerate() {
                let x = _mm256_broadcast_ss(&*a.add(i * t.a_row));
                for v in 0..VECTORS {
                    row[v] = _mm256_fmadd_ps(x, columns[v], row[v]);
                }
            }
            a = a.wrapping_add(t.a_step);
            b = b.wrapping_add(t.b_step);
        }
        let alpha = _mm256_set1_ps(t.alpha);
        let beta = _mm256_set1_ps(t.beta);
        for (i, row) in sums.iter().enumerate() {
            for (v, sum) in row.iter().enumerate() {
                let c = t.c.add(i * t.c_row + v * LANES);
                let mut value = _mm256_mul_ps(alpha, *sum);
                if t.beta != 0.0 {
                    value = _mm256_fmadd_ps(beta, _mm256_loadu_ps(c), value);
                }
                _mm256_storeu_ps(c, value);
            }
        }
    }
}

/// See [`super::kernel::TransposeRoutine`]; 8 x 8 blocks in registers.
#[target_feature(enable = "avx2,fma")]
unsafe fn transpose(from: *const f32, stride: usize, k: usize, to: *mut f32, width: usize) {
    // SAFETY: p + 8 <= k, so the loads stay inside the k elements of each of the 8 rows and the stores inside the k
    // rows of `to`; the caller vouches for both.
    unsafe {
        let mut p = 0;
        while p + LANES <= k {
            let mut rows = [_mm256_setzero_ps(); LANES];
            for (j, row) in rows.iter_mut().enumerate() {
                *row = _mm256_loadu_ps(from.add(j * stride + p));
            }
            let rows = transpose_8(rows);
            for (j, row) in rows.iter().enumerate() {
                _mm256_storeu_ps(to.add((p + j) * width), *row);
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

#[target_feature(enable = "avx2,fma")]
fn transpose_8(r: [__m256; 8]) -> [__m256; 8] {
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

/// See [`super::kernel::CopyRoutine`].
#[target_feature(enable = "avx2,fma")]
unsafe fn copy(from: *const f32, stride: usize, k: usize, to: *mut f32, panels: usize) {
    for p in 0..k {
        for panel in 0..panels {
            let (from, to) =
                (from.wrapping_add(p * stride + panel * COLUMNS), to.wrapping_add((panel * k + p) * COLUMNS));
            for j in (0..COLUMNS).step_by(LANES) {
                // SAFETY: the caller vouches for the rows and the panels; a prefetch beyond them has no effect.
                unsafe {
                    // Rows are on different pages, where the hardware does not look ahead.
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(ROWS_AHEAD * stride + j).cast());
                    _mm256_storeu_ps(to.add(j), _mm256_loadu_ps(from.add(j)));
                }
            }
        }
    }
}

/// See [`super::kernel::DotsRoutine`].
#[target_feature(enable = "avx2,fma")]
unsafe fn dots<const ROWS: usize, const COLUMNS: usize>(d: &Dots) {
    // SAFETY: the caller vouches for k elements of each row; vectors are loaded only where 8 of them are left; a
    // prefetch beyond them has no effect.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); COLUMNS]; ROWS];
        let ahead = d.ahead(COLUMNS);
        let mut p = 0;
        while p + LANES <= d.k {
            let mut y = [_mm256_setzero_ps(); COLUMNS];
            for (j, y) in y.iter_mut().enumerate() {
                let from = d.y.add(j * d.y_row + p);
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(ahead).cast());
                *y = _mm256_loadu_ps(from);
            }
            for (i, row) in sums.iter_mut().enumerate() {
                let x = _mm256_loadu_ps(d.x.add(i * d.x_row + p));
                for j in 0..COLUMNS {
                    row[j] = _mm256_fmadd_ps(x, y[j], row[j]);
                }
            }
            p += LANES;
        }
        for (i, row) in sums.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                let half = _mm_add_ps(_mm256_castps256_ps128(*sum), _mm256_extractf128_ps::<1>(*sum));
                let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
                let mut total = _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
                for q in p..d.k {
                    total = (*d.x.add(i * d.x_row + q)).mul_add(*d.y.add(j * d.y_row + q), total);
                }
                *d.out.add(i * d.out_row + j) = total;
            }
        }
    }
}

const SPIN_VECTORS: usize = 12;

/// See [`Kernel::spin`].
#[target_feature(enable = "avx2,fma")]
fn spin(rounds: usize) -> f32 {
    let mut sums = [_mm256_setzero_ps(); SPIN_VECTORS];
    let x = _mm256_set1_ps(std::hint::black_box(0.999));
    let y = _mm256_set1_ps(std::hint::black_box(0.001));
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, x, y);
        }
    }
    sums.iter().map(|sum| _mm256_cvtss_f32(*sum)).sum()
}
