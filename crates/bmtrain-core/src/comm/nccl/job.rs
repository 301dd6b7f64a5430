//! State shared by the groups of a rank: the device, how the first failure is told, and how all of them end.
//!
//! Connections of a group stay until the last handle of a rank is dropped: to end one in order all its ranks have to
//! end it, and groups that ended one after the other, each rank in an order of its own, could wait in a circle. A
//! failure is one of the whole job.

use super::NcclOptions;
use super::connection::Connection;
use super::library::{Library, Progress};
use super::rank::Member;
use super::watch;
use crate::comm::Communicator;
use crate::comm::call::Call;
use crate::comm::queue::lock;
use crate::cuda::CudaBackend;
use crate::error::{Error, Result};
use crate::limits::Resource;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks at calls that NCCL completes in the background.
pub(super) const NAP: Duration = Duration::from_micros(200);

#[derive(Debug)]
pub(super) struct NcclJob {
    pub(super) backend: Arc<CudaBackend>,
    /// The control plane of the first group, of all ranks.
    pub(super) control: Arc<dyn Communicator>,
    pub(super) options: NcclOptions,
    /// None for a rank that is alone.
    pub(super) library: Option<Arc<Library>>,
    failure: OnceLock<Failure>,
    /// Held while a failure is looked into, which the rank's thread and its watch may both come upon.
    pub(super) inquiry: Mutex<()>,
    members: Mutex<Vec<Arc<Member>>>,
    /// Groups made so far; the number of the next one.
    groups: AtomicUsize,
    /// Handles that are left.
    handles: AtomicUsize,
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    New,
    Watched,
    Over,
    Ended,
}

#[derive(Debug, Clone)]
pub(super) struct Failure {
    /// In which group; the first one is 0.
    pub(super) group: usize,
    pub(super) operation: String,
    pub(super) sequence: u64,
    pub(super) reason: String,
    /// Whom it happened to, by their numbers among all.
    pub(super) ranks: Vec<usize>,
}

impl NcclJob {
    pub(super) fn new(
        backend: Arc<CudaBackend>,
        control: Arc<dyn Communicator>,
        library: Option<Arc<Library>>,
        options: NcclOptions,
    ) -> Arc<Self> {
        Arc::new(NcclJob {
            backend,
            control,
            options,
            library,
            failure: OnceLock::new(),
            inquiry: Mutex::default(),
            members: Mutex::default(),
            groups: AtomicUsize::new(0),
            handles: AtomicUsize::new(0),
            stage: Mutex::new(Stage::New),
            changed: Condvar::new(),
        })
    }

    pub(super) fn next_group(&self) -> usize {
        self.groups.fetch_add(1, Ordering::Relaxed)
    }

    /// A new handle; its group is watched from now on.
    pub(super) fn enter(self: &Arc<Self>, member: &Arc<Member>) -> Result<()> {
        self.handles.fetch_add(1, Ordering::AcqRel);
        lock(&self.members).push(Arc::clone(member));
        let mut stage = lock(&self.stage);
        if *stage == Stage::New && member.size > 1 {
            let job = Arc::clone(self);
            let name = format!("nccl {}", self.control.rank());
            let started = std::thread::Builder::new().name(name).spawn(move || watch::run(&job));
            started.map_err(|error| Error::refused("thread that watches NCCL", Resource::Threads, error))?;
            *stage = Stage::Watched;
        }
        Ok(())
    }

    pub(super) fn members(&self) -> Vec<Arc<Member>> {
        lock(&self.members).clone()
    }

