//! One unit of a product on one thread: stretches of k, panels of B, tiles, and the epilogue on finished tiles.
//!
//! The loops, outermost first: stretch of k (pack its panels of B), block of rows (widen A if it is 16 bits wide),
//! panel, tile.
#![allow(unsafe_code)]

use std::ops::Range;

use super::kernel::{Kernel, MAX_TILE, Tile};
use super::operand::{Matrix, Source, check_extent, widen};
use super::pack::pack;
use super::scratch::Scratch;
use super::shared::Shared;
use super::{Activation, ActivationGradient, BatchedProduct, Product, skinny};
use crate::cpu::scratch::Region;
use crate::error::{Error, Result};
use crate::shape::expect_apart;

/// Longest stretch of k summed in registers. Longer ones make panels of B (192 KiB now) crowd the second-level cache,
/// shorter ones read and write C more often.
const STRETCH: usize = 768;

/// Rows of A between two panels: with a stretch, what the second-level cache keeps beside the panels of B.
const ROWS_AT_ONCE: usize = 96;

/// Up to this many rows, B is read in place if its columns are adjacent: packing would cost more than it saves.
const ROWS_UNPACKED: usize = 24;

#[derive(Clone, Copy)]
pub(super) struct GemmJob<'a> {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) alpha: f32,
    pub(super) a: Matrix<'a>,
    pub(super) b: Matrix<'a>,
    pub(super) beta: f32,
    pub(super) c: Shared<'a>,
    pub(super) c_start: usize,
    pub(super) ldc: usize,
    bias: Option<Source<'a>>,
    pre_activation: Option<(Shared<'a>, usize)>,
    activation: Option<Activation<'a>>,
    gradient: Option<(Source<'a>, usize, ActivationGradient<'a>)>,
}

impl<'a> GemmJob<'a> {
    pub(super) fn new(product: Product<'a>) -> Result<Self> {
        Self::with_reach(product, "gemm", [0; 3])
    }

    /// As [`GemmJob::new`], for products that move by up to `reach` elements in A, B and C.
    fn with_reach(product: Product<'a>, op: &'static str, reach: [usize; 3]) -> Result<Self> {
        let Product { m, n, k, alpha, a, b, beta, c, ldc, epilogue } = product;
        let a = Matrix::new(a, (m, k), reach[0], op, "A")?;
        let b = Matrix::new(b, (k, n), reach[1], op, "B")?;
        check_rows(c.len(), (m, n), ldc, reach[2], op, "C")?;
        if let Some(bias) = &epilogue.bias
            && bias.len() != n
        {
            return Err(Error::shape(op, "length of the bias", n, bias.len()));
        }
        if let Some((target, leading)) = &epilogue.pre_activation {
            check_rows(target.len(), (m, n), *leading, 0, op, "the pre-activation")?;
        }
        if let Some((source, leading, _)) = &epilogue.gradient {
            check_rows(source.len(), (m, n), *leading, 0, op, "the saved pre-activation")?;
        }
        Ok(GemmJob {
            m,
            n,
            k,
            alpha,
            a,
            b,
            beta,
            c: Shared::new(c),
            c_start: 0,
            ldc,
            bias: epilogue.bias,
            pre_activation: epilogue.pre_activation.map(|(target, leading)| (Shared::new(target), leading)),
            activation: epilogue.activation,
            gradient: epilogue.gradient,
        })
    }

