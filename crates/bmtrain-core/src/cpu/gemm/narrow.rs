//! Products of some rows: each thread packs all of A, then takes columns, whose part of B it packs for itself.
//!
//! What is packed is used at once, from the nearest caches, and no thread waits for another.

use std::ops::Range;

use super::block::{self, Pass, Sums};
use super::cut::{Limits, Stretches};
use super::job::GemmJob;
use super::kernel::Kernel;
use super::left::{self, Left};
use super::operand::Target;
use super::right;
use super::schedule::Tickets;
use super::scratch::Scratch;
use super::shared::Shared;
use crate::cpu::scratch::Region;

pub(super) fn takes(kernel: &Kernel, limits: &Limits, job: &GemmJob<'_>) -> bool {
    job.m <= limits.narrow && packs_all(kernel, limits, job)
}

/// Whether A is so small that packing all of it, on every thread, costs little beside the rest.
pub(super) fn packs_all(kernel: &Kernel, limits: &Limits, job: &GemmJob<'_>) -> bool {
    left::packed_len(kernel, job.m, job.k) <= 4 * limits.left
}

/// Work of one thread; panels of columns are given out by `next`.
pub(super) fn work(kernel: &Kernel, job: &GemmJob<'_>, next: &Tickets, workers: usize, scratch: &mut Scratch) {
    let stretches = Stretches::new(kernel, job.k);
    let width = kernel.columns();
    let share = |_: usize, left: usize| left.div_ceil(2 * workers).min(right::SIDE_BY_SIDE);
    let take = || next.run(0..job.n.div_ceil(width), share);
    let Scratch { panels, left, lines, sums, .. } = scratch;
    let Some(mut run) = take() else { return };

    let packed = pack(kernel, job, &stretches, lines, left);
    loop {
        let columns = run.start * width..(run.end * width).min(job.n);
        compute(kernel, job, &stretches, packed, columns, Buffers { panels, lines, sums });
        match take() {
            Some(more) => run = more,
            None => return,
        }
    }
}

/// Packs all of A, stretch after stretch, unless it is read in place.
pub(super) fn pack<'s>(
    kernel: &Kernel,
    job: &GemmJob<'_>,
    stretches: &Stretches,
    lines: &mut Region,
    to: &'s mut Region,
) -> &'s [f32] {
    let rows = 0..job.m;
    let at = |k: usize| left::packed_len(kernel, job.m, k);
    let packs = Left::in_place(kernel, job, &rows, &(0..job.k)).is_none();
    let to = to.take(if packs { at(job.k) } else { 0 });
    for k in (0..stretches.count).map(|index| stretches.range(index)).filter(|_| packs) {
        (kernel.pack_left)(&job.a, rows.clone(), k.clone(), lines, &mut to[at(k.start)..at(k.end)]);
    }
    to
}

/// Scratch memory of [`compute`].
pub(super) struct Buffers<'s> {
    /// Panels of B.
    pub(super) panels: &'s mut Region,
    /// Lines of B before they are packed.
    pub(super) lines: &'s mut Region,
    /// Sums of a 16-bit result from stretch to stretch.
    pub(super) sums: &'s mut Region,
}

/// Columns of all rows, whose part of B is packed here; `packed` is what [`pack`] returned.
pub(super) fn compute(
    kernel: &Kernel,
    job: &GemmJob<'_>,
    stretches: &Stretches,
    packed: &[f32],
    columns: Range<usize>,
    Buffers { panels, lines, sums }: Buffers<'_>,
) {
    let rows = 0..job.m;
    let leading = columns.len().next_multiple_of(kernel.lanes);
    let sums = (stretches.count > 1 && !job.c.is_f32()).then(|| {
        let data = Shared::new(Target::F32(sums.take(rows.len() * leading)));
        Sums { data, leading, i: 0, j: columns.start }
    });
    for index in 0..stretches.count {
        let k = stretches.range(index);
        let panels = panels.take(leading * k.len());
        right::pack(kernel, &job.b, k.clone(), columns.clone(), lines, panels);
        let panel = |j: usize, len: usize| &panels[(j - columns.start) * k.len()..][..len];
        let pass = Pass::new(kernel, job, stretches, index, sums);
        let at = |k: usize| left::packed_len(kernel, job.m, k);
        let a = Left::in_place(kernel, job, &rows, &k);
        let a =
            a.unwrap_or_else(|| Left::packed(&packed[at(k.start)..at(k.end)], (kernel.rows(), kernel.rows()), k.len()));
        block::run(&pass, &a, (rows.clone(), columns.clone()), panel);
    }
}
