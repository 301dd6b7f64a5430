//! Ranks as threads of one process: started, named, joined, and one failure told from its consequences.
//!
//! The rule of joining: as long as no rank has failed, wait for all of them, however long they train; what hangs
//! between ranks is ended by the deadlines of their communicators. After the first failure the others have [`GRACE`] to
//! end, and ranks that have not ended are abandoned and named, so that a program can end.

use crate::error::Error;
use bmtrain_core::Error as CoreError;
use bmtrain_core::comm::Communicator;
use bmtrain_core::limits::Resource;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time for the other ranks to end after the first failure.
pub const GRACE: Duration = Duration::from_secs(30);

/// The failure of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankError<E> {
    /// The rank that failed first.
    pub rank: usize,
    /// Error of the rank.
    pub error: E,
    /// Ranks that had not ended when the grace was over. Their threads still run.
    pub unfinished: Vec<usize>,
}

impl<E: std::fmt::Display> std::fmt::Display for RankError<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {}: {}", self.rank, self.error)?;
        match self.unfinished.as_slice() {
            [] => Ok(()),
            [one] => write!(f, " (rank {one} did not end)"),
            several => write!(f, " (ranks {several:?} did not end)"),
        }
    }
}

impl<E: std::error::Error> std::error::Error for RankError<E> {}

/// Run `count` ranks as threads named `rank 0`, `rank 1`, …, and collect their results in the order of the ranks.
/// `make` is called with each rank's number on this thread and gives what the rank's thread does.
///
/// What a rank's closure owns is dropped before its failure is seen. A communicator among it makes the other ranks fail
/// at that moment, and one of those failures may be seen first: use [`run_group`] for ranks with a communicator.
///
/// # Errors
/// The failure that was seen first, with its rank; a panic counts as a failure ([`Error::RankThread`]), and so does a
/// thread that the system refuses ([`CoreError::Refused`]).
pub fn run_ranks<T, E, F>(count: usize, make: impl FnMut(usize) -> F) -> Result<Vec<T>, RankError<E>>
where
    F: FnOnce() -> Result<T, E> + Send + 'static,
    T: Send + 'static,
    E: From<Error> + Send + 'static,
{
    run_ranks_within(count, GRACE, make)
}

/// [`run_ranks`] with another grace.
pub fn run_ranks_within<T, E, F>(
    count: usize,
    grace: Duration,
    mut make: impl FnMut(usize) -> F,
) -> Result<Vec<T>, RankError<E>>
where
    F: FnOnce() -> Result<T, E> + Send + 'static,
    T: Send + 'static,
    E: From<Error> + Send + 'static,
{
    run((0..count).map(|rank| (make(rank), |_: Option<String>| ())), grace, |_| String::new())
}

/// Run one rank for each communicator. A rank that fails or panics is recorded first and then tells the others through
/// its communicator ([`Communicator::abort`]), so that what they fail with in consequence is never taken for the cause.
pub fn run_group<T, E, F>(
    communicators: Vec<Arc<dyn Communicator>>,
    mut make: impl FnMut(usize, Arc<dyn Communicator>) -> F,
) -> Result<Vec<T>, RankError<E>>
where
    F: FnOnce() -> Result<T, E> + Send + 'static,
    T: Send + 'static,
    E: From<Error> + std::fmt::Display + Send + 'static,
{
    let works = communicators.into_iter().enumerate().map(|(rank, communicator)| {
        let work = make(rank, communicator.clone());
        let after = move |reason: Option<String>| {
            if let Some(reason) = reason {
                communicator.abort(&reason);
            }
        };
        (work, after)
    });
    run(works, GRACE, E::to_string)
}

/// Start the ranks and collect what becomes of them. The second half of a rank's work is called with the message of its
/// failure once that is recorded, or after a success before it is.
fn run<T, E, F, A>(
    works: impl Iterator<Item = (F, A)>,
    grace: Duration,
    describe: fn(&E) -> String,
) -> Result<Vec<T>, RankError<E>>
where
    F: FnOnce() -> Result<T, E> + Send + 'static,
    A: FnOnce(Option<String>) + Clone + Send + 'static,
    T: Send + 'static,
    E: From<Error> + Send + 'static,
{
    let (sender, receiver) = channel();
    let mut threads = Vec::new();
    let mut refused = None;
    for (rank, (work, after)) in works.enumerate() {
        let (sender, abort) = (sender.clone(), after.clone());
        let body = move || {
            let _track = tracing::debug_span!("rank", rank).entered();
            let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
                let reason = format!("panicked: {}", message(&*payload));
                Err(Error::RankThread { rank, reason }.into())
            });
            // The receiver is gone if this rank was abandoned.
            match result.as_ref().err().map(describe) {
                None => {
                    after(None);
                    let _ = sender.send((rank, result));
                }
                Some(words) => {
                    let _ = sender.send((rank, result));
                    after(Some(words));
                }
            }
        };
        match Builder::new().name(format!("rank {rank}")).spawn(body) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                let error = CoreError::refused(format!("thread of rank {rank}"), Resource::Threads, error);
                let error = E::from(Error::Core(error));
                // The ranks that were started wait for this one.
                abort(Some(describe(&error)));
                refused = Some((rank, error));
                break;
            }
        }
    }
    // The ranks hold the others, so that the channel ends with them.
    drop(sender);
    let outcome = collect(&receiver, threads.len(), refused, grace);
    settle(threads);
    outcome
}

/// Wait by the rule at the top of this file.
fn collect<T, E: From<Error>>(
    receiver: &Receiver<(usize, Result<T, E>)>,
    started: usize,
    mut failed: Option<(usize, E)>,
    grace: Duration,
) -> Result<Vec<T>, RankError<E>> {
    let mut results: Vec<Option<T>> = std::iter::repeat_with(|| None).take(started).collect();
    let mut waiting: Vec<usize> = (0..started).collect();
    let mut deadline = failed.as_ref().map(|_| Instant::now() + grace);
    while !waiting.is_empty() {
        let received = match deadline {
            None => receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())),
        };
        let (rank, result) = match received {
            Ok(received) => received,
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => {
                let (rank, reason) = (waiting[0], "ended without a result".to_owned());
                failed = failed.or_else(|| Some((rank, Error::RankThread { rank, reason }.into())));
                waiting.clear();
                break;
            }
        };
        waiting.retain(|&other| other != rank);
        match result {
            Ok(value) => results[rank] = Some(value),
            Err(error) if failed.is_none() => {
                failed = Some((rank, error));
                deadline = Some(Instant::now() + grace);
            }
            Err(_) => {}
        }
    }
    match failed {
        Some((rank, error)) => Err(RankError { rank, error, unfinished: waiting }),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

/// Threads that have given their result are about to end; wait for that, but not long, and not for abandoned ones.
fn settle(threads: Vec<JoinHandle<()>>) {
    let deadline = Instant::now() + Duration::from_millis(100);
    for thread in threads {
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "without a message",
    }
}
