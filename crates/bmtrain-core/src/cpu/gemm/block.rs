//! One task of a product on one thread: a stretch of k, rows by columns, in tiles, and the epilogue on finished tiles.
#![allow(unsafe_code)]

use std::ops::Range;

use super::cut::Stretches;
use super::job::GemmJob;
use super::kernel::{Kernel, MAX_TILE, Strip};
use super::left::Left;
use super::operand::{Source, widen};
use super::shared::Shared;
use crate::cpu::vector::LINE;
use crate::simd::vectorised;

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
    let at_once = if k <= SHORT { SHORT_TILES * a.height } else { rows.len() };
    for start in rows.clone().step_by(at_once) {
        let block = start..(start + at_once).min(rows.end);
        for j in columns.clone().step_by(kernel.columns()) {
            let b = right(j);
            let next = match j + kernel.columns() {
                next if next < columns.end => right(next).data,
                _ => &[],
            };
            strip(pass, (a, (start - rows.start) / a.height), block.clone(), &b, next);
        }
    }
}

/// One panel of B: straight into C or the sums where possible, else tile by tile through a buffer. `next` is fetched
/// meanwhile.
fn strip(pass: &Pass<'_, '_>, (a, first_tile): (&Left<'_>, usize), rows: Range<usize>, b: &Right<'_>, next: &[f32]) {
    let Pass { job, sums, last, .. } = *pass;
    let first = pass.is_first();
    let beta = if first { job.beta } else { 1.0 };
    let height = a.height;
    let bias = bias(pass, b);
    let to = match sums {
        Some(sums) if !(last || first && beta != 0.0) => {
            let start = sums.at(rows.start, b.j);
            sums.data.f32_at(start, (rows.len() - 1) * sums.leading + b.width).map(|to| (to, sums.leading))
        }
        None if b.columns == b.width && (!last || bias.is_some() || !job.has_epilogue()) => {
            let start = job.c_start + rows.start * job.ldc + b.j;
            job.c.f32_at(start, (rows.len() - 1) * job.ldc + b.width).map(|to| (to, job.ldc))
        }
        _ => None,
    };
    if let Some((to, row)) = to {
        multiply_rows(pass, (a, first_tile), rows.len(), b, (to, row), TileExtras { beta, next, bias });
        return;
    }
    let mut buffer = [0.0f32; MAX_TILE];
    let tiles = rows.len().div_ceil(height);
    let at_once = (MAX_TILE / (height * b.width)).max(1);
    for (index, i) in (0..tiles).step_by(at_once).zip(rows.clone().step_by(at_once * height)) {
        // Each of them fetches its part of the next panel.
        let line = |tile: usize| next.len() / LINE * tile.min(tiles) / tiles * LINE;
        let next = &next[line(index)..line(index + at_once)];
        let rows = i..(i + at_once * height).min(rows.end);
        let buffer = &mut buffer[..rows.len() * b.width];
        through_buffer(pass, (a, first_tile + index), rows, b, TileExtras { beta, next, bias: None }, buffer);
    }
}

/// The bias of a panel where that is the whole epilogue: tiles add it as they are stored.
fn bias<'p>(pass: &Pass<'_, 'p>, b: &Right<'_>) -> Option<&'p [f32]> {
    let job = pass.job;
    match job.bias {
        Some(Source::F32(bias)) if pass.last && b.columns == b.width && !job.changes_values() => {
            Some(&bias[b.j..b.j + b.width])
        }
        _ => None,
    }
}

/// Factor of C, prefetch and bias of a tile.
#[derive(Clone, Copy)]
struct TileExtras<'s> {
    beta: f32,
    next: &'s [f32],
    bias: Option<&'s [f32]>,
}

/// Tiles whose results are not stored as they are: rounded, with columns that C does not have, or changed by the
/// epilogue.
fn through_buffer(
    pass: &Pass<'_, '_>,
    a: (&Left<'_>, usize),
    rows: Range<usize>,
    b: &Right<'_>,
    with: TileExtras<'_>,
    buffer: &mut [f32],
) {
    let Pass { job, sums, last, .. } = *pass;
    let width = b.width;
    if with.beta != 0.0 {
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
    multiply_rows(pass, a, rows.len(), b, (buffer.as_mut_ptr(), width), with);
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

/// Whole tiles from tile `first` of A on, and the shorter one below them.
fn multiply_rows(
    pass: &Pass<'_, '_>,
    (a, first): (&Left<'_>, usize),
    rows: usize,
    b: &Right<'_>,
    (c, c_row): (*mut f32, usize),
    with: TileExtras<'_>,
) {
    let (whole, rest) = (rows / a.height, rows % a.height);
    if whole > 0 {
        multiply(pass, a, first, (whole, a.height), b, (c, c_row), with);
    }
    if rest > 0 {
        let c = c.wrapping_add(whole * a.height * c_row);
        multiply(pass, a, first + whole, (1, rest), b, (c, c_row), TileExtras { next: &[], ..with });
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
    TileExtras { beta, next, bias }: TileExtras<'_>,
) {
    let Pass { kernel, job, k, .. } = *pass;
    let start = a.start + first * a.tile;
    if k > 0 {
        let last = start + (tiles - 1) * a.tile + (rows - 1) * a.row + (k - 1) * a.step;
        assert!(last < a.data.len(), "gemm: tile of A out of range");
        assert!(k * b.width <= b.data.len(), "gemm: tile of B out of range");
    }
    assert!(bias.is_none_or(|bias| bias.len() == b.width), "gemm: bias of another width");
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
        bias: bias.map_or(std::ptr::null(), <[f32]>::as_ptr),
        next: next.as_ptr(),
        lines: next.len() / LINE,
    };
    // SAFETY: the kernel was chosen for this machine; A and B are inside their slices by the assertions above, and so
    // is the bias; C is either a buffer of rows x width on the stack or, by `Shared::f32_at`, inside the result or its
    // sums, where this task owns the rows and columns.
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
    match job.bias {
        Some(Source::F32(bias)) => add_bias(&bias[j..j + columns], buffer, width),
        Some(bias) => {
            let mut values = [0.0f32; MAX_TILE];
            widen(bias, j, &mut values[..columns]);
            add_bias(&values[..columns], buffer, width);
        }
        None => {}
    }
    if let Some((target, leading)) = job.pre_activation {
        // SAFETY: the task owns these rows and columns.
        unsafe { target.write_rows(rows.start * leading + j, leading, (buffer, width), columns) };
    }
    if let Some(activation) = job.activation {
        activation(buffer);
    }
    if let Some((other, leading, combine)) = job.combination {
        let mut values = [0.0f32; MAX_TILE];
        for (i, line) in rows.clone().zip(values.chunks_exact_mut(width)) {
            widen(other, i * leading + j, &mut line[..columns]);
        }
        combine(buffer, &values[..buffer.len()]);
    }
    // SAFETY: the task owns these rows and columns.
    unsafe { job.c.write_rows(job.c_start + rows.start * job.ldc + j, job.ldc, (buffer, width), columns) };
}

vectorised! {
    fn add_bias<I>(bias: &[f32], buffer: &mut [f32], width: usize) {
        for line in buffer.chunks_exact_mut(width) {
            for (x, value) in line.iter_mut().zip(bias) {
                *x += value;
            }
        }
    }
}
