//! The threads of one rank, and the ways in which work is divided among them.
//!
//! Work is cut into pieces by its size alone; threads take pieces as they come. Since no sum crosses a piece in an
//! order that depends on who computed it, results have the same bits for any number of threads.
//!
//! Called by the CPU backend, which publishes what is here, and by work of the host beside other devices. `options` is
//! what threads are made with, `processors` which processors there are, `placement` where threads run on them,
//! `thread_pool` the helpers of a calling thread.

mod options;
mod placement;
mod processors;
mod thread_pool;

pub use options::CpuOptions;
pub use placement::{Pinning, Placement};
pub use processors::{Core, Processors};

use crate::error::{Error, Result};
use crate::limits::Resource;
use crate::simd::InstructionSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use thread_pool::ThreadPool;

/// The calling thread and a pool of helpers, of its own for each rank.
#[derive(Debug)]
pub struct Threads {
    pool: ThreadPool,
    count: usize,
    instruction_set: InstructionSet,
    bf16_products: bool,
    /// Partial sums of kernels that reduce over rows, kept from call to call.
    partials: Mutex<Vec<f32>>,
    partial_bytes: AtomicUsize,
}

/// Something that is written in rows and can be cut between two of them.
pub(crate) trait Divide: Send + Sized {
    /// The first `rows` rows, and the others.
    fn divide(self, rows: usize) -> (Self, Self);
}

impl<T: Send> Divide for &mut [T] {
    fn divide(self, rows: usize) -> (Self, Self) {
        self.split_at_mut(rows)
    }
}

impl<D: Divide> Divide for Option<D> {
    fn divide(self, rows: usize) -> (Self, Self) {
        match self.map(|some| some.divide(rows)) {
            Some((head, tail)) => (Some(head), Some(tail)),
            None => (None, None),
        }
    }
}

macro_rules! divide_tuples {
    ($($name:ident),*) => {
        impl<$($name: Divide),*> Divide for ($($name,)*) {
            #[allow(non_snake_case)]
            fn divide(self, rows: usize) -> (Self, Self) {
                let ($($name,)*) = self;
                $(let $name = $name.divide(rows);)*
                (($($name.0,)*), ($($name.1,)*))
            }
        }
    };
}
divide_tuples!(A, B);
divide_tuples!(A, B, C);
divide_tuples!(A, B, C, D);

impl Threads {
    /// `count` threads with the fastest instruction set of the processor.
    ///
    /// # Errors
    /// As for [`Threads::with`].
    pub fn new(count: usize) -> Result<Self> {
        Self::with(CpuOptions::new(count))
    }

    /// Threads with these settings. The calling thread counts as one of them, so one fewer is started.
    ///
    /// # Errors
    /// [`Error::Argument`] for no threads, for an instruction set that the processor does not have and for a placement
    /// of a rank that does not exist;
    /// [`Error::Refused`] if the system gives no threads.
    pub fn with(options: CpuOptions) -> Result<Self> {
        options.check()?;
        let CpuOptions { threads: count, instruction_set, placement, bf16_products } = options;
        let start = move |number| {
            placement.pin_thread(number);
            instruction_set.of_thread();
        };
        let pool = ThreadPool::new(count - 1, start)
            .map_err(|error| Error::refused(format!("{count} threads"), Resource::Threads, error))?;
        let (partials, partial_bytes) = (Mutex::default(), AtomicUsize::new(0));
        Ok(Threads { pool, count, instruction_set, bf16_products, partials, partial_bytes })
    }

    /// Number of threads.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The instruction set of the threads.
    pub fn instruction_set(&self) -> InstructionSet {
        self.instruction_set
    }

    /// As [`CpuOptions::bf16_products`].
    pub fn bf16_products(&self) -> bool {
        self.bf16_products
    }

    /// Run `mine` on the calling thread and `help` on up to `workers - 1` others meanwhile. All of them take pieces as
    /// they come, so that no helper is needed: none comes while the threads help another caller.
    pub(crate) fn share<R>(&self, workers: usize, help: impl Fn() + Sync, mine: impl FnOnce() -> R) -> R {
        self.pool.run(workers.saturating_sub(1), &help, || self.instruction_set.within(mine))
    }

    /// Run `work` on the calling thread and up to `workers - 1` others.
    pub(crate) fn run(&self, workers: usize, work: impl Fn() + Sync) {
        self.share(workers, &work, &work);
    }

    /// Bytes kept for partial sums.
    pub fn partial_bytes(&self) -> usize {
        self.partial_bytes.load(Ordering::Relaxed)
    }

