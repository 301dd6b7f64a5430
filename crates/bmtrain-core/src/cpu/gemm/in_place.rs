//! Products of few rows with a row-major B (`dx = dy·W` for a handful of tokens): B is read once and where it is, since
//! packing it would take longer than the few rows repay.
//!
//! Every sum has the order of a tile over the same stretches, so the bits are the same as in `narrow.rs` and `wide.rs`.
#![allow(unsafe_code)]

use std::ops::Range;

use super::block::finish;
use super::cut::{Limits, Stretches};
use super::job::GemmJob;
use super::kernel::{Kernel, MAX_TILE, RowStrip, RowStripRoutine, Rows, Strip};
use super::left::Left;
use super::narrow::{self, Buffers};
use super::operand::Matrix;
use super::schedule::Tickets;
use super::scratch::Scratch;
use crate::cpu::scratch::Region;

/// Most rows of such a product. With more, packed panels, which are read from one run of memory, are faster.
const FEW: usize = 64;

/// Columns that one thread alone computes side by side. The longer the runs of memory that are read of B, the sooner
/// the hardware prefetches; the more columns, the more sums are kept meanwhile.
const COLUMNS: usize = 768;

/// Panels of columns instead, where several threads share them.
const PANELS: usize = 8;

/// Panels of a task for one row.
const PANELS_OF_ONE: usize = 16;

/// Rows of B that are met at a time: every row is another run of memory and, as like as not, another page. They are so
/// few that, some panels wide, they stay in the second-level cache for all tiles, and their pages in the nearest table
/// of addresses; with more of them, sums are stored and loaded less often.
const ROWS_OF_B: Range<usize> = 64..128;

pub(super) fn takes(kernel: &Kernel, limits: &Limits, job: &GemmJob<'_>) -> bool {
    job.b.col_stride == 1
        && job.m <= FEW
        && job.n >= kernel.lanes
        && job.k > 0
        && narrow::packs_all(kernel, limits, job)
}

/// Work of one thread; columns are given out by `next`.
pub(super) fn work(
    kernel: &Kernel,
    limits: &Limits,
    job: &GemmJob<'_>,
    next: &Tickets,
    workers: usize,
    scratch: &mut Scratch,
) {
    let Scratch { panels, left, lines, sums, phase_sums } = scratch;
    let stretches = Stretches::new(kernel, job.k);
    // Tiles of about equal height.
    let heights = kernel.row_strips(job.b.data);
    let height = job.m.div_ceil(job.m.div_ceil(heights.len()));
    let widest = heights[height - 1].last().map_or(1, |(vectors, _)| *vectors) * kernel.lanes;
    let most = match (job.m, workers) {
        (1, _) => PANELS_OF_ONE,
        (_, 1) => COLUMNS / widest,
        _ => PANELS,
    };
    let share = |_: usize, left: usize| if workers == 1 { left } else { left.div_ceil(2 * workers) }.min(most);
    let take = || next.run(0..job.n.div_ceil(widest), share);
    let Some(mut run) = take() else { return };

    // Each tile packed over the whole sum.
    let tile = heights.len() * job.k;
    let left = left.take(job.m.div_ceil(height) * tile);
    for (first, to) in (0..job.m).step_by(height).zip(left.chunks_exact_mut(tile)) {
        (kernel.pack_left_in_place)(&job.a, first..(first + height).min(job.m), 0..job.k, lines, to);
    }
    let a = Left::packed(left, (height, heights.len()), job.k);
    loop {
        let columns = run.start * widest..(run.end * widest).min(job.n);
        let in_place = InPlace { kernel, job, stretches: &stretches, a: &a };
        for run in column_runs(kernel, job, height, columns.clone()) {
            let fits = limits.left / 2 / run.columns.len();
            let rows_of_b = fits.clamp(ROWS_OF_B.start, ROWS_OF_B.end);
            in_place.compute(run, rows_of_b, sums, phase_sums);
        }
        let columns = columns.end - columns.len() % kernel.lanes..columns.end;
        if !columns.is_empty() {
            // Fewer than a vector, which would reach into the next row of B.
            let packed = narrow::pack(kernel, job, &stretches, lines, phase_sums);
            narrow::compute(kernel, job, &stretches, packed, columns, Buffers { panels, lines, sums });
        }
        match take() {
            Some(more) => run = more,
            None => return,
        }
    }
}

/// Columns whose tiles have one width.
pub(super) struct ColumnRun {
    pub(super) columns: Range<usize>,
    /// Width of a tile, in vectors.
    pub(super) vectors: usize,
}

/// Whole vectors of columns in runs for tiles of `height` rows: wide ones first.
pub(super) fn column_runs<'k>(
    kernel: &'k Kernel,
    job: &'k GemmJob<'_>,
    height: usize,
    mut columns: Range<usize>,
) -> impl Iterator<Item = ColumnRun> + 'k {
    std::iter::from_fn(move || {
        if columns.len() < kernel.lanes {
            return None;
        }
        let (vectors, _) = routine(kernel, job, height, columns.len() / kernel.lanes);
        let width = vectors * kernel.lanes;
        let run = columns.start..columns.start + columns.len() / width * width;
        columns.start = run.end;
        Some(ColumnRun { columns: run, vectors })
    })
}

/// The widest tile of `rows` rows that has at most `vectors` vectors.
fn routine(kernel: &Kernel, job: &GemmJob<'_>, rows: usize, vectors: usize) -> (usize, RowStripRoutine) {
    let widths = kernel.row_strips(job.b.data)[rows - 1];
    widths.iter().rfind(|(width, _)| *width <= vectors).copied().unwrap_or(widths[0])
}

