//! Products of bf16, or of f32 that may be rounded to it, in tiles ([`crate::cpu::tiles`]): as in `wide.rs`, threads
//! pack panels of B together and take tasks as they get free.
//!
//! A task packs its rows of A over a whole phase into the second-level cache. Panel after panel of B, a stretch at a
//! time, then stays in the first-level cache while these rows stream past it. The sums of some panels side by side are
//! kept in f32 until they are complete and are finished row by row.
//!
//! Every sum is one chain over k, whatever the stretches, phases and tasks: bits follow from k alone.
#![allow(unsafe_code)]

use std::ops::Range;

use half::bf16;

use super::block;
use super::cut::{Cut, Grain, Limits, Phase, Stretches};
use super::job::GemmJob;
use super::kernel::MAX_TILE;
use super::operand::{Matrix, Source, Target};
use super::scratch::Scratch;
use super::shared::Shared;
use super::walk::Walk;
use crate::cpu::scratch::Region;
use crate::cpu::tiles::{BLOCK, FETCHED, Multiply, STEP, Sums, Unit, pack};
use crate::simd::vectorised;

/// Terms of a stretch: 32 columns of B over them are three quarters of a first-level cache of 48 KiB.
const STRETCH: usize = 576;

/// Columns that a task finishes together. Rows of C tend to be on pages of their own: written in runs, they are fetched
/// sooner.
pub(super) const GROUP: usize = 128;

/// Sums between two rows of a group, so that rows are not all on the same few sets of the first-level cache.
const GAP: usize = 16;

/// Rows of the smallest task.
const ROWS_OF_STEP: usize = 2 * BLOCK;

/// Fewest rows of a product that is computed so: fewer are faster without packing B, dot products by a little less.
const LEAST_ROWS: usize = 16;
const LEAST_ROWS_OF_DOTS: usize = 12;

/// Fewest columns and terms.
pub(in crate::cpu) const LEAST_COLUMNS: usize = 4;
const LEAST_TERMS: usize = 8;

pub(super) fn takes(job: &GemmJob<'_>) -> bool {
    let is_bf16 = |matrix: &Matrix<'_>| match matrix.data {
        Source::Bf16(_) => true,
        Source::F32(_) => matrix.in_bf16,
        Source::F16(_) => false,
    };
    let rows = if job.b.row_stride == 1 { LEAST_ROWS_OF_DOTS } else { LEAST_ROWS };
    is_bf16(&job.a) && is_bf16(&job.b) && job.m >= rows && job.n >= LEAST_COLUMNS && job.k >= LEAST_TERMS
}

/// Scratch memory of one thread.
pub(super) struct Own<'s> {
    pub(super) left: &'s mut Region,
    pub(super) sums: &'s mut Region,
}

/// A product that some threads compute together.
pub(super) struct Tiled<'p, 'a> {
    unit: Unit,
    job: &'p GemmJob<'a>,
    a: pack::Source<'a>,
    b: pack::Source<'a>,
    walk: Walk,
    /// Panels of this phase and the next, two numbers in an element.
    panels: Shared<'p>,
    /// Sums from phase to phase, block after block.
    sums: Option<Shared<'p>>,
}

impl<'p, 'a> Tiled<'p, 'a> {
    /// A product for `workers` threads, whose panels and sums are in `panels` and `sums`; none of an empty sum, and
    /// none with an operand that is not bf16.
    pub(super) fn new(
        unit: Unit,
        limits: &Limits,
        job: &'p GemmJob<'a>,
        workers: usize,
        (panels, sums): (&'p mut Region, &'p mut Region),
    ) -> Option<Self> {
        if job.k == 0 {
            return None;
        }
        // Columns of B are lines, as rows of A are.
        let a = source(&job.a, job.a.row_stride, job.a.col_stride)?;
        let b = source(&job.b, job.b.col_stride, job.b.row_stride)?;
        let k = job.k.next_multiple_of(STEP);
        let count = k.div_ceil(STRETCH);
        let length = k.div_ceil(count).next_multiple_of(STEP);
        let stretches = Stretches { k, length, count: k.div_ceil(length) };
        let grain = Grain { lanes: BLOCK, panel: GROUP, step: ROWS_OF_STEP, stretches, is_deep: true };
        let cut = Cut::along(grain, &limits.of_tiles(), job);
        let panels = Shared::new(Target::F32(panels.take(cut.panels_len() / 2)));
        let sums =
            cut.is_deep().then(|| Shared::new(Target::F32(sums.take(cut.padded_sums_len() / GROUP * (GROUP + GAP)))));
        Some(Tiled { unit, job, a, b, walk: Walk::new(cut, workers, 1), panels, sums })
    }

