//! The thread that owns a model: tensors stay on it, whichever Python thread calls.
//!
//! Defines [`Worker`]. A call hands it a closure, releases the interpreter's lock and waits; meanwhile signals are
//! looked at, so that Ctrl-C is heard.

use crate::error::{Error, raise};
use model_center::run::StopFlag;
use pyo3::prelude::*;
use std::process::id;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, JoinHandle, current};
use std::time::Duration;

/// How often a call that waits looks at signals.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
/// As the main thread of a program has.
const STACK_BYTES: usize = 8 << 20;

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// A thread with a state of its own, which need not be `Send`.
pub(crate) struct Worker<S> {
    /// Taken when the worker ends.
    jobs: Mutex<Option<Sender<Job<S>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The process that has the thread: a fork of it has none.
    process: u32,
}

impl<S: 'static> Worker<S> {
    /// Starts a thread that makes its state, and waits for it. What is known of the state comes back.
    pub(crate) fn start<T: Send + 'static>(
        py: Python<'_>,
        make: impl FnOnce() -> model_center::Result<(S, T)> + Send + 'static,
    ) -> PyResult<(Self, T)> {
        let (jobs, received) = channel::<Job<S>>();
        let (made, outcome) = channel();
        let work = move || {
            let (mut state, known) = match make() {
                Ok(both) => both,
                Err(error) => {
                    let _ = made.send(Err(error));
                    return;
                }
            };
            let _ = made.send(Ok(known));
            // The caller waits for this alone.
            drop(made);
            received.into_iter().for_each(|job| job(&mut state));
        };
        let thread = Builder::new().name("bmtrain".to_owned()).stack_size(STACK_BYTES).spawn(work);
        let thread = thread.map_err(|error| {
            Error::new_err(format!("the model's thread: cannot start: {error} (fix: end other programs)"))
        })?;
        let known = wait(py, outcome, &StopFlag::default())?;
        Ok((Worker { jobs: Mutex::new(Some(jobs)), thread: Mutex::new(Some(thread)), process: id() }, known))
    }

    /// Runs a closure on the thread without the interpreter's lock. A signal whose handler raises sets `stop`, which
    /// the closure may look at; the exception is raised when it has ended.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        py: Python<'_>,
        stop: &StopFlag,
        work: impl FnOnce(&mut S) -> model_center::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        if self.process != id() {
            let text = "the model: it belongs to the process that this one was forked of (fix: open it here, or start \
                        processes by multiprocessing's \"spawn\")";
            return Err(Error::new_err(text));
        }
        let (done, outcome) = channel();
        let job: Job<S> = Box::new(move |state| {
            // The caller waits for it.
            let _ = done.send(work(state));
        });
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        drop(jobs);
        if sent { wait(py, outcome, stop) } else { Err(ended()) }
    }
}

impl<S> Drop for Worker<S> {
    fn drop(&mut self) {
        drop(self.jobs.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // It has no work left, and frees the model.
        let is_joined = |thread: &JoinHandle<()>| self.process == id() && thread.thread().id() != current().id();
        if let Some(thread) = thread.filter(is_joined) {
            let _ = thread.join();
        }
    }
}

/// Waits for an outcome without the interpreter's lock.
fn wait<T: Send>(py: Python<'_>, outcome: Receiver<model_center::Result<T>>, stop: &StopFlag) -> PyResult<T> {
    let mut interrupt = None;
    let mut outcome = outcome;
    loop {
        let (back, received) = py.detach(move || {
            let received = outcome.recv_timeout(SIGNALS_EVERY);
            (outcome, received)
        });
        outcome = back;
        match (received, interrupt.take()) {
            (Err(RecvTimeoutError::Timeout), earlier) => {
                interrupt = earlier.or(py.check_signals().err());
                if interrupt.is_some() {
                    stop.request();
                }
            }
            (_, Some(interrupt)) => return Err(interrupt),
            (Ok(result), None) => {
                let result = result.map_err(raise);
                py.check_signals()?;
                return result;
            }
            (Err(RecvTimeoutError::Disconnected), None) => return Err(ended()),
        }
    }
}

/// The error of a thread that panicked.
fn ended() -> PyErr {
    Error::new_err("the model's thread: it ended unexpectedly (fix: open the model again, and report this)")
}
