//! Products of few rows with a transposed right side (`y = x·Wᵀ` for a handful of tokens): dot products without
//! packing.
//!
//! Packing W would cost more than the few rows gain; rows of x and W both run along k, so whole vectors of both are
//! multiplied and the lanes are added at the end.
#![allow(unsafe_code)]

use std::ops::Range;

use super::block::finish;
use super::job::GemmJob;
use super::kernel::{ALONE, Dots, Kernel};
use super::operand::{Matrix, Source, widen};
use super::scratch::Scratch;
use crate::cpu::scratch::Region;
use crate::cpu::vector::LINE;

/// Most rows of such a product.
const ROWS: usize = 16;

/// Columns of a panel: a multiple of 8 for the activation and of the columns of every kernel's dot products; 16 rows of
/// it fit the buffer of a tile.
pub(super) const COLUMNS: usize = 24;

/// Longest stretch of the sum for one row of x.
const STRETCH: usize = 2048;

/// Elements that the first-level cache keeps: over a stretch of the sum all rows of x, the rows of w in use, and the
/// rows of w that are prefetched meanwhile.
const KEPT: usize = 7 << 10;

/// Prefetch distance within a long row, in bytes.
const WITHIN: usize = 512;

/// Shortest sum for which adding up lanes is cheap beside the products.
const SHORTEST: usize = 64;

pub(super) fn takes(job: &GemmJob<'_>) -> bool {
    let along_k = job.b.row_stride == 1 && job.b.col_stride >= job.k && job.a.col_stride == 1;
    along_k && job.m <= ROWS && job.k >= SHORTEST && job.n > 1
}

pub(super) fn run(kernel: &Kernel, job: &GemmJob<'_>, columns: Range<usize>, scratch: &mut Scratch) {
    let rows = 0..job.m;
    let x = Lines::of_left(job, &mut scratch.left);
    let stretch = stretch(kernel, job);
    for j in columns.clone().step_by(COLUMNS) {
        let count = COLUMNS.min(columns.end - j);
        let mut sums = [0.0f32; ROWS * COLUMNS];
        let sums = &mut sums[..rows.len() * COLUMNS];
        for start in (0..job.k).step_by(stretch) {
            let k = stretch.min(job.k - start);
            let w = Lines { data: job.b.data, start: job.b.start + j * job.b.col_stride, row: job.b.col_stride };
            let mut part = [0.0f32; ROWS * COLUMNS];
            block(kernel, k, x.from(start), w.from(start), &mut part, (rows.len(), count));
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

/// Terms that are summed without a pause; they follow from the shape, since results depend on them.
fn stretch(kernel: &Kernel, job: &GemmJob<'_>) -> usize {
    let most = if job.m == 1 { STRETCH } else { KEPT / (job.m + 2 * kernel.dot_columns) };
    job.k.div_ceil(job.k.div_ceil(most)).next_multiple_of(LINE)
}

/// Lines of an operand, along k.
#[derive(Clone, Copy)]
struct Lines<'s> {
    data: Source<'s>,
    /// Index of the first element.
    start: usize,
    /// Distance between lines.
    row: usize,
}

impl<'s> Lines<'s> {
    /// The rows of A: in place if they are f32, else widened, since every panel of columns meets them.
    fn of_left(job: &GemmJob<'s>, scratch: &'s mut Region) -> Self {
        let Matrix { data, start, row_stride, .. } = job.a;
        if let Source::F32(_) = data {
            return Lines { data, start, row: row_stride };
        }
        let wide = scratch.take(job.m * job.k);
        for (i, line) in wide.chunks_exact_mut(job.k).enumerate() {
            widen(data, start + i * row_stride, line);
        }
        Lines { data: Source::F32(wide), start: 0, row: job.k }
    }

    /// The same lines from element `distance` on.
    fn from(self, distance: usize) -> Self {
        Lines { start: self.start + distance, ..self }
    }

    /// The address of element `index`, and how many elements there are from it on.
    fn at(&self, index: usize) -> (*const u8, usize) {
        let first = self.start + index;
        (self.data.address(first), self.data.len() - first)
    }
}

/// Dot products of `m` lines of x, which are f32, with `n` lines of w, in the shapes the kernel has.
fn block(kernel: &Kernel, k: usize, x: Lines<'_>, w: Lines<'_>, out: &mut [f32], (m, n): (usize, usize)) {
    let routines = kernel.dots(w.data);
    let mut j = 0;
    while j < n {
        let (routines, wide) = match n - j {
            ALONE.. if m == 1 => (&[routines.alone][..], ALONE),
            left if left >= kernel.dot_columns => (routines.several, kernel.dot_columns),
            _ => (routines.single, 1),
        };
        // The next group of rows is prefetched if rows are short, else the elements that follow in the same rows.
        let ahead = if wide * w.row <= KEPT { wide * w.row } else { WITHIN / w.data.element_bytes() };
        // Calls of about equal height: short ones have few sums per load. Each prefetches some of the rows.
        let calls = m.div_ceil(routines.len());
        let mut i = 0;
        for call in 0..calls {
            let tall = (m - i).div_ceil(calls - call);
            let own = (call..wide).step_by(calls).filter(|_| m > 1);
            let fetched = own.fold(0, |rows, j| rows | 1 << j);
            let ((x_data, x_len), (y, y_len)) = (x.at(i * x.row), w.at(j * w.row));
            assert!((tall - 1) * x.row + k <= x_len && (wide - 1) * w.row + k <= y_len);
            assert!((i + tall - 1) * COLUMNS + j + wide <= out.len());
            let out = out[i * COLUMNS + j..].as_mut_ptr();
            let x_data = x_data.cast();
            let dots = Dots { k, x: x_data, x_row: x.row, y, y_row: w.row, out, out_row: COLUMNS, fetched, ahead };
            // SAFETY: the kernel was chosen for this machine; the assertions above are its conditions on lengths; w is
            // of the routines' dtype, and the x of `run` is f32.
            unsafe { routines[tall - 1](&dots) };
            i += tall;
        }
        j += wide;
    }
}
