//! One rank as a [`Communicator`]: gives collectives to lanes and counts them.
//!
//! A call is queued on its lane's stream at once; what waits for other ranks is the device.
#![allow(unsafe_code)]

use super::NcclOptions;
use super::connection::Connection;
use super::job::{Failure, NAP, NcclJob};
use super::join;
use super::library::Progress;
use super::watch::{SLICE, Trouble, Watched};
use crate::backend::Backend;
use crate::comm::call::{Call, CallKind};
use crate::comm::queue::lock;
use crate::comm::{Collective, Communicator, Solo};
use crate::cuda::CudaBackend;
use crate::error::{Error, Result};
use crate::lane::Lane;
use crate::view::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time for which a thread keeps its core while NCCL queues a call.
const PATIENCE: Duration = Duration::from_millis(2);

/// A rank's handle of its group. It belongs to the rank's thread; when it is dropped by a panic there, the other ranks'
/// calls fail and name this rank. With the last handle of a rank it waits, up to the deadline, for the others to leave
/// as well.
#[derive(Debug)]
pub struct NcclRank {
    member: Arc<Member>,
}

/// Connections of a group, by what goes over them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    All = 0,
    /// Messages to higher ranks.
    Up = 1,
    /// Messages to lower ranks.
    Down = 2,
}

#[derive(Debug)]
pub(super) struct Member {
    pub(super) job: Arc<NcclJob>,
    pub(super) group: usize,
    pub(super) control: Arc<dyn Communicator>,
    /// A second group of the same ranks, for the watches to speak to each other.
    pub(super) inquest: Arc<dyn Communicator>,
    pub(super) rank: usize,
    pub(super) size: usize,
    pub(super) world: Vec<usize>,
    /// One for each route. None for a rank alone, and when they are broken off or ended.
    pub(super) connections: Mutex<Option<Vec<Connection>>>,
    pub(super) watched: Mutex<Watched>,
    /// Held for the length of a launch, so that all ways see one order.
    numbers: Mutex<Numbers>,
}

#[derive(Debug, Default)]
struct Numbers {
    collectives: u64,
    sends: Vec<u64>,
    receives: Vec<u64>,
}

impl NcclRank {
    /// Join the ranks of `control` with a device each, and wait until all have come. A rank that is alone needs no
    /// NCCL.
    ///
    /// # Errors
    /// No NCCL library on some rank, or one that is too old or another than elsewhere; ranks that share a device; ranks
    /// that do not come before the deadline; errors of NCCL.
    pub fn join(backend: Arc<CudaBackend>, control: Arc<dyn Communicator>, options: NcclOptions) -> Result<Self> {
        Ok(NcclRank { member: join::join(backend, control, options)? })
    }

    /// As [`Communicator::split`], with the type of this rank.
    pub fn subgroup(&self, colour: usize, key: usize) -> Result<NcclRank> {
        let here = &self.member;
        here.job.healthy(here, &Call { kind: CallKind::Split, sequence: 0 })?;
        let control = here.control.split(colour, key)?;
        let own = here.world.get(here.rank).copied().unwrap_or(here.rank);
        Ok(NcclRank { member: join::meet(&here.job, control, own)? })
    }
}

impl Communicator for NcclRank {
    fn rank(&self) -> usize {
        self.member.rank
    }

    fn size(&self) -> usize {
        self.member.size
    }

    fn is_ordered(&self) -> bool {
        self.member.size == 1
    }

    fn launch(&self, backend: &dyn Backend, collective: Collective<'_>, on: Lane) -> Result<()> {
        self.launch_all(backend, vec![collective], on)
    }

    fn launch_all(&self, backend: &dyn Backend, collectives: Vec<Collective<'_>>, on: Lane) -> Result<()> {
        let member = &self.member;
        for collective in &collectives {
            member.check(backend, collective, on)?;
        }
        if member.size == 1 {
            let device = &*member.job.backend;
            return collectives.into_iter().try_for_each(|collective| Solo.launch(device, collective, on));
        }
        // Messages of each way as one: all ranks take the ways in this order, so that no way waits for a later one.
        let mut batches: [Vec<Collective<'_>>; 3] = Default::default();
        for collective in collectives {
            batches[member.way(&collective) as usize].push(collective);
        }
        for (way, batch) in [Route::All, Route::Up, Route::Down].into_iter().zip(batches) {
            member.give(way, batch, on)?;
        }
        Ok(())
    }

    fn split(&self, colour: usize, key: usize) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(self.subgroup(colour, key)?))
    }

    fn connect_messages(&self) -> Result<()> {
        join::connect_messages(&self.member)
    }

    fn barrier(&self) -> Result<()> {
        self.member.control.barrier()
    }

    fn failure(&self) -> Option<Error> {
        let call = Call { kind: CallKind::Barrier, sequence: 0 };
        self.member.job.healthy(&self.member, &call).err().or_else(|| self.member.control.failure())
    }

    fn abort(&self, reason: &str) {
        self.member.give_up(reason);
    }
}

