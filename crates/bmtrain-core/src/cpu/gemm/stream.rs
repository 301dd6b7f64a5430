//! Products of few rows with a row-major B (`dx = dy·W` for a handful of tokens): they take as long as B is read from
//! memory, so whole rows of it are read from end to end.
//!
//! Every sum has the order of a tile over the same stretches, so the bits are the same as in `narrow.rs` and `wide.rs`.

#![allow(unsafe_code)]

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::block;
use super::cut::Stretches;
use super::job::GemmJob;
use super::kernel::{Kernel, MAX_TILE};
use super::operand::{Matrix, Source, Target, widen};
use super::schedule::Tickets;
use super::shared::Shared;
use crate::cpu::scratch::Region;
use crate::cpu::simd::vectorised;
use crate::cpu::vector::prefetch;

/// Most rows of such a product.
const FEW: usize = 8;

/// Columns at a time: sums of [`FEW`] rows of them fit the first-level cache, beside rows of B.
const COLUMNS: usize = MAX_TILE;

/// Rows of sums are multiples of this, so that epilogues are vector code.
const LANES: usize = 16;

/// Most blocks of columns.
const MOST_BLOCKS: usize = 32;

/// Rows of B at a time, and how many rows ahead the caches fetch them.
const AT_ONCE: usize = 4;
const AHEAD: usize = 8;

/// Fewest columns of a task.
const LEAST_COLUMNS: usize = 128;

pub(super) fn takes(job: &GemmJob<'_>) -> bool {
    job.b.col_stride == 1 && job.n >= LEAST_COLUMNS && job.k > 0 && job.m <= FEW
}

vectorised! {
    /// `sums += a[0] * b[0] + … + a[3] * b[3]`, one term after the other.
    fn add_rows<I>(a: [f32; AT_ONCE], b: [&[f32]; AT_ONCE], sums: &mut [f32]) {
        let [b0, b1, b2, b3] = b;
        for ((((sum, b0), b1), b2), b3) in sums.iter_mut().zip(b0).zip(b1).zip(b2).zip(b3) {
            *sum = I::mul_add(a[3], *b3, I::mul_add(a[2], *b2, I::mul_add(a[1], *b1, I::mul_add(a[0], *b0, *sum))));
        }
    }

    /// `sums += alpha * part`, the product rounded by itself.
    fn add_scaled<I>(alpha: f32, part: &[f32], sums: &mut [f32]) {
        for (sum, part) in sums.iter_mut().zip(part) {
            *sum += alpha * part;
        }
    }

    /// `sums += a * b`.
    fn add_row<I>(a: f32, b: &[f32], sums: &mut [f32]) {
        for (sum, b) in sums.iter_mut().zip(b) {
            *sum = I::mul_add(a, *b, *sum);
        }
    }
}

/// A product that some threads compute together. A task is one stretch of the sums of some columns; the thread that
/// computes the last stretch of these columns adds them up.
pub(super) struct Stream<'p, 'a> {
    job: &'p GemmJob<'a>,
    stretches: Stretches,
    /// Columns of a task.
    width: usize,
    /// Sums of every stretch, one result after the other.
    sums: Shared<'p>,
    next: Tickets,
    /// Stretches that are left of each block of columns.
    left: [AtomicUsize; MOST_BLOCKS],
}

impl<'p, 'a> Stream<'p, 'a> {
    /// A product for `workers` threads, whose sums are in `sums`.
    pub(super) fn new(kernel: &Kernel, job: &'p GemmJob<'a>, workers: usize, sums: &'p mut Region) -> Self {
        let stretches = Stretches::new(kernel, job.k);
        // The longer the runs of a row that are read at a time, the faster is memory.
        let blocks = if workers == 1 { 1 } else { (2 * workers).div_ceil(stretches.count) };
        let blocks = blocks.min(MOST_BLOCKS).min(job.n / LEAST_COLUMNS).max(1);
        let width = job.n.div_ceil(blocks).next_multiple_of(LANES);
        let sums = sums.take(stretches.count * job.m * job.n.next_multiple_of(LANES));
        let left = std::array::from_fn(|_| AtomicUsize::new(stretches.count));
        Stream { job, stretches, width, sums: Shared::new(Target::F32(sums)), next: Tickets::default(), left }
    }

    /// What one of the threads does.
    pub(super) fn work(&self, a: &mut Region, lines: &mut Region) {
        let Stream { job, stretches, width, .. } = self;
        let blocks = job.n.div_ceil(*width);
        while let Some(task) = self.next.one(0..blocks * stretches.count) {
            let (index, block) = (task / blocks, task % blocks);
            let columns = block * width..((block + 1) * width).min(job.n);
            self.add(index, &columns, a, lines);
            if self.left[block].fetch_sub(1, Ordering::AcqRel) == 1 {
                self.finish(&columns);
            }
        }
    }