    pub(super) fn operations(&self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    /// Whether f32 sums must be kept outside of C between stretches.
    pub(super) fn keeps_sums(&self) -> bool {
        !self.c.is_f32() && self.k > STRETCH && !skinny::takes(self)
    }

    fn has_epilogue(&self) -> bool {
        self.bias.is_some() || self.pre_activation.is_some() || self.activation.is_some() || self.gradient.is_some()
    }
}

/// Checks a row-major matrix that is written: long enough, rows apart.
fn check_rows(
    len: usize,
    (m, n): (usize, usize),
    leading: usize,
    reach: usize,
    op: &'static str,
    name: &str,
) -> Result<()> {
    if m > 1 && leading < n {
        return Err(Error::shape(op, format!("row distance of {name}"), format!("at least {n}"), leading));
    }
    check_extent(len, &[(m, leading), (n, 1)], reach, op, name)
}

pub(super) struct Batch<'a> {
    pub(super) first: GemmJob<'a>,
    count: [usize; 3],
    a_stride: [usize; 3],
    b_stride: [usize; 3],
    c_stride: [usize; 3],
}

impl<'a> Batch<'a> {
    /// Checks every length, and that no two products write the same element.
    pub(super) fn new(batch: BatchedProduct<'a>) -> Result<Self> {
        const OP: &str = "gemm_batch";
        let BatchedProduct { first, count, a_stride, b_stride, c_stride } = batch;
        if first.epilogue.pre_activation.is_some() || first.epilogue.gradient.is_some() {
            return Err(Error::argument(OP, "the epilogue of a batch may hold a bias and an activation only"));
        }
        let overflow =
            || Error::shape(OP, "size of the batch", "counts and strides that fit the address space", "more");
        count.iter().try_fold(1usize, |all, c| all.checked_mul(*c)).ok_or_else(overflow)?;
        let reach = |stride: [usize; 3]| {
            let far = |sum: usize, (c, s): (&usize, &usize)| sum.checked_add(c.saturating_sub(1).checked_mul(*s)?);
            count.iter().zip(&stride).try_fold(0, far).ok_or_else(overflow)
        };
        let reach = [reach(a_stride)?, reach(b_stride)?, reach(c_stride)?];
        let [outer, middle, inner] = [0, 1, 2].map(|level| (c_stride[level], count[level]));
        expect_apart([(1, first.n), (first.ldc, first.m), outer, middle, inner])
            .map_err(|got| Error::shape(OP, "strides of C", "no element written twice", got))?;
        Ok(Batch { first: GemmJob::with_reach(first, OP, reach)?, count, a_stride, b_stride, c_stride })
    }

    pub(super) fn count(&self) -> usize {
        self.count.iter().product()
    }

    /// Product `index`, the last level counting fastest.
    pub(super) fn job(&self, index: usize) -> GemmJob<'a> {
        let [_, y, z] = self.count;
        let at = [index / (y * z), index / z % y, index % z];
        let distance = |stride: &[usize; 3]| at.iter().zip(stride).map(|(i, s)| i * s).sum::<usize>();
        GemmJob {
            a: self.first.a.moved(distance(&self.a_stride)),
            b: self.first.b.moved(distance(&self.b_stride)),
            c_start: distance(&self.c_stride),
            ..self.first
        }
    }
}

/// Columns of one panel of this product.
pub(super) fn panel_columns(kernel: &Kernel, job: &GemmJob<'_>) -> usize {
    if skinny::takes(job) { skinny::COLUMNS } else { kernel.columns() }
}

/// The stretches of a sum of `k` terms: equal but for rounding, and a function of k alone. One empty stretch if k is 0.
fn stretches(k: usize) -> impl Iterator<Item = Range<usize>> {
    let count = k.div_ceil(STRETCH).max(1);
    let length = k.div_ceil(count);
    (0..count).map(move |s| (s * length).min(k)..((s + 1) * length).min(k))
}

/// A block of rows of A as f32.
struct Left<'s> {
    data: &'s [f32],
    /// The offset of the block's first row and the stretch's first column.
    start: usize,
    row: usize,
    step: usize,
}

/// A panel of B as the tile routine reads it.
struct Right<'s> {
    data: &'s [f32],
    step: usize,
    j: usize,
    columns: usize,
    width: usize,
}

/// f32 sums of a 16-bit result between stretches, for the rows and columns of one unit.
struct Sums<'s> {
    data: &'s mut [f32],
    leading: usize,
    i: usize,
    j: usize,
}

