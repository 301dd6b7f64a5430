//! One task of a product on one thread: a stretch of k, rows by columns, in tiles, and the epilogue on finished tiles.
#![allow(unsafe_code)]

use std::ops::Range;

use super::cut::Stretches;
use super::job::GemmJob;
use super::kernel::{Kernel, MAX_TILE, Strip};
use super::left::Left;
use super::operand::widen;
use super::shared::Shared;
use crate::cpu::vector::LINE;

/// Sums so short that writing C takes longer. Rows of C tend to be on pages of their own, so few rows are then written
/// at a time, by all panels, which the cache keeps.
const SHORT: usize = 32;
const SHORT_TILES: usize = 8;

/// A panel of B as the tile routine reads it.
struct Right<'s> {
    data: &'s [f32],
    j: usize,
    columns: usize,
    width: usize,
}

/// f32 sums of a 16-bit result between stretches: element (i, j) of C is at `(i - self.i) * leading + j - self.j`.
#[derive(Clone, Copy)]
pub(super) struct Sums<'s> {
    pub(super) data: Shared<'s>,
    pub(super) leading: usize,
    pub(super) i: usize,
    pub(super) j: usize,
}

impl Sums<'_> {
    fn at(&self, i: usize, j: usize) -> usize {
        (i - self.i) * self.leading + j - self.j
    }
}

/// A stretch of a product.
#[derive(Clone, Copy)]
pub(super) struct Pass<'p, 'a> {
    kernel: &'p Kernel,
    job: &'p GemmJob<'a>,
    sums: Option<Sums<'p>>,
    start: usize,
    k: usize,
    last: bool,
}

impl<'p, 'a> Pass<'p, 'a> {
    pub(super) fn new(
        kernel: &'p Kernel,
        job: &'p GemmJob<'a>,
        stretches: &Stretches,
        index: usize,
        sums: Option<Sums<'p>>,
    ) -> Self {
        let k = stretches.range(index);
        Pass { kernel, job, sums, start: k.start, k: k.len(), last: index + 1 == stretches.count }
    }

    fn is_first(&self) -> bool {
        self.start == 0
    }
}

/// Computes rows by columns over a stretch; `packed(j, len)` is the packed panel of column j with its `len` elements.
pub(super) fn run<'s>(
    pass: &Pass<'_, '_>,
    a: &Left<'_>,
    (rows, columns): (Range<usize>, Range<usize>),
    packed: impl Fn(usize, usize) -> &'s [f32],
) {
    let Pass { kernel, k, .. } = *pass;
    let right = |j: usize| {
        let count = kernel.columns().min(columns.end - j);
        let width = count.next_multiple_of(kernel.lanes);
        Right { data: packed(j, width * k), j, columns: count, width }
    };
    let at_once = if k <= SHORT { SHORT_TILES * kernel.rows() } else { rows.len() };
    for start in rows.clone().step_by(at_once) {
        let block = start..(start + at_once).min(rows.end);
        for j in columns.clone().step_by(kernel.columns()) {
            let b = right(j);
            let next = match j + kernel.columns() {
                next if next < columns.end => right(next).data,
                _ => &[],
            };
            strip(pass, (a, (start - rows.start) / kernel.rows()), block.clone(), &b, next);
        }
    }
}