    /// Where the sums of some columns over a stretch are: rows of a multiple of [`LANES`] elements.
    fn part(&self, index: usize, columns: &Range<usize>) -> (usize, usize) {
        let (padded, width) = (self.job.n.next_multiple_of(LANES), columns.len().next_multiple_of(LANES));
        (self.job.m * (index * padded + columns.start), self.job.m * width)
    }

    fn add(&self, index: usize, columns: &Range<usize>, a: &mut Region, lines: &mut Region) {
        let Stream { job, .. } = self;
        let k = self.stretches.range(index);
        let a = a.take(job.m * k.len());
        gather(&job.a, job.m, &k, a);
        let (start, len) = self.part(index, columns);
        // SAFETY: a task is given to one thread, and no other reads its sums before it is counted.
        let sums = unsafe { self.sums.part(start, len) };
        sums.fill(0.0);
        let width = len / job.m;
        for p in k.clone().step_by(AT_ONCE) {
            let terms = p..(p + AT_ONCE).min(k.end);
            for first in (0..columns.len()).step_by(COLUMNS) {
                let here = first..(first + COLUMNS).min(columns.len());
                let b = lines_of(&job.b, &terms, &(columns.start + here.start..columns.start + here.end), lines);
                for (i, sums) in sums.chunks_exact_mut(width).enumerate() {
                    let a = &a[i * k.len() + p - k.start..][..terms.len()];
                    match <[f32; AT_ONCE]>::try_from(a) {
                        Ok(a) => add_rows(a, b, &mut sums[here.clone()]),
                        Err(_) => a.iter().zip(b).for_each(|(a, b)| add_row(*a, b, &mut sums[here.clone()])),
                    }
                }
            }
        }
    }

    /// Adds the sums of all stretches to the first ones, in their order, and writes the result.
    fn finish(&self, columns: &Range<usize>) {
        let Stream { job, .. } = self;
        let (start, len) = self.part(0, columns);
        // SAFETY: all tasks of these columns are done and no other thread is given them.
        let total = unsafe { self.sums.part(start, len) };
        let width = len / job.m;
        for (i, total) in total.chunks_exact_mut(width).enumerate() {
            total.iter_mut().for_each(|x| *x *= job.alpha);
            if job.beta != 0.0 {
                for first in (0..columns.len()).step_by(COLUMNS) {
                    let mut old = [0.0; COLUMNS];
                    let old = &mut old[..COLUMNS.min(columns.len() - first)];
                    // SAFETY: the task owns these columns.
                    unsafe { job.c.read(job.c_start + i * job.ldc + columns.start + first, old) };
                    add_row(job.beta, old, &mut total[first..]);
                }
            }
            for index in 1..self.stretches.count {
                let (start, _) = self.part(index, columns);
                // SAFETY: as above.
                let part = unsafe { self.sums.part(start + i * width, width) };
                add_scaled(job.alpha, part, total);
            }
            for (first, total) in (columns.start..).step_by(COLUMNS).zip(total.chunks_mut(COLUMNS)) {
                let count = total.len().min(columns.end - first);
                block::finish(job, total, i..i + 1, first, count, total.len());
            }
        }
    }
}

/// Rows of A, one after the other, as f32.
fn gather(a: &Matrix<'_>, rows: usize, k: &Range<usize>, to: &mut [f32]) {
    let at = |i: usize, p: usize| a.start + i * a.row_stride + p * a.col_stride;
    for (i, line) in (0..rows).zip(to.chunks_exact_mut(k.len())) {
        if a.col_stride == 1 {
            widen(a.data, at(i, k.start), line);
        } else {
            for (p, x) in k.clone().zip(line) {
                widen(a.data, at(i, p), std::slice::from_mut(x));
            }
        }
    }
}

/// At most [`AT_ONCE`] rows of B by some columns: in place if they are f32, else widened.
fn lines_of<'s>(
    b: &Matrix<'s>,
    rows: &Range<usize>,
    columns: &Range<usize>,
    wide: &'s mut Region,
) -> [&'s [f32]; AT_ONCE] {
    let at = |p: usize| b.start + p * b.row_stride + columns.start;
    let mut lines = [&[][..]; AT_ONCE];
    if let Source::F32(data) = b.data {
        for (line, p) in lines.iter_mut().zip(rows.clone()) {
            *line = &data[at(p)..][..columns.len()];
            for j in (0..columns.len()).step_by(16) {
                prefetch(data, at(p + AHEAD) + j);
            }
        }
        return lines;
    }
    let mut rest = wide.take(rows.len() * columns.len());
    for (line, p) in lines.iter_mut().zip(rows.clone()) {
        let (to, others) = rest.split_at_mut(columns.len());
        widen(b.data, at(p), to);
        (*line, rest) = (to, others);
    }
    lines
}
