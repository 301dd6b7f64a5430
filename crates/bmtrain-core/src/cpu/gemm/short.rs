//! Products of many rows and some terms (`dW = dyᵀ·x` for some tokens), where tiles that read B in place are taller
//! than tiles of packed panels: rows of C are written from end to end, and all of B stays in the second-level cache.
//!
//! Every sum has the order of a tile over one stretch, so the bits are the same as in `wide.rs`.
#![allow(unsafe_code)]

use std::ops::Range;

use super::cut::Limits;
use super::in_place::{Part, add_part, column_runs};
use super::job::GemmJob;
use super::kernel::Kernel;
use super::left::Left;
use super::schedule::Tickets;
use super::scratch::Scratch;

/// Terms of the sum. With fewer, C is written faster by tiles one below another; with more, B is read faster from
/// panels.
const TERMS: Range<usize> = 24..65;

/// Tiles of rows that a thread takes at a time.
const TILES: usize = 8;

pub(super) fn takes(kernel: &Kernel, limits: &Limits, job: &GemmJob<'_>) -> bool {
    let b_bytes = job.k * job.n * job.b.data.element_bytes();
    kernel.row_strips(job.b.data).len() > kernel.rows()
        && TERMS.contains(&job.k)
        && job.m > TILES * kernel.rows()
        && job.b.col_stride == 1
        && b_bytes <= limits.left * size_of::<f32>()
        && job.n.is_multiple_of(kernel.lanes)
        && job.c.is_f32()
        && !job.has_epilogue()
}

/// Work of one thread; tiles of rows are given out by `next`.
pub(super) fn work(kernel: &Kernel, job: &GemmJob<'_>, next: &Tickets, workers: usize, scratch: &mut Scratch) {
    let Scratch { left, lines, .. } = scratch;
    let height = kernel.row_strips(job.b.data).len();
    let tile = height * job.k;
    let share = |_: usize, left: usize| left.div_ceil(2 * workers).min(TILES);
    while let Some(run) = next.run(0..job.m.div_ceil(height), share) {
        let rows = run.start * height..(run.end * height).min(job.m);
        let left = left.take(run.len() * tile);
        (kernel.pack_left_in_place)(&job.a, rows.clone(), 0..job.k, lines, left);
        let a = Left::packed(left, (height, height), job.k);
        let part = GemmJob { m: rows.len(), c_start: job.c_start + rows.start * job.ldc, ..*job };
        for column_run in column_runs(kernel, job, height, 0..job.n) {
            let columns = &column_run.columns;
            let len = (rows.len() - 1) * job.ldc + columns.len();
            let Some(c) = job.c.f32_at(part.c_start + columns.start, len) else {
                unreachable!("C is f32 and as large as the product, which was checked");
            };
            let all = Part { begins: true, ends: true, beta: job.beta, fetched: 0, k: 0..job.k };
            // SAFETY: C is inside the result by `f32_at`, where this task owns the rows.
            unsafe { add_part(kernel, &part, &a, all, &column_run, &mut [], (c, job.ldc)) };
        }
    }
}
