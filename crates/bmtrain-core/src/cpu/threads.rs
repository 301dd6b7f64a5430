//! The threads of one rank, and the one way in which work is divided among them.
//!
//! Work is cut into pieces by its size alone; threads take pieces as they come. Since no sum crosses a piece in an order
//! that depends on who computed it, results have the same bits for any number of threads.

use crate::error::{Error, Result};
use rayon::prelude::*;

/// A pool of threads of its own for each rank.
#[derive(Debug)]
pub struct Threads {
    pool: rayon::ThreadPool,
    count: usize,
}

impl Threads {
    /// A pool of `count` threads.
    ///
    /// # Errors
    /// No thread asked for, or the system refuses.
    pub fn new(count: usize) -> Result<Self> {
        if count == 0 {
            return Err(Error::argument("threads", "at least one thread is needed"));
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|index| format!("bmtrain-cpu-{index}"))
            .build()
            .map_err(|error| Error::Device { backend: "cpu".into(), call: "thread pool", reason: error.to_string() })?;
        Ok(Threads { pool, count })
    }

    /// Number of threads.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The pool, for kernels with a division of their own.
    pub fn pool(&self) -> &rayon::ThreadPool {
        &self.pool
    }

    /// Run `work(piece)` for every piece, on the calling thread when it is alone or the only piece.
    pub fn for_each(&self, pieces: usize, work: impl Fn(usize) + Send + Sync) {
        if self.count == 1 || pieces <= 1 {
            (0..pieces).for_each(work);
        } else {
            self.pool.install(|| (0..pieces).into_par_iter().with_max_len(1).for_each(work));
        }
    }

    /// Cut `out` into pieces of `length` elements and run `work(piece index, piece)` for each.
    pub fn for_each_piece<T: Send>(&self, out: &mut [T], length: usize, work: impl Fn(usize, &mut [T]) + Send + Sync) {
        let length = length.max(1);
        if self.count == 1 || out.len() <= length {
            out.chunks_mut(length).enumerate().for_each(|(index, piece)| work(index, piece));
        } else {
            self.pool.install(|| {
                out.par_chunks_mut(length).with_max_len(1).enumerate().for_each(|(index, piece)| work(index, piece));
            });
        }
    }
}
