//! A rank in a group over shared memory: what the ranks see of each other.
//!
//! [`super::wait`] adds waiting, [`super::rings`] and [`super::pair`] move data, [`super::join`] makes both. Everything
//! that other ranks wrote is compared or shown, never used as an offset into memory.

use super::join::refused;
use super::layout::{DEPARTED, Layout, RINGS};
use super::mapping::{Region, SharedFile};
use super::meeting::Meeting;
use super::rings::Rings;
use super::wait::Patience;
use super::{HostOptions, Traffic, failure, join};
use crate::comm::call::{Call, CallKind, Channel, NAMES};
use crate::comm::engine::{self, CollectiveKind, Failure, Group, Membership, WORLD};
use crate::comm::processes::Watch;
use crate::comm::queue::lock;
use crate::error::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// State shared by the groups of a rank.
#[derive(Debug)]
pub(super) struct HostJob {
    pub(super) file: SharedFile,
    /// The region of the first group, of all ranks: its failures end all groups.
    pub(super) root: Arc<Region>,
    pub(super) root_layout: Layout,
    pub(super) options: HostOptions,
    /// Watches that show whether a rank of the first group still lives; set when all have come.
    pub(super) watch: OnceLock<Vec<Watch>>,
    /// The file at which the processes of the job met, if there is one. Last: it is left after the memory.
    pub(super) meeting: Option<Meeting>,
}

#[derive(Debug)]
pub(super) struct SharedGroup {
    pub(super) job: Arc<HostJob>,
    pub(super) region: Arc<Region>,
    pub(super) layout: Layout,
    /// The group's number is the offset of its region in the file; zero for the group of all ranks.
    pub(super) members: Membership,
    rings_reserved: AtomicBool,
    pub(super) patience: Patience,
    /// The next chunk in each ring, and of the messages to and from each rank. Used by one call at a time.
    next_in_rings: Mutex<[u64; RINGS]>,
    next_sent: Vec<Mutex<u64>>,
    next_received: Vec<Mutex<u64>>,
    traffic: Mutex<[Traffic; NAMES.len()]>,
}

pub(super) fn ranks_in(set: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |rank| set >> rank & 1 == 1)
}

/// The set of the ranks below `size` for which a condition holds.
pub(super) fn ranks_where(size: usize, condition: impl Fn(usize) -> bool) -> u64 {
    (0..size).filter(|rank| condition(*rank)).fold(0, |set, rank| set | 1 << rank)
}

impl SharedGroup {
    /// A rank in the group whose region is at `offset` of the job's file.
    pub(super) fn new(
        job: Arc<HostJob>,
        (region, offset): (Arc<Region>, usize),
        layout: Layout,
        (rank, world): (usize, Vec<usize>),
    ) -> Self {
        let counts = || (0..world.len()).map(|_| Mutex::new(0)).collect();
        SharedGroup {
            job,
            region,
            layout,
            rings_reserved: AtomicBool::new(false),
            patience: Patience::new(world.len()),
            next_in_rings: Mutex::default(),
            next_sent: counts(),
            next_received: counts(),
            traffic: Mutex::default(),
            members: Membership::new(offset as u64, rank, world),
        }
    }

    pub(super) fn others(&self) -> u64 {
        ranks_where(self.members.size, |rank| rank != self.members.rank)
    }

    fn offset(&self) -> usize {
        self.members.group as usize
    }

    fn record(&self, rank: usize, channel: Channel, sequence: u64) -> Option<[u64; 4]> {
        let record = self.layout.record(rank, channel as usize, sequence);
        let has_come = self.region.slot(record).load(Ordering::Acquire) == sequence + 1;
        has_come.then(|| [1, 2, 3, 4].map(|word| self.region.slot(record + 8 * word).load(Ordering::Relaxed)))
    }

    pub(super) fn reserve_rings(&self, call: &Call) -> Result<()> {
        if self.rings_reserved.load(Ordering::Relaxed) {
            return Ok(());
        }
        let start = self.offset() + self.layout.slot(self.members.rank, 0, 0);
        self.reserve(call, start, self.layout.rings_bytes())?;
        self.rings_reserved.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn reserve_pair(&self, call: &Call, to: usize) -> Result<()> {
        let start = self.offset() + self.layout.pair_data(self.members.rank, to, 0);
        self.reserve(call, start, self.layout.pair_bytes())
    }

    fn reserve(&self, call: &Call, start: usize, bytes: usize) -> Result<()> {
        self.job.file.reserve(start, bytes).map_err(|error| self.fail_with(call, refused("shared memory", &error)))
    }

    pub(super) fn left(&self, set: u64) -> u64 {
        let left = |rank| self.region.slot(self.layout.left(rank)).load(Ordering::Acquire) != 0;
        ranks_where(self.members.size, |rank| set >> rank & 1 == 1 && left(rank))
    }

    pub(super) fn ended(&self, set: u64) -> u64 {
        let Some(watch) = self.job.watch.get() else { return 0 };
        let ended = |rank: usize| watch.get(self.members.world[rank]).is_some_and(Watch::has_ended);
        ranks_where(self.members.size, |rank| set >> rank & 1 == 1 && ended(rank))
    }

    /// Traffic of this rank so far, by name of operation.
    pub(super) fn traffic(&self) -> Vec<(&'static str, Traffic)> {
        let traffic = *lock(&self.traffic);
        NAMES.into_iter().zip(traffic).filter(|(_, traffic)| traffic.calls > 0).collect()
    }
}

impl Group for SharedGroup {
    fn members(&self) -> &Membership {
        &self.members
    }

