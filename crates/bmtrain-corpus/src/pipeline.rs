//! Threads that work on batches, whose results come back in the order in which the batches were sent.
//!
//! Defines [`Pipeline`], used by [`super::build`], [`super::clean`] and [`super::sentences`].

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};

/// Batches are worked on or wait to be written, for each thread.
pub(super) const BATCHES_PER_THREAD: usize = 3;

type Work<'a, B, D> = dyn Fn(B) -> D + Sync + 'a;

/// The threads, and the batches that are with them.
pub(super) struct Pipeline<'a, B, D> {
    work: &'a Work<'a, B, D>,
    jobs: Sender<(u64, B)>,
    results: Receiver<(u64, thread::Result<D>)>,
    threads: usize,
    sent: u64,
    received: u64,
    /// Results that came before their turn.
    early: BTreeMap<u64, thread::Result<D>>,
}

impl<'a, B: Send + 'a, D: Send + 'a> Pipeline<'a, B, D> {
    /// Starts threads, which end with the pipeline. Where the system refuses all of them, the caller's thread works.
    pub(super) fn start<'scope>(scope: &'scope Scope<'scope, '_>, threads: usize, work: &'a Work<'a, B, D>) -> Self
    where
        'a: 'scope,
    {
        let (jobs, queue) = channel();
        let (sender, results) = channel();
        let queue: Arc<Mutex<Receiver<(u64, B)>>> = Arc::new(Mutex::new(queue));
        let start = |_| {
            let (queue, sender) = (Arc::clone(&queue), sender.clone());
            let run = move || {
                while let Some((number, batch)) = next(&queue) {
                    if sender.send((number, done(work, batch))).is_err() {
                        return;
                    }
                }
            };
            thread::Builder::new().name("corpus".into()).spawn_scoped(scope, run).ok()
        };
        let threads = (0..threads).map_while(start).count();
        Pipeline { work, jobs, results, threads, sent: 0, received: 0, early: BTreeMap::new() }
    }

    /// Batches that were sent and not received.
    pub(super) fn in_flight(&self) -> usize {
        (self.sent - self.received) as usize
    }

    pub(super) fn send(&mut self, batch: B) {
        let number = self.sent;
        self.sent += 1;
        if self.threads == 0 {
            self.early.insert(number, done(self.work, batch));
        } else {
            // The threads wait for batches as long as the pipeline is there.
            let _ = self.jobs.send((number, batch));
        }
    }

    /// The result of the earliest batch that was not received; `None` if there is none.
    pub(super) fn receive(&mut self) -> Option<D> {
        if self.in_flight() == 0 {
            return None;
        }
        let result = loop {
            if let Some(result) = self.early.remove(&self.received) {
                break result;
            }
            let (number, result) = self.results.recv().ok()?;
            self.early.insert(number, result);
        };
        self.received += 1;
        match result {
            Ok(done) => Some(done),
            Err(panic) => resume_unwind(panic),
        }
    }
}

fn next<B>(queue: &Mutex<Receiver<(u64, B)>>) -> Option<(u64, B)> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// A panic is a result, too: the caller would wait for another one without end.
fn done<B, D>(work: &Work<'_, B, D>, batch: B) -> thread::Result<D> {
    catch_unwind(AssertUnwindSafe(|| work(batch)))
}