    /// Work of one thread.
    pub(super) fn work(&self, Scratch { left, sums, .. }: &mut Scratch) {
        self.work_in(Own { left, sums });
    }

    /// As [`Tiled::work`], on the thread that lends panels and sums.
    pub(super) fn work_in(&self, mut own: Own<'_>) {
        let pack = |phase: &Phase, half, index, _: &mut Own<'_>| self.pack(phase, half, index);
        self.walk.run(&mut own, pack, |phase, half, part, own| self.task(phase, half, part, own));
    }

    fn pack(&self, phase: &Phase, half: usize, index: usize) {
        let (stretch, columns) = self.walk.cut.run(phase, 1, index);
        let k = self.walk.cut.stretches.range(stretch);
        let start = self.panel_at(phase, half, stretch, columns.start);
        let len = k.len() * columns.len().next_multiple_of(BLOCK) / 2;
        // SAFETY: a ticket is given to one thread; panels of different tickets do not overlap, and no thread reads them
        // before all are packed.
        let to = unsafe { self.panels.part(start, len) };
        pack::right(self.b, columns, k.start..k.end.min(self.job.k), bytemuck::cast_slice_mut(to));
    }

    /// Place of the panel of column `j`.
    fn panel_at(&self, phase: &Phase, half: usize, stretch: usize, j: usize) -> usize {
        (half * self.walk.cut.panel_len() + self.walk.cut.panel_at(phase, stretch, j)) / 2
    }

    fn panel(&self, phase: &Phase, half: usize, stretch: usize, j: usize) -> &[bf16] {
        let (start, k) = (self.panel_at(phase, half, stretch, j), self.walk.cut.stretches.range(stretch));
        // SAFETY: the panels of the phase are packed, and are written again only when its tasks are done.
        bytemuck::cast_slice(unsafe { self.panels.part(start, k.len() * BLOCK / 2) })
    }

    fn task(&self, phase: &Phase, half: usize, (rows, columns): (Range<usize>, Range<usize>), own: &mut Own<'_>) {
        let Stretches { count, .. } = self.walk.cut.stretches;
        let range = |stretch: usize| self.walk.cut.stretches.range(stretch);
        let terms = range(phase.stretches.start).start..range(phase.stretches.end - 1).end;
        let left = own.left.take(rows.len().div_ceil(BLOCK) * terms.len() * BLOCK / 2);
        let left: &mut [bf16] = bytemuck::cast_slice_mut(left);
        pack::left(self.a, rows.clone(), terms.start..terms.end.min(self.job.k), left);
        for first in columns.clone().step_by(GROUP) {
            let group = first..columns.end.min(first + GROUP);
            let sums = match &self.sums {
                // SAFETY: the task owns these rows and columns.
                Some(sums) => unsafe { sums.part(self.sums_at(phase, &rows, &group), sums_len(&rows, &group)) },
                None => own.sums.take(sums_len(&rows, &group)),
            };
            self.multiply(phase, half, (&rows, &group), (left, &terms), sums);
            if phase.stretches.end == count {
                finish(self.unit, self.job, sums, rows.clone(), group);
            }
        }
    }

    /// Adds the products over a phase to the sums of some rows and a group of columns.
    fn multiply(
        &self,
        phase: &Phase,
        half: usize,
        (rows, group): (&Range<usize>, &Range<usize>),
        (left, terms): (&[bf16], &Range<usize>),
        sums: &mut [f32],
    ) {
        let row = row_len(group);
        let tiles = self.unit.begin();
        for (j, stretch) in group.clone().step_by(BLOCK).flat_map(|j| phase.stretches.clone().map(move |s| (j, s))) {
            let (k, b) = (self.walk.cut.stretches.range(stretch), self.panel(phase, half, stretch, j));
            let next = match (stretch + 1 < phase.stretches.end, j + BLOCK < phase.columns.end) {
                (true, _) => self.panel(phase, half, stretch + 1, j),
                (false, true) => self.panel(phase, half, phase.stretches.start, j + BLOCK),
                (false, false) => b,
            };
            let fetched = k.len() * FETCHED;
            let panels_of_a = left.chunks_exact(terms.len() * BLOCK).zip(sums.chunks_exact_mut(BLOCK * row));
            for (index, (a, sums)) in panels_of_a.enumerate() {
                let to = Sums { first: sums[j - group.start..].as_mut_ptr(), row };
                let block = Multiply {
                    a: &a[(k.start - terms.start) * BLOCK..][..k.len() * BLOCK],
                    b,
                    rows: BLOCK.min(rows.len() - index * BLOCK),
                    columns: BLOCK.min(group.end - j),
                    from: (stretch > 0).then_some(to),
                    to,
                    next: next.get(index * fetched..).unwrap_or(b),
                };
                // SAFETY: there are the sums of 32 rows, whose width is a multiple of 32, and the task owns them.
                unsafe { tiles.multiply(block) };
            }
        }
    }

