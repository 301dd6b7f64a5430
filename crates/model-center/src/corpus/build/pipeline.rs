//! Threads that tokenise batches, whose results come back in the order in which the batches were sent.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};

use crate::Result;
use crate::corpus::text::DocumentCounts;

/// Documents that are tokenised together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) texts: Vec<String>,
    pub(super) bytes: u64,
    /// What was read up to its end.
    pub(super) counts: DocumentCounts,
}

/// A batch that was tokenised.
#[derive(Debug)]
pub(super) struct Done {
    /// For each document its sequences.
    pub(super) sequences: Result<Vec<Vec<Vec<u32>>>>,
    pub(super) bytes: u64,
    pub(super) counts: DocumentCounts,
}

type Tokenize<'a> = dyn Fn(&Batch) -> Result<Vec<Vec<Vec<u32>>>> + Sync + 'a;

/// The threads, and the batches that are with them.
pub(super) struct Pipeline<'a> {
    tokenize: &'a Tokenize<'a>,
    jobs: Sender<(u64, Batch)>,
    results: Receiver<(u64, thread::Result<Done>)>,
    threads: usize,
    sent: u64,
    received: u64,
    /// Results that came before their turn.
    early: BTreeMap<u64, thread::Result<Done>>,
}

impl<'a> Pipeline<'a> {
    /// Starts threads, which end with the pipeline. Where the system refuses all of them, batches are tokenised by the
    /// caller's thread.
    pub(super) fn start<'scope>(scope: &'scope Scope<'scope, '_>, threads: usize, tokenize: &'a Tokenize<'a>) -> Self
    where
        'a: 'scope,
    {
        let (jobs, queue) = channel();
        let (sender, results) = channel();
        let queue: Arc<Mutex<Receiver<(u64, Batch)>>> = Arc::new(Mutex::new(queue));
        let start = |_| {
            let (queue, sender) = (Arc::clone(&queue), sender.clone());
            let work = move || {
                while let Some((number, batch)) = next(&queue) {
                    if sender.send((number, done(tokenize, &batch))).is_err() {
                        return;
                    }
                }
            };
            thread::Builder::new().name("tokenize".into()).spawn_scoped(scope, work).ok()
        };
        let threads = (0..threads).map_while(start).count();
        Pipeline { tokenize, jobs, results, threads, sent: 0, received: 0, early: BTreeMap::new() }
    }

    /// Batches that were sent and not received.
    pub(super) fn in_flight(&self) -> usize {
        (self.sent - self.received) as usize
    }

    pub(super) fn send(&mut self, batch: Batch) {
        let number = self.sent;
        self.sent += 1;
        if self.threads == 0 {
            self.early.insert(number, done(self.tokenize, &batch));
        } else {
            // The threads wait for batches as long as the pipeline is there.
            let _ = self.jobs.send((number, batch));
        }
    }

    /// The result of the earliest batch that was not received; `None` if there is none.
    pub(super) fn receive(&mut self) -> Option<Done> {
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

fn next(queue: &Mutex<Receiver<(u64, Batch)>>) -> Option<(u64, Batch)> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// A panic is a result, too: the caller would wait for another one without end.
fn done(tokenize: &Tokenize<'_>, batch: &Batch) -> thread::Result<Done> {
    let sequences = catch_unwind(AssertUnwindSafe(|| tokenize(batch)))?;
    Ok(Done { sequences, bytes: batch.bytes, counts: batch.counts })
}
