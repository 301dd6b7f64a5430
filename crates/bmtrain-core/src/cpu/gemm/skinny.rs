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
    let x = Lines::of_left(job, &mut scratch.left);
    let columns = if job.m == 1 { alone(kernel, job, columns, x) } else { columns };
    let rows = 0..job.m;
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
        write(job, sums, rows.clone(), (j, count));
    }
}

/// One row of x, with rows of w from [`ALONE`] places that are as far apart as `columns` allow; returns what is left of
/// the columns.
///
/// All there is to do is to read w. Rows one after the other would wait for their sums, and of rows that are met
/// together and next to each other, on the same page of memory, the hardware does not see that each will go on.
fn alone(kernel: &Kernel, job: &GemmJob<'_>, columns: Range<usize>, x: Lines<'_>) -> Range<usize> {
    let (routine, apart) = (kernel.dots(job.b.data).alone, columns.len() / ALONE);
    let w = Lines { data: job.b.data, start: job.b.start, row: job.b.col_stride };
    let stretch = stretch(kernel, job);
    for first in (0..apart).step_by(COLUMNS) {
        let count = COLUMNS.min(apart - first);
        let mut sums = [0.0f32; ALONE * COLUMNS];
        for start in (0..job.k).step_by(stretch) {
            let k = stretch.min(job.k - start);
            for i in 0..count {
                let (x, w) = (x.from(start), w.from(start));
                let ((x_data, x_len), (y, y_len)) = (x.at(0), w.at((columns.start + first + i) * w.row));
                assert!(k <= x_len && (ALONE - 1) * apart * w.row + k <= y_len);
                let mut part = [0.0f32; ALONE];
                let (y_row, out) = (apart * w.row, part.as_mut_ptr());
                let x = x_data.cast();
                let dots = Dots { k, x, x_row: x_len, y, y_row, out, out_row: ALONE, fetched: 0, ahead: 0 };
                // SAFETY: as in `block`.
                unsafe { routine(&dots) };
                for (sums, part) in sums.chunks_exact_mut(COLUMNS).zip(part) {
                    sums[i] += part;
                }
            }
        }
        for (place, sums) in sums.chunks_exact_mut(COLUMNS).enumerate() {
            write(job, sums, 0..1, (columns.start + place * apart + first, count));
        }
    }
    columns.start + ALONE * apart..columns.end
}

/// Write sums of `rows` and of `count` columns from `j` on, [`COLUMNS`] a row.
fn write(job: &GemmJob<'_>, sums: &mut [f32], rows: Range<usize>, (j, count): (usize, usize)) {
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
    finish(job, sums, rows, j, count, COLUMNS);
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

    /// These lines from element `distance` on.
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
            let fetched = (call..wide).step_by(calls).fold(0, |rows, j| rows | 1 << j);
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