impl Member {
    pub(super) fn new(
        job: &Arc<NcclJob>,
        (control, inquest): (Arc<dyn Communicator>, Arc<dyn Communicator>),
        world: Vec<usize>,
        connections: Option<Vec<Connection>>,
    ) -> Arc<Self> {
        let (rank, size) = (control.rank(), control.size());
        let numbers = Numbers { collectives: 0, sends: vec![0; size], receives: vec![0; size] };
        Arc::new(Member {
            job: Arc::clone(job),
            group: job.next_group(),
            control,
            inquest,
            rank,
            size,
            world,
            connections: Mutex::new(connections),
            watched: Mutex::default(),
            numbers: Mutex::new(numbers),
        })
    }

    /// A rank by its number, and by its number among all where that is another one.
    pub(super) fn label(&self, rank: usize) -> String {
        match self.world.get(rank) {
            Some(world) if *world != rank => format!("rank {rank} (rank {world} of all)"),
            _ => format!("rank {rank}"),
        }
    }

    /// The collective fits the group, and its views this device and lane.
    fn check(&self, backend: &dyn Backend, collective: &Collective<'_>, on: Lane) -> Result<()> {
        collective.check(self.rank, self.size)?;
        let (name, device) = (collective.name(), &*self.job.backend);
        if backend.id() != device.id() {
            let (expected, got) = (device.name(), backend.name());
            return Err(Error::WrongDevice { op: name, expected, got });
        }
        let (read, write) = ranges(collective);
        for range in [read, write].into_iter().flatten() {
            device.accept(name, (range.device, range.lane), on)?;
        }
        match (read, write) {
            (Some(read), Some(write)) if read.overlaps(&write) => {
                Err(Error::argument(name, "the ranges overlap; give what is received a place of its own"))
            }
            _ => Ok(()),
        }
    }

    fn way(&self, collective: &Collective<'_>) -> Route {
        match collective {
            Collective::Send { to, .. } if *to > self.rank => Route::Up,
            Collective::Send { .. } => Route::Down,
            Collective::Recv { from, .. } if *from < self.rank => Route::Up,
            Collective::Recv { .. } => Route::Down,
            _ => Route::All,
        }
    }

    /// Queue collectives of one way on a lane, as one.
    fn give(&self, way: Route, mut batch: Vec<Collective<'_>>, on: Lane) -> Result<()> {
        let mut numbers = lock(&self.numbers);
        let Some(call) = numbers.take(&batch) else { return Ok(()) };
        self.job.healthy(self, &call)?;
        if way != Route::All && !self.has_messages() {
            let reason = "this group has no connections for messages: let all its ranks call connect_messages first";
            return Err(Error::argument(call.kind.name(), reason));
        }
        batch.retain(|collective| !is_empty(collective));
        if batch.is_empty() {
            return Ok(());
        }
        self.queue(way, &batch, call, on)
    }

