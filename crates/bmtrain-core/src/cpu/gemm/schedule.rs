//! Who computes what: splits products into units of work and hands them to threads.
//!
//! A unit is a range of rows by a range of panels of columns. Threads take units as they get free (large ones first),
//! so a slow neighbour costs little; the split has no influence on the result because each element is summed by one
//! thread in an order given by the shape.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Threads;
use super::block::{self, Batch, GemmJob};
use super::kernel::Kernel;
use super::scratch::{self, Scratch};
use super::skinny;

/// Below this many operations, waking a second thread costs more than it saves (about 20 us of work).
const WORTH_SPLITTING: f64 = 2.0e6;

/// The same in bytes of W where few rows meet it once: what counts then is how fast memory is read, which two threads
/// do faster.
const BYTES_WORTH_SPLITTING: usize = 512 << 10;

/// Columns of B packed at once. The packed panels (2.25 MiB) live in the third-level cache, one at a time in the
/// second; the fewer times A is read again, the better, above all a transposed A.
const COLUMNS_AT_ONCE: usize = 768;

/// Rows and columns of a unit when sums of a 16-bit result are kept in scratch (1 MiB).
const ROWS_OF_SUMS: usize = 1024;
const COLUMNS_OF_SUMS: usize = 256;

pub(super) fn run_one(threads: Threads<'_>, kernel: &Kernel, job: &GemmJob<'_>) {
    if job.m == 0 || job.n == 0 {
        return;
    }
    let workers = if is_worth_splitting(job) { threads.count() } else { 1 };
    let units = Units::new(kernel, job, workers);
    let work = |scratch: &mut Scratch| {
        while let Some((rows, columns)) = units.next() {
            block::run(kernel, job, rows, columns, scratch);
        }
    };
    match threads {
        // The calling thread begins at once and only the others are woken: of a product that takes as long as waking a
        // thread does, that is half of the time. Others leave the work to the pool, whose threads have packed panels
        // before.
        Threads::Pool(pool) if workers > 1 && skinny::takes(job) => pool.in_place_scope(|scope| {
            for _ in 1..workers {
                scope.spawn(|_| scratch::with(work));
            }
            scratch::with(work);
        }),
        _ => on_workers(threads, workers, work),
    }
}

fn is_worth_splitting(job: &GemmJob<'_>) -> bool {
    let reads_much = || skinny::takes(job) && job.n * job.k * job.b.data.element_bytes() >= BYTES_WORTH_SPLITTING;
    job.operations() >= WORTH_SPLITTING || reads_much()
}

pub(super) fn run_batch(threads: Threads<'_>, kernel: &Kernel, batch: &Batch<'_>) {
    let count = batch.count();
    if count < threads.count() {
        for index in 0..count {
            run_one(threads, kernel, &batch.job(index));
        }
        return;
    }
    let total = batch.first.operations() * count as f64;
    let workers = if total < WORTH_SPLITTING { 1 } else { threads.count() };
    let next = AtomicUsize::new(0);
    on_workers(threads, workers, |scratch| {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return;
            }
            let job = batch.job(index);
            let units = Units::new(kernel, &job, 1);
            while let Some((rows, columns)) = units.next() {
                block::run(kernel, &job, rows, columns, scratch);
            }
        }
    });
}

/// Runs `work` on `workers` threads at once, each with its own scratch.
fn on_workers(threads: Threads<'_>, workers: usize, work: impl Fn(&mut Scratch) + Sync) {
    match threads {
        Threads::Pool(pool) if workers > 1 => pool.scope(|scope| {
            for _ in 1..workers {
                scope.spawn(|_| scratch::with(&work));
            }
            scratch::with(&work);
        }),
        _ => scratch::with(work),
    }
}

/// The units of one product, taken one by one by any thread.
struct Units {
    m: usize,
    n: usize,
    panel: usize,
    panels: usize,
    row_blocks: usize,
    /// Rows of a tile: units start on tiles, so that only the last has short ones.
    rows: usize,
    /// A unit takes this part of the panels that are left, within the two bounds that follow.
    part: usize,
    narrowest: usize,
    widest: usize,
    /// Panels handed out so far, counted through all row blocks.
    taken: AtomicUsize,
}

impl Units {
    fn new(kernel: &Kernel, job: &GemmJob<'_>, workers: usize) -> Self {
        let (m, n, rows) = (job.m, job.n, kernel.rows());
        let panel = block::panel_columns(kernel, job);
        let panels = n.div_ceil(panel);
        let columns = if job.keeps_sums() { COLUMNS_OF_SUMS } else { COLUMNS_AT_ONCE };
        let widest = (columns / panel).max(1);
        let mut row_blocks = if job.keeps_sums() { m.div_ceil(ROWS_OF_SUMS) } else { 1 };
        // Large units first for cache reuse, small ones last for balance.
        let (mut part, mut narrowest) = (2 * workers, 1);
        let shortest = 4 * rows;
        if workers == 1 {
            part = 1;
        } else if job.a.col_stride != 1 && m > n && m / workers >= shortest {
            // Every unit reads its rows of A once, and a transposed A costs most when few columns use what is read: so
            // whole rows go to each thread, although each then packs all of B.
            (row_blocks, part) = (row_blocks.max(workers), 1);
        } else if job.a.col_stride != 1 && panels > widest && panels >= workers {
            // For the same reason, wide units of equal size.
            narrowest = panels.div_ceil(panels.div_ceil(widest).next_multiple_of(workers));
        } else {
            // Rows are split only when the panels alone cannot be shared out evenly: every row block packs B again.
            let even = |blocks: usize| panels * blocks >= 3 * workers || (panels * blocks).is_multiple_of(workers);
            while !even(row_blocks) && m / (row_blocks + 1) >= shortest {
                row_blocks += 1;
            }
        }
        Units { m, n, panel, panels, row_blocks, rows, part, narrowest, widest, taken: AtomicUsize::new(0) }
    }

    fn next(&self) -> Option<(Range<usize>, Range<usize>)> {
        let total = self.panels * self.row_blocks;
        let mut start = self.taken.load(Ordering::Relaxed);
        let run = loop {
            if start >= total {
                return None;
            }
            let share = (total - start).div_ceil(self.part).clamp(self.narrowest, self.widest);
            let run = share.min(self.panels - start % self.panels);
            match self.taken.compare_exchange_weak(start, start + run, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break run,
                Err(now) => start = now,
            }
        };
        let (block, first) = (start / self.panels, start % self.panels);
        let edge = |block: usize| (self.m * block / self.row_blocks).next_multiple_of(self.rows).min(self.m);
        Some((edge(block)..edge(block + 1), first * self.panel..((first + run) * self.panel).min(self.n)))
    }
}