    /// Run `work(piece)` for every piece.
    pub fn for_each(&self, pieces: usize, work: impl Fn(usize) + Send + Sync) {
        let next = AtomicUsize::new(0);
        self.run(pieces.min(self.count), || {
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece >= pieces {
                    return;
                }
                work(piece);
            }
        });
    }

    /// Cut `out` into pieces of `length` elements and run `work(piece index, piece)` for each.
    pub fn for_each_piece<T: Send>(&self, out: &mut [T], length: usize, work: impl Fn(usize, &mut [T]) + Send + Sync) {
        let (rows, length) = (out.len(), length.max(1));
        self.for_each_part(out, rows, length, |first, _, piece| work(first / length, piece));
    }

    /// Cut `rows` rows of what is written into parts of `at_once` rows and run `work(first row, rows, part)` for each.
    pub(crate) fn for_each_part<D: Divide>(
        &self,
        written: D,
        rows: usize,
        at_once: usize,
        work: impl Fn(usize, usize, D) + Send + Sync,
    ) {
        let at_once = at_once.max(1);
        let rest = Mutex::new((0, Some(written)));
        let take = || {
            let mut rest = rest.lock().unwrap_or_else(PoisonError::into_inner);
            let (first, written) = &mut *rest;
            let (start, count) = (*first, at_once.min(rows - *first));
            *first += count;
            let (part, others) = written.take().filter(|_| count > 0)?.divide(count);
            *written = Some(others);
            Some((start, count, part))
        };
        self.run(rows.div_ceil(at_once).min(self.count), || {
            while let Some((first, count, part)) = take() {
                work(first, count, part);
            }
        });
    }

    /// Lend room for `len` f32 of arbitrary content: partial sums, or an order of rows.
    pub(crate) fn with_partials<R>(&self, len: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
        let Ok(mut kept) = self.partials.try_lock() else {
            return work(&mut vec![0.0; len]);
        };
        if kept.len() < len {
            *kept = Vec::new();
            *kept = vec![0.0; len];
            self.partial_bytes.store(len * size_of::<f32>(), Ordering::Relaxed);
        }
        work(&mut kept[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_handed_out_once_in_parts_cut_at_the_same_places() {
        for threads in [1, 2, 5].map(|count| Threads::new(count).unwrap()) {
            for (rows, at_once) in [(0, 3), (1, 1), (7, 3), (100, 1), (100, 33), (9, 100)] {
                let (mut marks, mut firsts) = (vec![0u32; rows], vec![usize::MAX; rows]);
                threads.for_each_part(
                    (&mut marks[..], Some(&mut firsts[..])),
                    rows,
                    at_once,
                    |first, count, (marks, firsts)| {
                        assert!(first % at_once == 0 && count == marks.len() && count <= at_once);
                        marks.iter_mut().for_each(|mark| *mark += 1);
                        firsts.unwrap().fill(first);
                    },
                );
                assert!(marks.iter().all(|mark| *mark == 1));
                assert!(firsts.iter().enumerate().all(|(row, first)| *first == row / at_once * at_once));
            }
        }
    }

    #[test]
    fn room_for_partial_sums_is_kept_and_never_shrinks() {
        let threads = Threads::new(1).unwrap();
        threads.with_partials(100, |room| assert_eq!(room.len(), 100));
        threads.with_partials(10, |room| {
            assert_eq!(room.len(), 10);
            // A call inside a call gets room of its own.
            threads.with_partials(20, |inner| assert_eq!(inner.len(), 20));
        });
        assert_eq!(threads.partial_bytes(), 400);
    }

    #[test]
    fn each_thread_of_a_pinned_pool_has_a_core_of_its_own() {
        let found = Processors::of_this_process();
        let placement = Placement { pinning: Pinning::Cores, ..Placement::ANYWHERE };
        let options = CpuOptions { placement, ..CpuOptions::new(found.cores.len()) };
        let (threads, masks) = (Threads::with(options).unwrap(), Mutex::new(Vec::new()));
        threads.share(options.threads, || masks.lock().unwrap().push(processors::mask()), || ());
        if found.has_mask {
            // The calling thread has what it is pinned to from elsewhere, on the first core or all of the rank's.
            let cores: Vec<_> = found.cores[1..].iter().map(|core| Some(core.processors.clone())).collect();
            let mut masks = masks.into_inner().unwrap();
            masks.sort();
            assert_eq!(masks, cores);
        }
        let nowhere = Placement { index: 1, ..placement };
        assert!(Threads::with(CpuOptions { placement: nowhere, ..options }).is_err());
    }
}