    /// Place of a task's rows and a group of columns among the sums of a phase.
    fn sums_at(&self, phase: &Phase, rows: &Range<usize>, group: &Range<usize>) -> usize {
        // Groups one after the other, each with all rows of the phase.
        let height = phase.rows.len().next_multiple_of(ROWS_OF_STEP);
        let before = (group.start - phase.columns.start) / GROUP * (GROUP + GAP) * height;
        before + (rows.start - phase.rows.start) * row_len(group)
    }
}

/// Sums of a row of a group.
pub(super) fn row_len(group: &Range<usize>) -> usize {
    group.len().next_multiple_of(BLOCK) + GAP
}

/// Sums of whole blocks of rows by a group of columns.
pub(super) fn sums_len(rows: &Range<usize>, group: &Range<usize>) -> usize {
    rows.len().next_multiple_of(BLOCK) * row_len(group)
}

/// An operand whose lines are `line` apart and whose terms `term`.
pub(super) fn source<'a>(matrix: &Matrix<'a>, line: usize, term: usize) -> Option<pack::Source<'a>> {
    let data = match matrix.data {
        Source::Bf16(data) => pack::Numbers::Bf16(&data[matrix.start..]),
        Source::F32(data) => pack::Numbers::F32(&data[matrix.start..]),
        Source::F16(_) => return None,
    };
    let across = term != 1;
    Some(pack::Source { data, stride: if across { term } else { line }, across })
}

/// The factors and the epilogue of complete sums, and their way into C.
pub(super) fn finish(unit: Unit, job: &GemmJob<'_>, sums: &mut [f32], rows: Range<usize>, group: Range<usize>) {
    let (j, columns, row) = (group.start, group.len(), row_len(&group));
    let at = |i: usize| job.c_start + i * job.ldc + j;
    let sums = &mut sums[..rows.len() * row];
    if job.alpha == 1.0 && job.beta == 0.0 && !job.has_epilogue() && columns.is_multiple_of(BLOCK) {
        // SAFETY: the rows are inside C, and the task owns them.
        let rounds = |to| unsafe { unit.round((sums, row), columns, (to, job.ldc)) };
        if job.c.bf16_at(at(rows.start), (rows.len() - 1) * job.ldc + columns).is_some_and(rounds) {
            return;
        }
    }
    let most = MAX_TILE / row;
    for (i, sums) in rows.step_by(most).zip(sums.chunks_mut(most * row)) {
        let rows = i..i + sums.len() / row;
        for ahead in rows.clone() {
            job.c.fetch_to_write(at(ahead + 2 * most), columns);
        }
        if job.beta != 0.0 {
            let mut old = [0.0; GROUP];
            for (i, sums) in rows.clone().zip(sums.chunks_exact_mut(row)) {
                // SAFETY: the task owns these rows and columns.
                unsafe { job.c.read(at(i), &mut old[..columns]) };
                add_scaled(&old[..columns], job.alpha, job.beta, sums);
            }
        } else if job.alpha != 1.0 {
            scale(job.alpha, sums);
        }
        block::finish(job, sums, rows, j, columns, row);
    }
}

vectorised! {
    fn scale<I>(alpha: f32, sums: &mut [f32]) {
        for sum in sums {
            *sum *= alpha;
        }
    }

    /// `sums = alpha * sums + beta * old`.
    fn add_scaled<I>(old: &[f32], alpha: f32, beta: f32, sums: &mut [f32]) {
        for (sum, old) in sums.iter_mut().zip(old) {
            *sum = I::mul_add(beta, *old, alpha * *sum);
        }
    }
}