/// Where in the sum we are.
#[derive(Clone, Copy)]
struct Pass<'p, 'a> {
    kernel: &'p Kernel,
    job: &'p GemmJob<'a>,
    k: usize,
    first: bool,
    last: bool,
}

pub(super) fn run(
    kernel: &Kernel,
    job: &GemmJob<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    scratch: &mut Scratch,
) {
    if skinny::takes(job) {
        return skinny::run(kernel, job, rows, columns, scratch);
    }
    let leading = columns.len().next_multiple_of(kernel.lanes);
    let Scratch { panels: packed, left, lines, sums } = scratch;
    let mut sums = job.keeps_sums().then(|| {
        let data = sums.take(rows.len() * leading);
        Sums { data, leading, i: rows.start, j: columns.start }
    });
    for stretch in stretches(job.k) {
        let pass = Pass { kernel, job, k: stretch.len(), first: stretch.start == 0, last: stretch.end == job.k };
        let unpacked = in_place(kernel, job, &columns);
        let packed = match unpacked {
            Some(_) => &[],
            None => {
                let packed = packed.take(stretch.len() * leading);
                pack(kernel, &job.b, stretch.clone(), columns.clone(), lines, packed);
                &*packed
            }
        };
        for start in rows.clone().step_by(ROWS_AT_ONCE) {
            let block = start..(start + ROWS_AT_ONCE).min(rows.end);
            let a = left_block(job, &block, &stretch, left);
            for j in columns.clone().step_by(kernel.columns()) {
                let count = kernel.columns().min(columns.end - j);
                let width = count.next_multiple_of(kernel.lanes);
                let right = match unpacked {
                    Some(b) => {
                        let data = b.get(job.b.start + stretch.start * job.b.row_stride + j..).unwrap_or_default();
                        Right { data, step: job.b.row_stride, j, columns: count, width }
                    }
                    None => {
                        let data = &packed[(j - columns.start) * stretch.len()..][..width * stretch.len()];
                        Right { data, step: width, j, columns: count, width }
                    }
                };
                for i in block.clone().step_by(kernel.rows()) {
                    let tile_rows = i..(i + kernel.rows()).min(block.end);
                    tile(pass, &a, i - block.start, tile_rows, &right, sums.as_mut());
                }
            }
        }
    }
}

/// B's elements if tiles may read them without packing.
fn in_place<'a>(kernel: &Kernel, job: &GemmJob<'a>, columns: &Range<usize>) -> Option<&'a [f32]> {
    let whole = columns.len().is_multiple_of(kernel.lanes);
    match job.b.data {
        Source::F32(b) if job.m <= ROWS_UNPACKED && job.b.col_stride == 1 && whole => Some(b),
        _ => None,
    }
}

/// A block of rows over a stretch: in place if A is f32, else widened.
fn left_block<'s>(
    job: &GemmJob<'s>,
    block: &Range<usize>,
    stretch: &Range<usize>,
    scratch: &'s mut Region,
) -> Left<'s> {
    let Matrix { data, start, row_stride, col_stride } = job.a;
    let start = start + block.start * row_stride + stretch.start * col_stride;
    if let Source::F32(data) = data {
        return Left { data, start, row: row_stride, step: col_stride };
    }
    let (m, k) = (block.len(), stretch.len());
    let wide = scratch.take(m * k);
    if col_stride == 1 {
        for i in 0..m {
            widen(data, start + i * row_stride, &mut wide[i * k..(i + 1) * k]);
        }
        Left { data: wide, start: 0, row: k, step: 1 }
    } else {
        for p in 0..k {
            widen(data, start + p * col_stride, &mut wide[p * m..(p + 1) * m]);
        }
        Left { data: wide, start: 0, row: 1, step: m }
    }
}