    pub(super) fn healthy(&self, member: &Member, call: &Call) -> Result<()> {
        self.failure.get().map_or(Ok(()), |failure| Err(failure.told_by(member, call)))
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Write a failure down, unless there is one already, and tell all ranks.
    pub(super) fn fail(&self, failure: Failure) {
        let told = match failure.operation.as_str() {
            "" => failure.reason.clone(),
            operation => format!("{operation} (number {}) failed: {}", failure.sequence, failure.reason),
        };
        let Failure { operation, sequence, reason, ranks, .. } = failure.clone();
        let operation = if operation.is_empty() { "collective".into() } else { operation };
        if self.failure.set(failure).is_err() {
            return;
        }
        // Before anything on the device is broken off: who waits for it must not take what it finds for a result.
        self.backend.break_off(Error::Communication { operation, sequence, reason, ranks });
        self.control.abort(&told);
        self.changed.notify_all();
    }

    /// Break off what is queued on the device.
    pub(super) fn break_off(&self) {
        // The locks are free again before the connections end: a call that asks for one meanwhile finds none.
        break_off_together(self.connections());
        self.changed.notify_all();
    }

    /// All connections of all groups, which have none from here on.
    fn connections(&self) -> Vec<Connection> {
        self.members().iter().filter_map(|member| lock(&member.connections).take()).flat_map(Vec::from).collect()
    }

    /// Let time pass until the next look; whether there is to be one.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let stage = lock(&self.stage);
        if *stage >= Stage::Over {
            return false;
        }
        let stage = self.changed.wait_timeout(stage, time).unwrap_or_else(PoisonError::into_inner).0;
        *stage < Stage::Over
    }

    pub(super) fn has_ended(&self) {
        *lock(&self.stage) = Stage::Ended;
        self.changed.notify_all();
    }

    /// A handle is dropped. With the last one the rank leaves: in order with all others, or at once after a failure.
    pub(super) fn leave(&self) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        if let Err(error) = self.backend.make_current() {
            tracing::warn!(%error, "a rank of NCCL leaves without its device");
        }
        let begin = Instant::now();
        let waits = || !self.has_failed() && begin.elapsed() < self.options.deadline;
        while waits() && self.members().iter().any(|member| member.has_work()) {
            std::thread::sleep(NAP);
        }
        let connections = self.connections();
        if self.has_failed() {
            break_off_together(connections)
        } else {
            self.end(connections)
        }
        let mut stage = lock(&self.stage);
        if *stage == Stage::Watched {
            *stage = Stage::Over;
            self.changed.notify_all();
            // It may be reporting a failure. It is not waited for longer than another rank.
            while *stage != Stage::Ended && begin.elapsed() < 3 * self.options.deadline {
                stage = self.changed.wait_timeout(stage, NAP).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        drop(stage);
        lock(&self.members).clear();
    }

    /// End connections together with the other ranks. Those that do not come in time find theirs broken off.
    fn end(&self, connections: Vec<Connection>) {
        let begin = Instant::now();
        let begun = connections.iter().try_for_each(Connection::finalize);
        let under_way = |connection: &Connection| matches!(connection.progress(), Ok(Progress::UnderWay));
        while begun.is_ok()
            && connections.iter().any(under_way)
            && begin.elapsed() < self.options.deadline
            && self.control.failure().is_none()
        {
            std::thread::sleep(NAP);
        }
        for connection in connections {
            let ended = match connection.progress() {
                Ok(Progress::Done) => connection.finish(),
                // Dropped, it is broken off.
                Ok(Progress::UnderWay) => Err(super::library::failure("leave", "not all ranks have left")),
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection was not ended in order");
            }
        }
    }
}

/// Break connections off, each on a thread of its own: breaking one off may wait for the device, where a call of
/// another one hangs until that is broken off too.
fn break_off_together(connections: Vec<Connection>) {
    std::thread::scope(|scope| {
        for connection in connections {
            let thread = std::thread::Builder::new().name("bmtrain-nccl-end".into());
            if let Err(error) = thread.spawn_scoped(scope, move || drop(connection)) {
                // The connection went with the thread that was not made.
                tracing::debug!(%error, "connections are broken off one after the other");
            }
        }
    });
}

impl Failure {
    /// Error of a call: this failure, or the note that the job is broken since.
    pub(super) fn told_by(&self, member: &Member, call: &Call) -> Error {
        let (operation, sequence) = (call.kind.to_string(), call.sequence);
        let same_call = self.group == member.group && self.operation == operation && self.sequence == sequence;
        let reason = match same_call || self.operation.is_empty() {
            true => self.reason.clone(),
            false => {
                let whose = if self.group == member.group { "the group" } else { "another group of this rank" };
                format!("{whose} is broken since {} (number {}): {}", self.operation, self.sequence, self.reason)
            }
        };
        let here = |rank: &usize| member.world.iter().position(|world| world == rank);
        Error::Communication { operation, sequence, reason, ranks: self.ranks.iter().filter_map(here).collect() }
    }
}
