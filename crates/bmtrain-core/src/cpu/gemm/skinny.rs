//! Products of few rows with a transposed right side (`y = x·Wᵀ` for a handful of tokens): dot products without
//! packing.
//!
//! Packing W would cost more than the few rows gain; rows of x and W both run along k, so whole vectors of both are
//! multiplied and the lanes are added at the end.
#![allow(unsafe_code)]

use std::ops::Range;

use super::block::finish;
use super::job::GemmJob;
use super::kernel::{Dots, Kernel};
use super::operand::{Matrix, Source, widen};
use super::scratch::Scratch;
use crate::cpu::scratch::Region;

/// Most rows of such a product.
const ROWS: usize = 16;

/// Columns of a panel: a multiple of 8 for the activation and of the columns of every kernel's dot products; 16 rows of
/// it fit the buffer of a tile.
pub(super) const COLUMNS: usize = 24;

/// Longest stretch of the sum; bounds the scratch of widened operands (16 and 24 rows: 128 and 192 KiB).
const STRETCH: usize = 2048;

/// Shortest sum for which adding up lanes is cheap beside the products.
const SHORTEST: usize = 64;

pub(super) fn takes(job: &GemmJob<'_>) -> bool {
    let along_k = job.b.row_stride == 1 && job.b.col_stride >= job.k && job.a.col_stride == 1;
    along_k && job.m <= ROWS && job.k >= SHORTEST && job.n > 1
}

pub(super) fn run(kernel: &Kernel, job: &GemmJob<'_>, columns: Range<usize>, scratch: &mut Scratch) {
    let rows = 0..job.m;
    for j in columns.clone().step_by(COLUMNS) {
        let count = COLUMNS.min(columns.end - j);
        let mut sums = [0.0f32; ROWS * COLUMNS];
        let sums = &mut sums[..rows.len() * COLUMNS];
        for start in (0..job.k).step_by(STRETCH) {
            let k = STRETCH.min(job.k - start);
            let x = lines(&job.a, job.a.row_stride, rows.clone(), start, k, &mut scratch.left);
            let w = lines(&job.b, job.b.col_stride, j..j + count, start, k, &mut scratch.lines);
            let mut part = [0.0f32; ROWS * COLUMNS];
            block(kernel, k, x, w, &mut part, (rows.len(), count));
            for (sum, part) in sums.iter_mut().zip(part) {
                *sum += part;
            }
        }
        for (i, line) in rows.clone().zip(sums.chunks_exact_mut(COLUMNS)) {
            line.iter_mut().for_each(|x| *x *= job.alpha);
            if job.beta != 0.0 {
                let mut old = [0.0f32; COLUMNS];
                // SAFETY: the task owns these rows and columns.
                unsafe { job.c.read(job.c_start + i * job.ldc + j, &mut old[..count]) };
                for (x, old) in line.iter_mut().zip(old) {
                    *x += job.beta * old;
                }
            }
        }
        finish(job, sums, rows.clone(), j, count, COLUMNS);
    }
}

/// Some lines of an operand over a stretch: in place if they are f32, else widened. Returns the slice and the distance
/// between lines.
fn lines<'s>(
    of: &Matrix<'s>,
    stride: usize,
    which: Range<usize>,
    start: usize,
    k: usize,
    scratch: &'s mut Region,
) -> (&'s [f32], usize) {
    let first = of.start + which.start * stride + start;
    if let Source::F32(data) = of.data {
        return (&data[first..], stride);
    }
    let wide = scratch.take(which.len() * k);
    for (line, to) in wide.chunks_exact_mut(k).enumerate() {
        widen(of.data, first + line * stride, to);
    }
    (wide, k)
}

/// Dot products of `m` lines of x with `n` lines of w, in the shapes the kernel has.
fn block(kernel: &Kernel, k: usize, x: (&[f32], usize), w: (&[f32], usize), out: &mut [f32], (m, n): (usize, usize)) {
    let mut i = 0;
    while i < m {
        // Calls of about equal height: short ones have few sums per load. Rows outside, columns inside, because a few
        // rows of x fit the first-level cache.
        let left = m - i;
        let tall = left.div_ceil(left.div_ceil(kernel.dots.len()));
        let mut j = 0;
        while j < n {
            let (routines, wide) =
                if j + kernel.dot_columns <= n { (kernel.dots, kernel.dot_columns) } else { (kernel.single_dots, 1) };
            assert!((i + tall - 1) * x.1 + k <= x.0.len() && (j + wide - 1) * w.1 + k <= w.0.len());
            assert!((i + tall - 1) * COLUMNS + j + wide <= out.len());
            let dots = Dots {
                k,
                x: x.0[i * x.1..].as_ptr(),
                x_row: x.1,
                y: w.0[j * w.1..].as_ptr(),
                y_row: w.1,
                out: out[i * COLUMNS + j..].as_mut_ptr(),
                out_row: COLUMNS,
            };
            // SAFETY: the kernel was chosen for this machine; the assertions above are its conditions on lengths.
            unsafe { routines[tall - 1](&dots) };
            j += wide;
        }
        i += tall;
    }
}