/// One tile over one stretch: straight into C where possible, else through a buffer.
fn tile(
    pass: Pass<'_, '_>,
    a: &Left<'_>,
    row: usize,
    rows: Range<usize>,
    b: &Right<'_>,
    mut sums: Option<&mut Sums<'_>>,
) {
    let Pass { job, first, last, .. } = pass;
    let beta = if first { job.beta } else { 1.0 };
    let whole = b.columns == b.width && sums.is_none() && !(last && job.has_epilogue());
    if whole {
        let start = job.c_start + rows.start * job.ldc + b.j;
        if let Some(c) = job.c.f32_at(start, (rows.len() - 1) * job.ldc + b.width) {
            return multiply(pass, a, row, rows.len(), b, (c, job.ldc), beta);
        }
    }
    let mut buffer = [0.0f32; MAX_TILE];
    let buffer = &mut buffer[..rows.len() * b.width];
    if beta != 0.0 {
        for (i, line) in rows.clone().zip(buffer.chunks_exact_mut(b.width)) {
            match &sums {
                Some(sums) if !first => line.copy_from_slice(sums.line(i, b)),
                // SAFETY: the unit owns these rows and columns.
                _ => unsafe { job.c.read(job.c_start + i * job.ldc + b.j, &mut line[..b.columns]) },
            }
        }
    }
    multiply(pass, a, row, rows.len(), b, (buffer.as_mut_ptr(), b.width), beta);
    if last {
        finish(job, buffer, rows, b.j, b.columns, b.width);
        return;
    }
    for (i, line) in rows.zip(buffer.chunks_exact(b.width)) {
        match &mut sums {
            Some(sums) => sums.line_mut(i, b).copy_from_slice(line),
            // SAFETY: the unit owns these rows and columns.
            None => unsafe { job.c.write(job.c_start + i * job.ldc + b.j, &line[..b.columns]) },
        }
    }
}

impl Sums<'_> {
    fn range(&self, i: usize, b: &Right<'_>) -> Range<usize> {
        let start = (i - self.i) * self.leading + b.j - self.j;
        start..start + b.width
    }

    fn line(&self, i: usize, b: &Right<'_>) -> &[f32] {
        &self.data[self.range(i, b)]
    }

    fn line_mut(&mut self, i: usize, b: &Right<'_>) -> &mut [f32] {
        let range = self.range(i, b);
        &mut self.data[range]
    }
}

/// Calls the tile routine after checking what it will read. `c` must be valid for the rows and `b.width`.
fn multiply(
    pass: Pass<'_, '_>,
    a: &Left<'_>,
    row: usize,
    rows: usize,
    b: &Right<'_>,
    (c, c_row): (*mut f32, usize),
    beta: f32,
) {
    let start = a.start + row * a.row;
    if pass.k > 0 {
        assert!(start + (rows - 1) * a.row + (pass.k - 1) * a.step < a.data.len(), "gemm: tile of A out of range");
        assert!((pass.k - 1) * b.step + b.width <= b.data.len(), "gemm: tile of B out of range");
    }
    let routine = pass.kernel.tiles[rows - 1][b.width / pass.kernel.lanes - 1];
    let tile = Tile {
        k: pass.k,
        a: a.data.as_ptr().wrapping_add(start),
        a_row: a.row,
        a_step: a.step,
        b: b.data.as_ptr(),
        b_step: b.step,
        c,
        c_row,
        alpha: pass.job.alpha,
        beta,
    };
    // SAFETY: the kernel was chosen for this machine; A and B are inside their slices by the assertions above; C is
    // either a buffer of rows x width on the stack or, by `Shared::f32_at`, inside the result, where this unit owns the
    // tile.
    unsafe { routine(&tile) }
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
            // SAFETY: the unit owns these rows and columns.
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
        // SAFETY: the unit owns these rows and columns.
        unsafe { job.c.write(job.c_start + i * job.ldc + j, &line[..columns]) };
    }
}