    fn deadline(&self) -> Duration {
        self.job.options.deadline
    }

    fn reported(&self) -> Option<Failure> {
        failure::read(&self.region).or_else(|| match self.members.group {
            WORLD => None,
            _ => failure::read(&self.job.root),
        })
    }

    fn report(&self, failure: Failure) {
        failure::write(&failure, &self.region);
        self.wake_all();
    }

    fn lost(&self) -> Vec<usize> {
        let others = self.others();
        // Asked in this order: a rank may leave and end between the two.
        let ended = self.ended(others);
        ranks_in(ended & !self.left(others)).collect()
    }

    fn calls_of(&self, rank: usize, channel: Channel) -> u64 {
        let count = |parity| {
            let record = self.layout.record(rank, channel as usize, parity);
            self.region.slot(record).load(Ordering::Relaxed)
        };
        count(0).max(count(1))
    }

    fn publish(&self, channel: Channel, call: &Call, extra: [u64; 2]) {
        let record = self.layout.record(self.members.rank, channel as usize, call.sequence);
        let words = call.kind.encoded().into_iter().chain(extra);
        for (word, value) in (1..).zip(words) {
            self.region.slot(record + 8 * word).store(value, Ordering::Relaxed);
        }
        // The record was last used two calls ago. Every other rank has read that one: it came to the call between,
        // which this rank has finished, after reading it.
        self.region.slot(record).store(call.sequence + 1, Ordering::Release);
        self.notify();
    }

    fn await_calls(&self, channel: Channel, call: &Call) -> Result<()> {
        let missing = |rank| self.record(rank, channel, call.sequence).is_none();
        self.wait(call, || ranks_where(self.members.size, missing))
    }

    fn published(&self, rank: usize, channel: Channel, call: &Call) -> Option<[u64; 4]> {
        self.record(rank, channel, call.sequence)
    }

    fn split(&self, color: u64, key: u64, sequence: u64) -> Result<(Self, u64)> {
        join::split(self, color, key, sequence)
    }

    fn run(&self, call: &Call, kind: Option<CollectiveKind>, send: &[u8], data: &mut [u8]) -> Result<Duration> {
        let begin = Instant::now();
        match (call.kind, kind) {
            (CallKind::Send(_, to), _) => {
                self.send(call, to, send, &mut lock(&self.next_sent[to]))?;
                Ok(begin.elapsed())
            }
            (CallKind::Recv(_, from), _) => self.receive(call, from, data, &mut lock(&self.next_received[from])),
            (CallKind::Collective(signature), Some(kind)) => {
                let mut rings = Rings { group: self, call, next: &mut lock(&self.next_in_rings), met: begin };
                engine::run(kind, signature.dtype, send, data, &mut rings)?;
                Ok(rings.met.elapsed())
            }
            _ => Ok(Duration::ZERO),
        }
    }

    fn completed(&self, call: &Call, bytes: usize, begin: Instant, under_way: Option<Duration>) -> Result<()> {
        if let (Some(link), Some(under_way)) = (self.job.options.link, under_way)
            && self.members.size > 1
        {
            // The receiver of a message is as slow as its sender.
            let moved = if let CallKind::Recv(signature, _) = call.kind { signature.bytes() } else { bytes };
            self.pause(call, link.time(moved).saturating_sub(under_way))?;
        }
        if let Some(index) = NAMES.iter().position(|name| *name == call.kind.name()) {
            let traffic = &mut lock(&self.traffic)[index];
            traffic.calls += 1;
            traffic.bytes += bytes as u64;
            traffic.seconds += begin.elapsed().as_secs_f64();
        }
        Ok(())
    }
}

impl Drop for SharedGroup {
    fn drop(&mut self) {
        self.region.slot(self.layout.left(self.members.rank)).store(1, Ordering::Release);
        self.wake_all();
        let departed = self.region.slot(DEPARTED).fetch_add(1, Ordering::AcqRel) + 1;
        // The first group's memory ends with the file.
        if departed == self.members.size as u64
            && self.members.group != WORLD
            && let Err(error) = self.job.file.release(self.offset(), self.layout.bytes())
        {
            tracing::debug!(%error, "memory of a group stays until the job ends");
        }
    }
}