/// One panel of B: straight into C or the sums where possible, else tile by tile through a buffer. `next` is fetched
/// meanwhile.
fn strip(pass: &Pass<'_, '_>, (a, first_tile): (&Left<'_>, usize), rows: Range<usize>, b: &Right<'_>, next: &[f32]) {
    let Pass { kernel, job, sums, last, .. } = *pass;
    let first = pass.is_first();
    let beta = if first { job.beta } else { 1.0 };
    let height = kernel.rows();
    let to = match sums {
        Some(sums) if !(last || first && beta != 0.0) => {
            let start = sums.at(rows.start, b.j);
            sums.data.f32_at(start, (rows.len() - 1) * sums.leading + b.width).map(|to| (to, sums.leading))
        }
        None if b.columns == b.width && !(last && job.has_epilogue()) => {
            let start = job.c_start + rows.start * job.ldc + b.j;
            job.c.f32_at(start, (rows.len() - 1) * job.ldc + b.width).map(|to| (to, job.ldc))
        }
        _ => None,
    };
    if let Some((to, row)) = to {
        let (whole, rest) = (rows.len() / height, rows.len() % height);
        if whole > 0 {
            multiply(pass, a, first_tile, (whole, height), b, (to, row), (beta, next));
        }
        if rest > 0 {
            multiply(
                pass,
                a,
                first_tile + whole,
                (1, rest),
                b,
                (to.wrapping_add(whole * height * row), row),
                (beta, &[]),
            );
        }
        return;
    }
    let tiles = rows.len().div_ceil(height);
    for (index, i) in rows.clone().step_by(height).enumerate() {
        // Each tile fetches its part of the next panel.
        let line = |tile: usize| next.len() / LINE * tile / tiles * LINE;
        let next = &next[line(index)..line(index + 1)];
        tile(pass, a, first_tile + index, i..(i + height).min(rows.end), b, (beta, next));
    }
}

fn tile(pass: &Pass<'_, '_>, a: &Left<'_>, index: usize, rows: Range<usize>, b: &Right<'_>, with: (f32, &[f32])) {
    let Pass { job, sums, last, .. } = *pass;
    let (count, width, beta) = (rows.len(), b.width, with.0);
    let mut buffer = [0.0f32; MAX_TILE];
    let buffer = &mut buffer[..count * width];
    if beta != 0.0 {
        for (i, line) in rows.clone().zip(buffer.chunks_exact_mut(width)) {
            // SAFETY: the task owns these rows and columns.
            unsafe {
                match sums {
                    Some(sums) if !pass.is_first() => sums.data.read(sums.at(i, b.j), line),
                    _ => job.c.read(job.c_start + i * job.ldc + b.j, &mut line[..b.columns]),
                }
            }
        }
    }
    multiply(pass, a, index, (1, count), b, (buffer.as_mut_ptr(), width), with);
    if last {
        finish(job, buffer, rows, b.j, b.columns, width);
        return;
    }
    for (i, line) in rows.zip(buffer.chunks_exact(width)) {
        // SAFETY: as above.
        unsafe {
            match sums {
                Some(sums) => sums.data.write(sums.at(i, b.j), line),
                None => job.c.write(job.c_start + i * job.ldc + b.j, &line[..b.columns]),
            }
        }
    }
}

/// Calls a routine for `tiles` tiles of `rows` rows from tile `first` of A on, after checking what it will read. `c`
/// must be valid for these rows and `b.width`.
fn multiply(
    pass: &Pass<'_, '_>,
    a: &Left<'_>,
    first: usize,
    (tiles, rows): (usize, usize),
    b: &Right<'_>,
    (c, c_row): (*mut f32, usize),
    (beta, next): (f32, &[f32]),
) {
    let Pass { kernel, job, k, .. } = *pass;
    let start = a.start + first * a.tile;
    if k > 0 {
        let last = start + (tiles - 1) * a.tile + (rows - 1) * a.row + (k - 1) * a.step;
        assert!(last < a.data.len(), "gemm: tile of A out of range");
        assert!(k * b.width <= b.data.len(), "gemm: tile of B out of range");
    }
    let strips = if a.packed { kernel.packed_strips } else { kernel.strips };
    let routine = strips[rows - 1][b.width / kernel.lanes - 1];
    let strip = Strip {
        tiles,
        k,
        a: a.data.as_ptr().wrapping_add(start),
        a_tile: a.tile,
        a_row: a.row,
        a_step: a.step,
        b: b.data.as_ptr(),
        c,
        c_row,
        alpha: job.alpha,
        beta,
        next: next.as_ptr(),
        lines: next.len() / LINE,
    };
    // SAFETY: the kernel was chosen for this machine; A and B are inside their slices by the assertions above; C is
    // either a buffer of rows x width on the stack or, by `Shared::f32_at`, inside the result or its sums, where this
    // task owns the rows and columns.
    unsafe { routine(&strip) }
}

/// The epilogue on a buffer of `rows x width` finished sums with `columns` real ones, and the rounding to C.
pub(super) fn finish(
    job: &GemmJob<'_>,
    buffer: &mut [f32],
    rows: Range<usize>,
    j: usize,
    columns: usize,
    width: usize,
) {
    if let Some(bias) = job.bias {
        let mut values = [0.0f32; MAX_TILE];
        widen(bias, j, &mut values[..columns]);
        for line in buffer.chunks_exact_mut(width) {
            for (x, value) in line.iter_mut().zip(&values) {
                *x += value;
            }
        }
    }
    if let Some((target, leading)) = job.pre_activation {
        for (i, line) in rows.clone().zip(buffer.chunks_exact(width)) {
            // SAFETY: the task owns these rows and columns.
            unsafe { target.write(i * leading + j, &line[..columns]) };
        }
    }
    if let Some(activation) = job.activation {
        activation(buffer);
    }
    if let Some((saved, leading, gradient)) = job.gradient {
        let mut values = [0.0f32; MAX_TILE];
        for (i, line) in rows.clone().zip(values.chunks_exact_mut(width)) {
            widen(saved, i * leading + j, &mut line[..columns]);
        }
        gradient(buffer, &values[..buffer.len()]);
    }
    for (i, line) in rows.zip(buffer.chunks_exact(width)) {
        // SAFETY: the task owns these rows and columns.
        unsafe { job.c.write(job.c_start + i * job.ldc + j, &line[..columns]) };
    }
}
