//! Innermost routines for x86-64 with AVX-512F: 6 x 64 tiles, 24 of the 32 vector registers hold sums.
//!
//! Four vectors of B per step (and not two, as is usual) keep the loads of A below one per two multiply-adds, so A
//! needs no packing; 64 columns divide the widths of the usual models and their heads.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::kernel::{Dots, Kernel, Tile, TileRoutine};

const LANES: usize = 16;

/// Columns of the widest tile.
const COLUMNS: usize = 4 * LANES;

/// How far `copy` looks ahead.
const ROWS_AHEAD: usize = 8;

pub(super) static KERNEL: Kernel = Kernel {
    name: "avx512f",
    lanes: LANES,
    tiles: &[
        &[tile::<1, 1>, tile::<1, 2>, tile::<1, 3>, tile::<1, 4>],
        &[tile::<2, 1>, tile::<2, 2>, tile::<2, 3>, tile::<2, 4>],
        &[tile::<3, 1>, tile::<3, 2>, tile::<3, 3>, tile::<3, 4>],
        &[tile::<4, 1>, tile::<4, 2>, tile::<4, 3>, tile::<4, 4>],
        &[tile::<5, 1>, tile::<5, 2>, tile::<5, 3>, tile::<5, 4>],
        &[tile::<6, 1>, tile::<6, 2>, tile::<6, 3>, tile::<6, 4>] as &[TileRoutine],
    ],
    transpose,
    copy,
    // 4 x 4 and no larger: with more rows the addresses no longer fit the general registers and speed falls by a
    // quarter.
    dots: &[dots::<1, 4>, dots::<2, 4>, dots::<3, 4>, dots::<4, 4>],
    single_dots: &[dots::<1, 1>, dots::<2, 1>, dots::<3, 1>, dots::<4, 1>],
    dot_columns: 4,
    spin,
    spin_operations: SPIN_VECTORS * LANES * 2,
};

/// See [`super::kernel::TileRoutine`].
#[target_feature(enable = "avx512f")]
unsafe fn tile<const ROWS: usize, const VECTORS: usize>(t: &Tile) {
    // SAFETY: the caller vouches for every address that follows from the strides of `t` and from ROWS and VECTORS;
    // prefetches have no effect on validity.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
        let (mut a, mut b) = (t.a, t.b);
        for i in 0..ROWS {
            for v in 0..VECTORS {
                _mm_prefetch::<_MM_HINT_T0>(t.c.add(i * t.c_row + v * LANES).cast());
            }
        }
        for _ in 0..t.k {
            let mut columns = [_mm512_setzero_ps(); VECTORS];
            for (v, column) in columns.iter_mut().enumerate() {
                *column = _mm512_loadu_ps(b.add(v * LANES));
            }
            for (i, row) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*a.add(i * t.a_row));
                for v in 0..VECTORS {
                    row[v] = _mm512_fmadd_ps(x, columns[v], row[v]);
                }
            }
            a = a.wrapping_add(t.a_step);
            b = b.wrapping_add(t.b_step);
        }
        let alpha = _mm512_set1_ps(t.alpha);
        if t.beta == 0.0 {
            for (i, row) in sums.iter().enumerate() {
                for (v, sum) in row.iter().enumerate() {
                    _mm512_storeu_ps(t.c.add(i * t.c_row + v * LANES), _mm512_mul_ps(alpha, *sum));
                }
            }
        } else {
            let beta = _mm512_set1_ps(t.beta);
            for (i, row) in sums.iter().enumerate() {
                for (v, sum) in row.iter().enumerate() {
                    let c = t.c.add(i * t.c_row + v * LANES);
                    _mm512_storeu_ps(c, _mm512_fmadd_ps(beta, _mm512_loadu_ps(c), _mm512_mul_ps(alpha, *sum)));
                }
            }
        }
    }
}

/// See [`super::kernel::TransposeRoutine`]; 16 x 16 blocks in registers.
#[target_feature(enable = "avx512f")]
unsafe fn transpose(from: *const f32, stride: usize, k: usize, to: *mut f32, width: usize) {
    // SAFETY: p + 16 <= k, so the loads stay inside the k elements of each of the 16 rows and the stores inside the k
    // rows of `to`; the caller vouches for both.
    unsafe {
        let mut p = 0;
        while p + LANES <= k {
            let mut rows = [_mm512_setzero_ps(); LANES];
            for (j, row) in rows.iter_mut().enumerate() {
                *row = _mm512_loadu_ps(from.add(j * stride + p));
            }
            let rows = transpose_16(rows);
            for (j, row) in rows.iter().enumerate() {
                _mm512_storeu_ps(to.add((p + j) * width), *row);
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

#[target_feature(enable = "avx512f")]
fn transpose_16(r: [__m512; 16]) -> [__m512; 16] {
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

/// See [`super::kernel::CopyRoutine`].
#[target_feature(enable = "avx512f")]
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
                    _mm512_storeu_ps(to.add(j), _mm512_loadu_ps(from.add(j)));
                }
            }
        }
    }
}

/// See [`super::kernel::DotsRoutine`].
#[target_feature(enable = "avx512f")]
unsafe fn dots<const ROWS: usize, const COLUMNS: usize>(d: &Dots) {
    // SAFETY: the caller vouches for k elements of each row; the last, partial vector is loaded under a mask; a
    // prefetch beyond them has no effect.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); COLUMNS]; ROWS];
        let ahead = d.ahead(COLUMNS);
        let mut p = 0;
        while p + LANES <= d.k {
            let mut y = [_mm512_setzero_ps(); COLUMNS];
            for (j, y) in y.iter_mut().enumerate() {
                let from = d.y.add(j * d.y_row + p);
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(ahead).cast());
                *y = _mm512_loadu_ps(from);
            }
            for (i, row) in sums.iter_mut().enumerate() {
                let x = _mm512_loadu_ps(d.x.add(i * d.x_row + p));
                for j in 0..COLUMNS {
                    row[j] = _mm512_fmadd_ps(x, y[j], row[j]);
                }
            }
            p += LANES;
        }
        if p < d.k {
            let mask = (1 << (d.k - p)) - 1;
            for (i, row) in sums.iter_mut().enumerate() {
                let x = _mm512_maskz_loadu_ps(mask, d.x.add(i * d.x_row + p));
                for (j, sum) in row.iter_mut().enumerate() {
                    *sum = _mm512_fmadd_ps(x, _mm512_maskz_loadu_ps(mask, d.y.add(j * d.y_row + p)), *sum);
                }
            }
        }
        for (i, row) in sums.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                *d.out.add(i * d.out_row + j) = _mm512_reduce_add_ps(*sum);
            }
        }
    }
}

/// Enough to hide the latency of two units (4 to 5 steps each), few enough that the compiler keeps all in registers.
const SPIN_VECTORS: usize = 12;

/// See [`Kernel::spin`].
#[target_feature(enable = "avx512f")]
fn spin(rounds: usize) -> f32 {
    let mut sums = [_mm512_setzero_ps(); SPIN_VECTORS];
    let x = _mm512_set1_ps(std::hint::black_box(0.999));
    let y = _mm512_set1_ps(std::hint::black_box(0.001));
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, x, y);
        }
    }
    sums.iter().map(|sum| _mm512_reduce_add_ps(*sum)).sum()
}