/// A product whose A is packed and whose B is read in place.
struct InPlace<'p, 'a> {
    kernel: &'p Kernel,
    job: &'p GemmJob<'a>,
    stretches: &'p Stretches,
    a: &'p Left<'p>,
}

impl InPlace<'_, '_> {
    /// Columns of all rows, `rows_of_b` rows of B at a time: straight into C where it is f32 and the sums are final.
    fn compute(&self, run: ColumnRun, rows_of_b: usize, sums: &mut Region, results: &mut Region) {
        let InPlace { kernel, job, stretches, a } = *self;
        let columns = run.columns.clone();
        let (m, n) = (job.m, columns.len());
        let sums = sums.take(m * n);
        let start = job.c_start + columns.start;
        let direct = if job.has_epilogue() { None } else { job.c.f32_at(start, (m - 1) * job.ldc + n) };
        let results = results.take(if direct.is_some() { 0 } else { m * n });
        if direct.is_none() && job.beta != 0.0 {
            for (i, line) in results.chunks_exact_mut(n).enumerate() {
                // SAFETY: the task owns these columns.
                unsafe { job.c.read(start + i * job.ldc, line) };
            }
        }
        let (c, c_row) = direct.map_or((results.as_mut_ptr(), n), |c| (c, job.ldc));
        // A lone tile fetches rows on the way.
        let fetched = if m > a.height { rows_of_b } else { 0 };
        for index in 0..stretches.count {
            let stretch = stretches.range(index);
            let beta = if index == 0 { job.beta } else { 1.0 };
            for start in stretch.clone().step_by(rows_of_b) {
                let k = start..stretch.end.min(start + rows_of_b);
                let part = Part { begins: start == stretch.start, ends: k.end == stretch.end, beta, fetched, k };
                // SAFETY: C is inside the result, where this task owns the columns, or is the room for results.
                unsafe { add_part(kernel, job, a, part, &run, sums, (c, c_row)) };
            }
        }
        if direct.is_none() {
            for (i, line) in results.chunks_exact_mut(n).enumerate() {
                for (j, run) in (columns.start..).step_by(MAX_TILE).zip(line.chunks_mut(MAX_TILE)) {
                    finish(job, run, i..i + 1, j, run.len(), run.len());
                }
            }
        }
    }
}

/// Some rows of B over a stretch, which tiles add to what they have of it.
pub(super) struct Part {
    pub(super) k: Range<usize>,
    /// Whether these are the first rows of the stretch, and the last ones.
    pub(super) begins: bool,
    pub(super) ends: bool,
    /// Factor of what C holds, where they are the last.
    pub(super) beta: f32,
    /// Rows after them that are fetched meanwhile, at most.
    pub(super) fetched: usize,
}

/// # Safety
/// `c` must be valid for all rows of the job, `c_row` apart, and these columns, which nothing else may access
/// meanwhile.
pub(super) unsafe fn add_part(
    kernel: &Kernel,
    job: &GemmJob<'_>,
    a: &Left<'_>,
    part: Part,
    ColumnRun { columns, vectors }: &ColumnRun,
    sums: &mut [f32],
    (c, c_row): (*mut f32, usize),
) {
    let vectors = *vectors;
    let Part { k, begins, ends, beta, fetched } = part;
    let (m, n) = (job.m, columns.len());
    let Matrix { data, start, row_stride, .. } = job.b;
    let b = start + k.start * row_stride + columns.start;
    assert!(b + (k.len() - 1) * row_stride + n <= data.len(), "gemm: rows of B out of range");
    let bytes = data.element_bytes();
    let next = Rows {
        at: data.address(b).wrapping_add(k.len() * row_stride * bytes),
        stride: row_stride * bytes,
        len: n * bytes,
        rows: fetched.min(job.k - k.end),
    };
    for (first, rows) in [(0, a.height), (m / a.height * a.height, m % a.height)] {
        let tiles = if rows == a.height { m / rows } else { usize::from(rows > 0) };
        if tiles == 0 {
            continue;
        }
        let from = first / a.height * a.tile + k.start * a.step;
        let last = from + (tiles - 1) * a.tile + (k.len() - 1) * a.step + rows - 1;
        assert!(last < a.data.len(), "gemm: rows of A out of range");
        let (width, routine) = routine(kernel, job, rows, vectors);
        assert!(width == vectors && n.is_multiple_of(width * kernel.lanes));
        assert!(begins && ends || (first + tiles * rows) * n <= sums.len(), "gemm: too few sums");
        let strip = Strip {
            tiles,
            k: k.len(),
            a: a.data.as_ptr().wrapping_add(from),
            a_tile: a.tile,
            a_row: a.row,
            a_step: a.step,
            b: std::ptr::null(),
            c: c.wrapping_add(first * c_row),
            c_row,
            alpha: job.alpha,
            beta,
            bias: std::ptr::null(),
            next: std::ptr::null(),
            lines: 0,
        };
        let strip = RowStrip {
            strip,
            b: data.address(b),
            b_row: row_stride,
            panels: n / (width * kernel.lanes),
            sums: sums.as_mut_ptr().wrapping_add(first * n),
            begins,
            ends,
            next: if first == 0 { next } else { Rows { rows: 0, ..next } },
        };
        // SAFETY: the kernel was chosen for this machine; A and B are inside their slices, and there are as many sums
        // as tiles have where they are kept, by the assertions; the caller vouches for C.
        unsafe { routine(&strip) };
    }
}
