//! Save while training goes on: one thread that writes one job at a time and returns its buffers.
//!
//! A rank submits copies of its pieces, continues with its steps, and polls whether the file is written. When the
//! records of all ranks are there, one rank submits the commit in the same way. The buffers are returned with the
//! outcome: in a steady state nothing large is allocated.

use super::Fault;
use super::fault::request;
use super::manifest::Facts;
use super::name::CheckpointName;
use super::piece::{FileRecord, TensorPiece};
use super::prune::Keep;
use super::writer::{Committed, Writer};
use crate::error::{Error, Result};
use bmtrain_core::Error as CoreError;
use bmtrain_core::limits::Resource;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A task of the thread.
#[derive(Debug)]
pub enum SaveJob {
    /// Write the file of a rank.
    Shard {
        /// The save it belongs to.
        writer: Writer,
        /// The rank.
        rank: usize,
        /// All that it holds.
        pieces: Vec<TensorPiece>,
    },
    /// Commit, then prune.
    Commit {
        /// The save.
        writer: Writer,
        /// Records of all ranks.
        records: Vec<FileRecord>,
        /// The caller's record.
        facts: Facts,
        /// Checkpoints to keep; `None` removes none.
        keep: Option<Keep>,
    },
}

/// The outcome of a [`SaveJob`].
#[derive(Debug)]
pub enum SaveOutcome {
    /// Outcome of a [`SaveJob::Shard`].
    Shard {
        /// To be reported to the rank that commits.
        record: Result<FileRecord>,
        /// The submitted pieces, in their order, for reuse.
        pieces: Vec<TensorPiece>,
    },
    /// Outcome of a [`SaveJob::Commit`].
    Commit {
        /// The checkpoint.
        committed: Result<Committed>,
        /// The checkpoints that were pruned. An error here leaves the new checkpoint as it is.
        pruned: Result<Vec<CheckpointName>>,
    },
}

/// The thread. Dropping it waits for the job in flight: a commit must not appear after the next part of the program has
/// listed the checkpoints. On a disk that never responds the drop does not return either; call [`SaveThread::wait`]
/// before.
#[derive(Debug)]
pub struct SaveThread {
    /// Present until drop.
    jobs: Option<SyncSender<SaveJob>>,
    outcomes: Receiver<SaveOutcome>,
    in_flight: bool,
    thread: Option<JoinHandle<()>>,
}

impl SaveThread {
    /// Start the thread, under this name.
    pub fn start(name: &str) -> Result<Self> {
        let (jobs, todo) = sync_channel::<SaveJob>(1);
        let (done, outcomes) = sync_channel(1);
        let work = move || {
            while let Ok(job) = todo.recv() {
                if done.send(run(job)).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.into()).spawn(work);
        let thread = thread.map_err(|e| CoreError::refused("thread that saves", Resource::Threads, e))?;
        Ok(SaveThread { jobs: Some(jobs), outcomes, in_flight: false, thread: Some(thread) })
    }

    /// Whether a job was submitted whose outcome was not taken.
    pub fn is_busy(&self) -> bool {
        self.in_flight
    }

    /// Submit a job. Returns at once. While another one is in flight it is refused and lost, so ask
    /// [`is_busy`](SaveThread::is_busy) first.
    pub fn submit(&mut self, job: SaveJob) -> Result<()> {
        if self.in_flight {
            let fix = "wait for the outcome of the save before, or save more rarely";
            return Err(request("background save", "one is still in flight", fix));
        }
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(died)?;
        self.in_flight = true;
        Ok(())
    }

    /// The outcome, if it is there. Returns at once.
    pub fn poll(&mut self) -> Result<Option<SaveOutcome>> {
        match self.wait(Duration::ZERO) {
            Err(Error::Checkpoint { fault: Fault::Deadline, .. }) => Ok(None),
            other => other,
        }
    }

    /// The outcome, waited for no longer than `deadline`; `None` if nothing is in flight. After [`Fault::Deadline`] it
    /// may be waited for again.
    pub fn wait(&mut self, deadline: Duration) -> Result<Option<SaveOutcome>> {
        if !self.in_flight {
            return Ok(None);
        }
        match self.outcomes.recv_timeout(deadline) {
            Ok(outcome) => {
                self.in_flight = false;
                Ok(Some(outcome))
            }
            Err(RecvTimeoutError::Timeout) => Err(Error::checkpoint(
                Fault::Deadline,
                "background save",
                format!("it has not ended within {:.1} s", deadline.as_secs_f64()),
                "look whether the disk is stuck, or give it more time",
            )),
            Err(RecvTimeoutError::Disconnected) => Err(died()),
        }
    }
}

impl Drop for SaveThread {
    fn drop(&mut self) {
        // Without a sender there is no next job, and there is room for the outcome of the last one.
        self.jobs = None;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::warn!("the thread for saving died");
        }
    }
}

fn run(job: SaveJob) -> SaveOutcome {
    match job {
        SaveJob::Shard { writer, rank, pieces } => {
            let record = guarded(|| writer.write_shard(rank, &pieces));
            SaveOutcome::Shard { record, pieces }
        }
        SaveJob::Commit { writer, records, facts, keep } => {
            let store = writer.store().clone();
            let committed = guarded(|| writer.commit(records, facts));
            let pruned = match (&committed, keep) {
                (Ok(committed), Some(keep)) => guarded(|| store.prune(keep, Some(committed))),
                _ => Ok(Vec::new()),
            };
            SaveOutcome::Commit { committed, pruned }
        }
    }
}

/// A panic, which would be a bug, must not leave the training waiting for a thread that is gone.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(died()))
}

fn died() -> Error {
    request("background save", "its thread died", "report this as a mistake of the program, with the message above")
}
