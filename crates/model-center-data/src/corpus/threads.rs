//! Work on numbered pieces, shared among threads.
//!
//! Defines [`in_parallel`]. The results are in the order of the pieces, whatever the number of threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The results of `work` for the pieces 0 to `pieces`. Where the system refuses a thread, the others do its work.
pub fn in_parallel<T: Send>(threads: usize, pieces: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let share = || {
        let mut done = Vec::new();
        loop {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            if piece >= pieces {
                return done;
            }
            done.push((piece, work(piece)));
        }
    };
    let mut results = thread::scope(|scope| {
        let others = threads.min(pieces).saturating_sub(1);
        let started: Vec<_> =
            (0..others).map_while(|_| thread::Builder::new().spawn_scoped(scope, share).ok()).collect();
        let mut results = share();
        for thread in started {
            match thread.join() {
                Ok(done) => results.extend(done),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        results
    });
    results.sort_unstable_by_key(|(piece, _)| *piece);
    results.into_iter().map(|(_, result)| result).collect()
}

/// The number of threads for `asked`, where 0 asks for one per processor.
pub fn thread_count(asked: usize) -> usize {
    if asked > 0 { asked } else { thread::available_parallelism().map_or(1, usize::from) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_for_any_number_of_threads() {
        for threads in [1, 2, 5] {
            assert_eq!(in_parallel(threads, 100, |piece| piece * piece), (0..100).map(|n| n * n).collect::<Vec<_>>());
        }
        assert!(in_parallel(3, 0, |piece| piece).is_empty());
    }
}