    /// Queue collectives on a lane's stream, and let the watch see them end. Their views are of this device and lane.
    pub(super) fn queue(&self, way: Route, batch: &[Collective<'_>], call: Call, on: Lane) -> Result<()> {
        let spare = lock(&self.watched).spare(on)?;
        let queued = self.job.backend.exchange(on, spare, |stream| {
            // SAFETY: the views are made for this lane, so that their memory stays valid until the lane has run what is
            // queued.
            self.with(way, |connection| unsafe { connection.queue(batch, stream) })?;
            self.settle(way, &call)
        });
        match queued {
            Ok(span) => {
                lock(&self.watched).add(call, on, span);
                Ok(())
            }
            // Already told.
            Err(error @ Error::Communication { .. }) => Err(error),
            Err(error) => Err(self.fail(&call, Trouble::Library(error))),
        }
    }

    /// Whether there are connections for messages. Broken connections count: using them tells why they broke.
    pub(super) fn has_messages(&self) -> bool {
        lock(&self.connections).as_ref().is_none_or(|connections| connections.len() == join::WAYS)
    }

    pub(super) fn add_connections(&self, more: Vec<Connection>) -> Result<()> {
        match lock(&self.connections).as_mut() {
            Some(connections) => connections.extend(more),
            None => return Err(super::library::failure("join", "the connections of this group were broken off")),
        }
        Ok(())
    }

    fn with<T>(&self, way: Route, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let connections = lock(&self.connections);
        match connections.as_ref().and_then(|connections| connections.get(way as usize)) {
            Some(connection) => work(connection),
            None => Err(super::library::failure("collective", "the connection was broken off")),
        }
    }

    /// Wait until NCCL has queued what it was given: it may have to wait for the other ranks' hosts the first time.
    fn settle(&self, way: Route, call: &Call) -> Result<()> {
        let begin = Instant::now();
        let mut next_look = begin + SLICE;
        loop {
            if self.with(way, Connection::progress)? == Progress::Done {
                return Ok(());
            }
            self.job.healthy(self, call)?;
            let now = Instant::now();
            if now >= next_look {
                next_look = now + SLICE;
                if let Some(error) = self.control.failure() {
                    return Err(self.fail(call, Trouble::Control(error)));
                }
                if now - begin >= self.job.options.deadline {
                    return Err(self.fail(call, Trouble::Deadline));
                }
            }
            // As a rule NCCL takes some microseconds.
            if now - begin < PATIENCE { std::thread::yield_now() } else { std::thread::sleep(NAP) }
        }
    }

    /// Find the cause of some trouble, tell all ranks, and break everything off.
    pub(super) fn fail(&self, call: &Call, trouble: Trouble) -> Error {
        let inquiry = lock(&self.job.inquiry);
        if !self.job.has_failed() {
            let (reason, ranks) = self.examine(call, trouble);
            let ranks = ranks.into_iter().filter_map(|rank| self.world.get(rank).copied()).collect();
            let (operation, sequence) = (call.kind.to_string(), call.sequence);
            self.job.fail(Failure { group: self.group, operation, sequence, reason, ranks });
        }
        drop(inquiry);
        match self.job.healthy(self, call) {
            Err(error) => error,
            // Not reached: a failure was written down above.
            Ok(()) => super::library::failure("collective", "broken off"),
        }
    }

    fn give_up(&self, reason: &str) {
        let reason = format!("{} gave up: {reason}", self.label(self.rank));
        let ranks = self.world.get(self.rank).copied().into_iter().collect();
        self.control.abort(&reason);
        self.job.fail(Failure { group: self.group, operation: String::new(), sequence: 0, reason, ranks });
    }

    pub(super) fn has_work(&self) -> bool {
        lock(&self.watched).is_busy()
    }
}

impl Numbers {
    /// The first call of a batch, with its number; the others of the batch are counted too. None for no calls.
    fn take(&mut self, batch: &[Collective<'_>]) -> Option<Call> {
        let mut first = None;
        for collective in batch {
            let kind = CallKind::of(collective);
            let count = match kind {
                CallKind::Send(_, to) => &mut self.sends[to],
                CallKind::Recv(_, from) => &mut self.receives[from],
                _ => &mut self.collectives,
            };
            first = first.or(Some(Call { kind, sequence: *count }));
            *count += 1;
        }
        first
    }
}

/// Ranges that a collective reads and writes.
fn ranges(collective: &Collective<'_>) -> (Option<Range>, Option<Range>) {
    match collective {
        Collective::AllGather { send, recv }
        | Collective::ReduceScatter { send, recv, .. }
        | Collective::AllToAll { send, recv } => (Some(send.range), Some(recv.range)),
        Collective::AllReduce { data, .. }
        | Collective::Reduce { data, .. }
        | Collective::Broadcast { data, .. }
        | Collective::Recv { data, .. } => (None, Some(data.range)),
        Collective::Send { data, .. } => (Some(data.range), None),
    }
}

/// Nothing to move: then it is so on all ranks.
fn is_empty(collective: &Collective<'_>) -> bool {
    collective.signature().part == 0
}

impl Drop for NcclRank {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.member.give_up("its thread panicked");
        }
        self.member.job.leave();
    }
}
