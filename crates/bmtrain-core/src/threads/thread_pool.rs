//! Threads that help a calling thread with one piece of work at a time, and are there again within a microsecond.
//!
//! A kernel takes some tens of microseconds and the next one follows at once. Waking a thread that sleeps takes as long
//! as such a kernel, above all in a virtual machine. So the calling thread works too, and the helpers look for the next
//! work for a while before they sleep.
#![allow(unsafe_code)]

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Time for which a thread looks for work before it sleeps: longer than the time between two kernels of a step.
const AWAKE: Duration = Duration::from_micros(100);

/// Number of polls without letting other threads of the system run.
const SPINS: usize = 400;

/// States of a helper.
const WAITS: u32 = 0;
const SLEEPS: u32 = 1;
const WORKS: u32 = 2;

thread_local! {
    /// Whether this thread is in some pool's work, as a helper or as the caller.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A number of helpers for one calling thread at a time.
#[derive(Debug)]
pub(super) struct ThreadPool {
    helpers: Vec<(Arc<Helper>, JoinHandle<()>)>,
    is_taken: AtomicBool,
}

/// On cache lines of its own, since both sides look at it all the time.
#[derive(Debug)]
#[repr(align(128))]
struct Helper {
    state: AtomicU32,
    ends: AtomicBool,
    /// The current work; valid from before `state` becomes `WORKS` until the helper has counted itself done.
    work: UnsafeCell<*const Work<'static>>,
}

// SAFETY: `work` is written by the thread that has taken the pool while the helper waits or sleeps, and read by the
// helper only once it has seen `WORKS`, which is stored after that.
unsafe impl Sync for Helper {}
// SAFETY: as above; the pointer is to something that is `Sync`.
unsafe impl Send for Helper {}

/// One piece of work, on the stack of the calling thread.
struct Work<'w> {
    run: &'w (dyn Fn() + Sync),
    left: AtomicUsize,
    caller: Thread,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

impl ThreadPool {
    /// A pool of `helpers` threads; each runs `start(number)` first, with numbers from 1.
    ///
    /// # Errors
    /// The error of the system if it gives no threads; threads that were started have ended then.
    pub(super) fn new(helpers: usize, start: impl Fn(usize) + Send + Clone + 'static) -> io::Result<Self> {
        // Dropped on an error, which ends the threads that were started.
        let mut pool = ThreadPool { helpers: Vec::with_capacity(helpers), is_taken: AtomicBool::new(false) };
        for number in 1..=helpers {
            let helper = Arc::new(Helper {
                state: AtomicU32::new(WAITS),
                ends: AtomicBool::new(false),
                work: UnsafeCell::new(std::ptr::null()),
            });
            let (of_thread, start) = (Arc::clone(&helper), start.clone());
            let thread = std::thread::Builder::new().name(format!("bmtrain-cpu-{number}"));
            let handle = thread.spawn(move || {
                start(number);
                IS_INSIDE.set(true);
                of_thread.help();
            })?;
            pool.helpers.push((helper, handle));
        }
        Ok(pool)
    }

    /// Run `mine` on this thread and `help` on up to `helpers` others meanwhile; all are done on return.
    ///
    /// `help` must be optional: it does not run while the pool helps another thread, or where this thread is in work of
    /// a pool already.
    ///
    /// # Panics
    /// With the panic of `mine` or else of a `help`, after all are done.
    pub(super) fn run<R>(&self, helpers: usize, help: &(dyn Fn() + Sync), mine: impl FnOnce() -> R) -> R {
        let helpers = &self.helpers[..helpers.min(self.helpers.len())];
        let is_free = || self.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if helpers.is_empty() || IS_INSIDE.get() || !is_free() {
            return mine();
        }
        IS_INSIDE.set(true);
        let (left, caller) = (AtomicUsize::new(helpers.len()), std::thread::current());
        let work = Work { run: help, left, caller, panic: Mutex::default() };
        let address: *const Work<'_> = &raw const work;
        for (helper, handle) in helpers {
            // SAFETY: this thread has taken the pool, and the helper has no work: the last one counted itself done
            // before the pool was free. `work` outlives its use, since this function waits for all helpers.
            unsafe { *helper.work.get() = address.cast() };
            if helper.state.swap(WORKS, Ordering::AcqRel) == SLEEPS {
                handle.thread().unpark();
            }
        }
        let result = catch_unwind(AssertUnwindSafe(mine));
        let is_done = || work.left.load(Ordering::Acquire) == 0;
        if !look(is_done) {
            while !is_done() {
                std::thread::park();
            }
        }
        IS_INSIDE.set(false);
        self.is_taken.store(false, Ordering::Release);
        let panic = work.panic.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (result, panic) {
            (Ok(result), None) => result,
            (Err(panic), _) | (Ok(_), Some(panic)) => resume_unwind(panic),
        }
    }
}

impl Helper {
    /// Loop of the thread until the pool is dropped.
    fn help(&self) {
        let is_called = || self.state.load(Ordering::Acquire) == WORKS;
        loop {
            if !look(is_called) {
                let sleeps = self.state.compare_exchange(WAITS, SLEEPS, Ordering::AcqRel, Ordering::Acquire).is_ok();
                while sleeps && !is_called() {
                    std::thread::park();
                }
            }
            if self.ends.load(Ordering::Acquire) {
                return;
            }
            // SAFETY: the state is `WORKS`, so the work is there until it is counted as done.
            let work = unsafe { &**self.work.get() };
            let result = catch_unwind(AssertUnwindSafe(work.run));
            if let Err(panic) = result {
                work.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
            self.state.store(WAITS, Ordering::Release);
            // After the count, `work` may be gone.
            let caller = work.caller.clone();
            if work.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                caller.unpark();
            }
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        for (helper, handle) in &self.helpers {
            helper.ends.store(true, Ordering::Release);
            helper.state.store(WORKS, Ordering::Release);
            handle.thread().unpark();
        }
        for (_, handle) in self.helpers.drain(..) {
            // Panics of work are caught.
            let _ = handle.join();
        }
    }
}

/// Look for something until it is there; `false` if it was not for a while.
fn look(is_there: impl Fn() -> bool) -> bool {
    for _ in 0..SPINS {
        if is_there() {
            return true;
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    loop {
        // Where there are more threads than processors, the one that is waited for may need this one.
        std::thread::yield_now();
        if is_there() {
            return true;
        }
        if start.elapsed() > AWAKE {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(helpers: usize) -> ThreadPool {
        ThreadPool::new(helpers, |_| ()).unwrap()
    }

    #[test]
    fn all_helpers_are_done_on_return_however_long_they_slept() {
        for helpers in [1, 3] {
            let pool = pool(helpers);
            for round in 0..2000 {
                if round % 100 == 0 {
                    std::thread::sleep(3 * AWAKE);
                }
                let calls = AtomicUsize::new(0);
                let wanted = round % (helpers + 2);
                let count = || {
                    calls.fetch_add(1, Ordering::Relaxed);
                };
                pool.run(wanted, &count, count);
                assert_eq!(calls.into_inner(), 1 + wanted.min(helpers));
            }
        }
    }

    #[test]
    fn a_call_inside_of_work_and_a_call_beside_another_run_without_help() {
        let pool = pool(2);
        let alone = || {
            let calls = AtomicUsize::new(0);
            let count = || {
                calls.fetch_add(1, Ordering::Relaxed);
            };
            pool.run(2, &count, count);
            calls.into_inner()
        };
        pool.run(2, &|| assert_eq!(alone(), 1), || {
            assert_eq!(alone(), 1);
            std::thread::scope(|scope| assert_eq!(scope.spawn(alone).join().unwrap(), 1));
        });
        assert_eq!(alone(), 3);
    }

    #[test]
    fn a_panic_reaches_the_caller_after_all_are_done_and_the_pool_continues() {
        let pool = pool(2);
        for (mine, help) in [(true, false), (false, true), (true, true)] {
            let done = AtomicUsize::new(0);
            let work = |panics: bool, from: &'static str| {
                std::thread::sleep(Duration::from_millis(1));
                done.fetch_add(1, Ordering::Relaxed);
                if panics {
                    resume_unwind(Box::new(from));
                }
            };
            let run = || pool.run(2, &|| work(help, "help"), || work(mine, "mine"));
            let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&if mine { "mine" } else { "help" }));
            assert_eq!(done.into_inner(), 3);
        }
        pool.run(2, &|| (), || ());
    }

    #[test]
    fn a_pool_ends_whether_its_helpers_sleep_or_not() {
        for rest in [Duration::ZERO, 4 * AWAKE] {
            let pool = pool(3);
            pool.run(3, &|| (), || ());
            std::thread::sleep(rest);
            drop(pool);
        }
    }
}
