//! Lanes that run beside the calling thread: a queue and a thread each, started by the first work of the host.
//!
//! Kernels on the compute lane run on the calling thread as they always did. What takes its time elsewhere, such as the
//! all-reduce of gradients with other ranks, is given to another lane, and then everything after it on that lane queues
//! up too. A lane that has nothing to do costs nothing: work on it runs at once, as on the compute lane.

use crate::error::{Error, Result};
use crate::lane::{Lane, Mark};
use crate::limits::Resource;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

/// Work that waits for its turn.
pub(super) type Task = Box<dyn FnOnce() -> Result<()> + Send>;

/// The lanes of one backend.
#[derive(Default)]
pub(super) struct Lanes {
    workers: [OnceLock<Worker>; Lane::ALL.len()],
}

struct Worker {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    /// Tasks given and done since the start; a mark's ticket is the number given.
    given: u64,
    done: u64,
    /// The first failure; it stays, as the failure of a device does.
    failure: Option<Error>,
    closing: bool,
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lanes({} threads)", self.workers.iter().filter(|worker| worker.get().is_some()).count())
    }
}

impl Lanes {
    /// Whether all work of a lane is done.
    pub(super) fn is_idle(&self, lane: Lane) -> bool {
        self.queue(lane).is_none_or(|queue| {
            let state = queue.lock();
            state.done == state.given
        })
    }

    /// Queue work on any lane but the compute lane, whose thread is the caller's.
    pub(super) fn give(&self, lane: Lane, task: Task) -> Result<()> {
        let queue = self.start(lane)?;
        // A task is wrapped only while its span is recorded: without a trace it costs no allocation.
        let task: Task = match tracing::span_enabled!(tracing::Level::DEBUG, cause) {
            true => {
                let cause = tracing::Span::current().metadata().map_or("", tracing::Metadata::name);
                Box::new(move || tracing::debug_span!("work", cause).in_scope(task))
            }
            false => task,
        };
        let mut state = queue.lock();
        state.tasks.push_back(task);
        state.given += 1;
        queue.changed.notify_all();
        Ok(())
    }

    /// The present end of a lane.
    pub(super) fn mark(&self, lane: Lane) -> Mark {
        Mark { lane, ticket: self.queue(lane).map_or(0, |queue| queue.lock().given) }
    }

    /// Whether the work before a mark is done.
    pub(super) fn has_reached(&self, mark: Mark) -> bool {
        self.queue(mark.lane).is_none_or(|queue| queue.lock().done >= mark.ticket)
    }

    /// Let a lane wait for a mark: the compute lane is the calling thread, which stops here; others get a task.
    pub(super) fn wait(&self, lane: Lane, mark: Mark) -> Result<()> {
        let Some(queue) = self.queue(mark.lane) else { return Ok(()) };
        if lane == mark.lane {
            return Ok(());
        }
        if lane == Lane::Compute {
            return queue.reach(mark.ticket);
        }
        if queue.lock().done >= mark.ticket {
            return queue.reach(mark.ticket);
        }
        let queue = Arc::clone(queue);
        self.give(lane, Box::new(move || queue.reach(mark.ticket)))
    }

    /// Let the calling thread wait for all work of a lane.
    pub(super) fn sync(&self, lane: Lane) -> Result<()> {
        match self.queue(lane) {
            None => Ok(()),
            Some(queue) => {
                let given = queue.lock().given;
                queue.reach(given)
            }
        }
    }

    fn queue(&self, lane: Lane) -> Option<&Arc<Queue>> {
        self.workers[lane as usize].get().map(|worker| &worker.queue)
    }

    fn start(&self, lane: Lane) -> Result<&Arc<Queue>> {
        let place = &self.workers[lane as usize];
        if place.get().is_none() {
            let queue = Arc::new(Queue::default());
            let theirs = Arc::clone(&queue);
            // Names the track of the lane's work in a trace, below the rank's track.
            let track = tracing::debug_span!("lane", ?lane);
            let thread = std::thread::Builder::new().name(format!("lane {lane:?}")).spawn(move || {
                let _lane = track.entered();
                theirs.work();
            });
            let thread = thread
                .map_err(|error| Error::refused(format!("thread of the lane {lane:?}"), Resource::Threads, error))?;
            // Only the rank's own thread starts lanes; a worker too many would end when it is dropped.
            let _ = place.set(Worker { queue, thread: Some(thread) });
        }
        self.queue(lane).ok_or_else(|| Error::argument("lanes", format!("{lane:?} has no thread")))
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait until this many tasks are done; what failed until then is told to everybody who waits.
    fn reach(&self, ticket: u64) -> Result<()> {
        let mut state = self.lock();
        while state.done < ticket {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.failure.clone().map_or(Ok(()), Err)
    }

    /// The worker's life.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task)).unwrap_or_else(|panic| {
                    let message = panic.downcast_ref::<String>().map(String::as_str);
                    let message = message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                    Err(Error::argument("lanes", format!("work of a lane panicked: {message}")))
                });
                state = self.lock();
                state.done += 1;
                if let Err(error) = result {
                    state.failure.get_or_insert(error);
                }
                self.changed.notify_all();
            } else if state.closing {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.queue.lock().closing = true;
        self.queue.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was caught inside and is a failure of the lane.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    #[test]
    fn work_runs_in_order_beside_the_caller_and_marks_are_reached() {
        let lanes = Lanes::default();
        let (release, held) = channel::<()>();
        let count = Arc::new(AtomicUsize::new(0));
        lanes.give(Lane::Zero, Box::new(move || held.recv().map_err(|e| Error::argument("t", e.to_string())))).unwrap();
        let mark = lanes.mark(Lane::Zero);
        for expected in 0..10 {
            let count = Arc::clone(&count);
            let task = move || {
                assert_eq!(count.fetch_add(1, Ordering::SeqCst), expected);
                Ok(())
            };
            lanes.give(Lane::Zero, Box::new(task)).unwrap();
        }
        assert!(!lanes.is_idle(Lane::Zero) && count.load(Ordering::SeqCst) == 0, "the caller went on");
        assert!(lanes.is_idle(Lane::Copy) && lanes.is_idle(Lane::Compute));
        // Another lane waits on its own thread, not on this one.
        lanes.give(Lane::Copy, Box::new(|| Ok(()))).unwrap();
        lanes.wait(Lane::Copy, mark).unwrap();
        assert!(!lanes.is_idle(Lane::Copy));
        release.send(()).unwrap();
        lanes.wait(Lane::Compute, lanes.mark(Lane::Zero)).unwrap();
        assert_eq!(count.load(Ordering::SeqCst), 10);
        lanes.sync(Lane::Copy).unwrap();
        assert!(lanes.is_idle(Lane::Copy));
    }

    #[test]
    fn failures_and_panics_reach_the_waiting_thread() {
        let lanes = Lanes::default();
        lanes.give(Lane::Zero, Box::new(|| Err(Error::argument("all_reduce", "the first")))).unwrap();
        lanes.give(Lane::Zero, Box::new(|| panic!("the second"))).unwrap();
        for _ in 0..2 {
            assert!(lanes.sync(Lane::Zero).unwrap_err().to_string().contains("the first"));
        }
        lanes.give(Lane::Pipe, Box::new(|| panic!("number {}", 3))).unwrap();
        let error = lanes.wait(Lane::Compute, lanes.mark(Lane::Pipe)).unwrap_err();
        assert!(error.to_string().contains("number 3"), "{error}");
    }
}
