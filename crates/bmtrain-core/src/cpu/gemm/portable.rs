//! Innermost routines in plain Rust, for every other machine: 4 x 8 tiles in arrays that compilers keep in vectors.
//!
//! Defines [`KERNEL`], the last choice of `kernel.rs`, and on AArch64 the only one (there the sums are fused).
#![allow(unsafe_code)]

use super::kernel::{Dots, Kernel, Strip};
use super::left;

/// Rows of a tile.
const ROWS: usize = 4;
const LANES: usize = 8;

pub(super) static KERNEL: Kernel = Kernel {
    lanes: LANES,
    stretch: 768,
    strips: &[&[strip::<1, 0>], &[strip::<2, 0>], &[strip::<3, 0>], &[strip::<4, 0>]],
    packed_strips: &[&[strip::<1, ROWS>], &[strip::<2, ROWS>], &[strip::<3, ROWS>], &[strip::<4, ROWS>]],
    pack_left: left::pack::<ROWS>,
    transpose,
    copy,
    dots: &[dots::<1, 2>, dots::<2, 2>],
    single_dots: &[dots::<1, 1>, dots::<2, 1>],
    dot_columns: 2,
    spin,
    spin_operations: SPIN_VECTORS * LANES * 2,
};

/// `x * y + sum`, fused only where that is one instruction: a library call per element would be a hundred times slower.
#[inline(always)]
fn multiply_add(x: f32, y: f32, sum: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { x.mul_add(y, sum) } else { x * y + sum }
}

/// See [`super::kernel::StripRoutine`].
///
/// STEP is the distance between columns of a packed A, or 0 if A is read in place.
unsafe fn strip<const ROWS: usize, const STEP: usize>(t: &Strip) {
    let (a_row, a_step) = if STEP > 0 { (1, STEP) } else { (t.a_row, t.a_step) };
    for index in 0..t.tiles {
        let mut sums = [[0.0f32; LANES]; ROWS];
        for p in 0..t.k {
            // SAFETY: the caller vouches for row p of B and for the ROWS elements of column p of A.
            let columns = unsafe { t.b.add(p * LANES).cast::<[f32; LANES]>().read_unaligned() };
            for (i, row) in sums.iter_mut().enumerate() {
                // SAFETY: as above.
                let x = unsafe { *t.a.add(index * t.a_tile + i * a_row + p * a_step) };
                for (sum, column) in row.iter_mut().zip(columns) {
                    *sum = multiply_add(x, column, *sum);
                }
            }
        }
        for (i, row) in sums.iter().enumerate() {
            for (j, sum) in row.iter().enumerate() {
                // SAFETY: the caller vouches for ROWS x LANES elements of C in each tile.
                let c = unsafe { &mut *t.c.add((index * ROWS + i) * t.c_row + j) };
                let value = t.alpha * sum;
                *c = if t.beta == 0.0 { value } else { multiply_add(t.beta, *c, value) };
            }
        }
    }
}

/// See [`super::kernel::TransposeRoutine`].
unsafe fn transpose(from: *const f32, stride: usize, k: usize, to: *mut f32, width: usize) {
    for p in 0..k {
        for j in 0..LANES {
            // SAFETY: the caller vouches for k elements in each of LANES rows and for k rows of LANES elements in `to`.
            unsafe { *to.add(p * width + j) = *from.add(j * stride + p) };
        }
    }
}

/// See [`super::kernel::CopyRoutine`].
unsafe fn copy(from: *const f32, stride: usize, k: usize, to: *mut f32, panels: usize) {
    for p in 0..k {
        for panel in 0..panels {
            // SAFETY: the caller vouches for the rows and the panels.
            unsafe {
                let to = to.add((panel * k + p) * LANES);
                to.copy_from_nonoverlapping(from.add(p * stride + panel * LANES), LANES);
            }
        }
    }
}

/// See [`super::kernel::DotsRoutine`].
unsafe fn dots<const ROWS: usize, const COLUMNS: usize>(d: &Dots) {
    for i in 0..ROWS {
        for j in 0..COLUMNS {
            // SAFETY: the caller vouches for k elements in each row of x and y and for the result.
            let (x, y, out) = unsafe {
                let x = std::slice::from_raw_parts(d.x.add(i * d.x_row), d.k);
                let y = std::slice::from_raw_parts(d.y.add(j * d.y_row), d.k);
                (x, y, &mut *d.out.add(i * d.out_row + j))
            };
            let mut sums = [0.0f32; LANES];
            let (x_parts, y_parts) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
            let tail: f32 = x_parts.remainder().iter().zip(y_parts.remainder()).map(|(x, y)| x * y).sum();
            for (x, y) in x_parts.zip(y_parts) {
                for (sum, (x, y)) in sums.iter_mut().zip(x.iter().zip(y)) {
                    *sum = multiply_add(*x, *y, *sum);
                }
            }
            *out = sums.iter().sum::<f32>() + tail;
        }
    }
}

const SPIN_VECTORS: usize = 6;

/// See [`Kernel::spin`].
fn spin(rounds: usize) -> f32 {
    let mut sums = [[0.0f32; LANES]; SPIN_VECTORS];
    let (x, y) = (std::hint::black_box(0.999), std::hint::black_box(0.001));
    for _ in 0..rounds {
        for sum in sums.iter_mut().flatten() {
            *sum = multiply_add(*sum, x, y);
        }
    }
    sums.iter().flatten().sum()
}
