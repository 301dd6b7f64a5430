//! Schedule of a product: the way it is computed, and the threads it is given to.
//!
//! The split has no influence on the result because each element is summed in an order given by the shape.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cut::Limits;
use super::job::{Batch, GemmJob};
use super::kernel::Kernel;
use super::outer::Outer;
use super::scratch::{self, Scratch};
use super::tiled::{self, Tiled};
use super::transposed::{self, Transposed};
use super::wide::{Own, Wide};
use super::{Threads, in_place, narrow, short, skinny};
use crate::cpu::tiles::Unit;
use crate::simd::InstructionSet;

/// Below this many operations, waking a second thread costs more than it saves (about 20 us of work).
const WORTH_SPLITTING: f64 = 2.0e6;

/// Threshold in bytes of W where few rows meet it once: what counts then is how fast memory is read, which two threads
/// do faster.
const BYTES_WORTH_SPLITTING: usize = 512 << 10;

pub(super) fn run_one(threads: Threads<'_>, limits: &Limits, job: &GemmJob<'_>) {
    let set = threads.instruction_set();
    let threads = if is_worth_splitting(job) { threads } else { Threads::Calling };
    // The calling thread may work too, with loops that ask for its set.
    set.within(|| scratch::with(|scratch| compute(threads, Routines::of(set), limits, job, scratch)));
}

fn is_worth_splitting(job: &GemmJob<'_>) -> bool {
    let reads_much = || skinny::takes(job) && job.n * job.k * job.b.data.element_bytes() >= BYTES_WORTH_SPLITTING;
    job.operations() >= WORTH_SPLITTING || reads_much()
}

pub(super) fn run_batch(threads: Threads<'_>, limits: &Limits, batch: &Batch<'_>) {
    let set = threads.instruction_set();
    let routines = Routines::of(set);
    let count = batch.count();
    if count < threads.count() {
        for index in 0..count {
            run_one(threads, limits, &batch.job(index));
        }
        return;
    }
    let total = batch.first.operations() * count as f64;
    let workers = if total < WORTH_SPLITTING { 1 } else { threads.count() };
    let next = Tickets::default();
    let work = |scratch: &mut Scratch| {
        while let Some(index) = next.one(0..count) {
            compute(Threads::Calling, routines, limits, &batch.job(index), scratch);
        }
    };
    set.within(|| on_workers(threads, workers, || scratch::with(work), || scratch::with(work)));
}

/// Runs `mine` on the calling thread and `others` on the rest of `workers` threads.
fn on_workers(threads: Threads<'_>, workers: usize, others: impl Fn() + Sync, mine: impl FnOnce()) {
    match threads {
        Threads::Pool(threads) => threads.share(workers, others, mine),
        Threads::Calling => mine(),
    }
}

/// The innermost routines of an instruction set.
#[derive(Clone, Copy)]
struct Routines {
    kernel: &'static Kernel,
    tiles: Option<Unit>,
}

impl Routines {
    fn of(set: InstructionSet) -> Self {
        Routines { kernel: Kernel::of(set), tiles: Unit::of(set) }
    }
}

/// One product on all of `threads`.
fn compute(threads: Threads<'_>, routines: Routines, limits: &Limits, job: &GemmJob<'_>, scratch: &mut Scratch) {
    if job.m == 0 || job.n == 0 {
        return;
    }
    let Routines { kernel, tiles } = routines;
    if let Some(unit) = tiles
        && tiled::takes(job)
        && in_tiles(threads, unit, limits, job, scratch)
    {
        return;
    }
    let (workers, next) = (threads.count(), Tickets::default());
    if skinny::takes(job) {
        let work = |scratch: &mut Scratch| {
            while let Some(run) = next.run(0..job.n.div_ceil(skinny::COLUMNS), |_, left| left.div_ceil(2 * workers)) {
                let columns = run.start * skinny::COLUMNS..(run.end * skinny::COLUMNS).min(job.n);
                skinny::run(kernel, job, columns, scratch);
            }
        };
        on_workers(threads, workers, || scratch::with(work), || work(scratch));
    } else if let Some(outer) = Outer::of(job) {
        let work = || {
            while let Some(rows) = next.run(0..job.m, |_, left| left.div_ceil(2 * workers)) {
                outer.rows(job, rows);
            }
        };
        on_workers(threads, workers, work, work);
    } else if short::takes(kernel, limits, job) {
        let work = |scratch: &mut Scratch| short::work(kernel, job, &next, workers, scratch);
        on_workers(threads, workers, || scratch::with(work), || work(scratch));
    } else if in_place::takes(kernel, limits, job) {
        let work = |scratch: &mut Scratch| in_place::work(kernel, limits, job, &next, workers, scratch);
        on_workers(threads, workers, || scratch::with(work), || work(scratch));
    } else if narrow::takes(kernel, limits, job) {
        let work = |scratch: &mut Scratch| narrow::work(kernel, job, &next, workers, scratch);
        on_workers(threads, workers, || scratch::with(work), || work(scratch));
    } else {
        // Panels and sums that threads share are in the scratch of the calling one.
        let Scratch { panels, phase_sums, left, lines, sums } = scratch;
        let product = Wide::new(kernel, limits, job, workers, (panels, phase_sums));
        let of_thread = |Scratch { left, lines, sums, .. }: &mut Scratch| product.work(Own { left, lines, sums });
        on_workers(threads, workers, || scratch::with(of_thread), || product.work(Own { left, lines, sums }));
    }
}

/// Computes a product in tiles if they can.
fn in_tiles(threads: Threads<'_>, unit: Unit, limits: &Limits, job: &GemmJob<'_>, scratch: &mut Scratch) -> bool {
    let Scratch { panels, phase_sums, left, sums, .. } = scratch;
    let workers = threads.count();
    if transposed::takes(job) {
        let Some(product) = Transposed::new(unit, job, workers, panels) else { return false };
        on_workers(
            threads,
            workers,
            || scratch::with(|scratch| product.work_with(scratch)),
            || product.work(left, sums),
        );
        return true;
    }
    let Some(product) = Tiled::new(unit, limits, job, workers, (panels, phase_sums)) else { return false };
    let own = tiled::Own { left, sums };
    on_workers(threads, workers, || scratch::with(|scratch| product.work(scratch)), || product.work_in(own));
    true
}

/// Numbers that threads take in ascending order.
#[derive(Debug, Default)]
pub(in crate::cpu) struct Tickets(AtomicUsize);

impl Tickets {
    /// The next number of a range, unless all are taken.
    pub(super) fn one(&self, of: Range<usize>) -> Option<usize> {
        self.run(of, |_, _| 1).map(|run| run.start)
    }

    /// The next `share(first, left)` numbers.
    pub(in crate::cpu) fn run(&self, of: Range<usize>, share: impl Fn(usize, usize) -> usize) -> Option<Range<usize>> {
        let mut first = self.0.load(Ordering::Relaxed);
        while first < of.end {
            let run = first..first + share(first, of.end - first);
            match self.0.compare_exchange_weak(first, run.end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(run),
                Err(now) => first = now,
            }
        }
        None
    }
}
