//! A rank's place in a group: what all ranks see of each other, how they agree on a call, how a failure spreads.
//!
//! Defines [`Job`], what a rank has of the whole job, and [`Group`]. [`super::wait`] adds waiting, [`super::exchange`]
//! and [`super::pair`] move data, [`super::join`] makes both. Everything that other ranks wrote is compared or shown,
//! never used as a place in memory.

use super::HostOptions;
use super::failure::Failure;
use super::join::refused;
use super::layout::{DEPARTED, Layout};
use super::mapping::{Region, SharedFile};
use super::meeting::Meeting;
use super::wait::Patience;
use crate::comm::call::{Call, Channel, What, in_words};
use crate::comm::processes::Watch;
use crate::comm::turns::Ordered;
use crate::error::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// What the groups of a rank have in common.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) file: SharedFile,
    /// The region of the first group, of all ranks: its failures are everybody's.
    pub(super) root: Arc<Region>,
    pub(super) root_layout: Layout,
    pub(super) options: HostOptions,
    /// How to see whether a rank of the first group still lives; set when all have come.
    pub(super) watch: OnceLock<Vec<Watch>>,
    /// Where its process is a rank, if it came to a place with a name. Last: the place is left after the memory.
    pub(super) meeting: Option<Meeting>,
}

/// One rank in one group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) job: Arc<Job>,
    pub(super) region: Arc<Region>,
    pub(super) layout: Layout,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Where the region begins in the file; zero for the first group.
    offset: usize,
    /// The ranks' numbers in the first group.
    pub(super) world: Vec<usize>,
    /// The first error of this rank in this group: what every later call ends with.
    broken: OnceLock<Error>,
    rings_reserved: AtomicBool,
    pub(super) patience: Patience,
}

/// The ranks of a set, ascending.
pub(super) fn members(set: u64) -> impl Iterator<Item = usize> {
    (0..64).filter(move |rank| set >> rank & 1 == 1)
}

/// The set of those of `size` ranks for which a condition holds.
pub(super) fn ranks_where(size: usize, condition: impl Fn(usize) -> bool) -> u64 {
    (0..size).filter(|rank| condition(*rank)).fold(0, |set, rank| set | 1 << rank)
}

impl Group {
    /// The place of `rank` in the region at `offset` of the job's file.
    pub(super) fn new(
        job: Arc<Job>,
        (region, offset): (Arc<Region>, usize),
        layout: Layout,
        (rank, world): (usize, Vec<usize>),
    ) -> Self {
        let size = world.len();
        let (broken, rings_reserved) = (OnceLock::new(), AtomicBool::new(false));
        let patience = Patience::new(size);
        Group { job, region, layout, rank, size, offset, world, broken, rings_reserved, patience }
    }

    /// All ranks but this one.
    pub(super) fn others(&self) -> u64 {
        ranks_where(self.size, |rank| rank != self.rank)
    }

    /// A rank by its number, and by its number among all where that is another one.
    pub(super) fn label(&self, rank: usize) -> String {
        match self.world.get(rank) {
            Some(world) if *world != rank => format!("rank {rank} (rank {world} of all)"),
            _ => format!("rank {rank}"),
        }
    }

    /// Several ranks in words.
    pub(super) fn labels(&self, set: u64) -> String {
        members(set).map(|rank| self.label(rank)).collect::<Vec<_>>().join(" and ")
    }

    /// Show the other ranks what this one calls. Two words of its own go with it.
    pub(super) fn publish(&self, channel: Channel, call: &Call, extra: [u64; 2]) {
        let place = self.layout.record(self.rank, channel as usize, call.sequence);
        let words = call.what.words().into_iter().chain(extra);
        for (word, value) in (1..).zip(words) {
            self.region.word(place + 8 * word).store(value, Ordering::Relaxed);
        }
        // The place was last used two calls ago. Every other rank has read that: it came to the call between, which
        // this rank has finished, after it.
        self.region.word(place).store(call.sequence + 1, Ordering::Release);
        self.notify();
    }

    /// What a rank has published for a call, if it has come to it: its words, then those of its own.
    pub(super) fn record(&self, rank: usize, channel: Channel, sequence: u64) -> Option<[u64; 4]> {
        let place = self.layout.record(rank, channel as usize, sequence);
        let come = self.region.word(place).load(Ordering::Acquire) == sequence + 1;
        come.then(|| [1, 2, 3, 4].map(|word| self.region.word(place + 8 * word).load(Ordering::Relaxed)))
    }

    /// How many calls of a channel a rank has come to.
    pub(super) fn calls_of(&self, rank: usize, channel: Channel) -> u64 {
        let come = |parity| {
            let place = self.layout.record(rank, channel as usize, parity);
            self.region.word(place).load(Ordering::Relaxed)
        };
        come(0).max(come(1))
    }

    /// Wait until all ranks have come to a call that this one has published, and see that it is the same one.
    ///
    /// # Errors
    /// Another call on some rank; as for every wait.
    pub(super) fn agree(&self, channel: Channel, call: &Call) -> Result<()> {
        let come = |rank| self.record(rank, channel, call.sequence);
        self.wait(call, || ranks_where(self.size, |rank| come(rank).is_none()))?;
        let words = call.what.words();
        for rank in members(self.others()) {
            let Some([code, part, ..]) = come(rank) else { continue };
            if [code, part] != words {
                let (own, other) = (self.label(self.rank), self.label(rank));
                let reason = format!(
                    "{own} called {}, {other} called {}; all ranks have to make the same calls in the same order",
                    call.what,
                    in_words([code, part])
                );
                return Err(self.fail(call, 1 << self.rank | 1 << rank, reason));
            }
        }
        Ok(())
    }

    /// Take memory for this rank's rings, once.
    ///
    /// # Errors
    /// The system has no more.
    pub(super) fn reserve_rings(&self, call: &Call) -> Result<()> {
        if self.rings_reserved.load(Ordering::Relaxed) {
            return Ok(());
        }
        let start = self.offset + self.layout.slot(self.rank, 0, 0);
        self.reserve(call, start, self.layout.rings_bytes())?;
        self.rings_reserved.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Take memory for messages to a rank.
    ///
    /// # Errors
    /// The system has no more.
    pub(super) fn reserve_pair(&self, call: &Call, to: usize) -> Result<()> {
        let start = self.offset + self.layout.pair_data(self.rank, to, 0);
        self.reserve(call, start, self.layout.pair_bytes())
    }

    fn reserve(&self, call: &Call, start: usize, bytes: usize) -> Result<()> {
        self.job.file.reserve(start, bytes).map_err(|error| self.fail_with(call, refused("shared memory", &error)))
    }

    /// Nothing has failed so far, on any rank.
    ///
    /// # Errors
    /// The first failure, in the words of whoever found it.
    pub(super) fn healthy(&self, call: &Call) -> Result<()> {
        if let Some(first) = self.broken.get() {
            return Err(again(call, first));
        }
        let is_root = self.offset == 0;
        let keep = |error: Error| Err(self.broken.get_or_init(|| error).clone());
        let failure = match Failure::read(&self.region) {
            None if is_root => return Ok(()),
            None => match Failure::read(&self.job.root) {
                None => return Ok(()),
                Some(failure) if failure.has_exit_code() => return keep(failure.rank_ended(Some)),
                Some(failure) => {
                    let ranks = ranks_where(self.size, |rank| failure.ranks >> self.world[rank] & 1 == 1);
                    Failure { ranks, reason: format!("the group of all ranks failed: {}", failure.reason), ..failure }
                }
            },
            Some(failure) if failure.has_exit_code() => {
                return keep(failure.rank_ended(|rank| self.world.get(rank).copied()));
            }
            Some(failure) => failure,
        };
        let operation = call.what.to_string();
        let same_call = failure.operation == operation && failure.sequence == call.sequence;
        let reason = match same_call || failure.operation.is_empty() {
            true => failure.reason,
            false => format!("{} (number {}) failed: {}", failure.operation, failure.sequence, failure.reason),
        };
        let ranks = members(failure.ranks).filter(|rank| *rank < self.size).collect();
        keep(Error::Communication { operation, sequence: call.sequence, reason, ranks })
    }

    /// This rank found that something is wrong with some ranks: every rank will know.
    pub(super) fn fail(&self, call: &Call, ranks: u64, reason: String) -> Error {
        let operation = call.what.to_string();
        let failure =
            Failure { operation: operation.clone(), sequence: call.sequence, code: 0, reason: reason.clone(), ranks };
        failure.write(&self.region);
        self.wake_all();
        let ranks = members(ranks).collect();
        let error = Error::Communication { operation, sequence: call.sequence, reason, ranks };
        self.broken.get_or_init(|| error).clone()
    }

    /// As [`Group::fail`], for whatever else went wrong in a call.
    pub(super) fn fail_with(&self, call: &Call, error: Error) -> Error {
        // Where the system refuses this rank something, the rank ends by that and aborts the group. If the others heard
        // of it here, they could be the first to end, and the program would report a lost rank in place of the limit.
        if self.broken.get().is_none() && !matches!(error, Error::Refused { .. }) {
            let reason = format!("{} failed: {error}", self.label(self.rank));
            self.fail(call, 1 << self.rank, reason);
        }
        error
    }

    /// What has failed so far, or the ranks whose processes have ended and did not leave before. Waits for nobody.
    pub(super) fn failure(&self, sequence: u64) -> Option<Error> {
        let call = Call { what: What::Barrier, sequence };
        if let Err(error) = self.healthy(&call) {
            return Some(error);
        }
        let others = self.others();
        let ended = self.ended(others) & !self.left(others);
        if ended == 0 {
            return None;
        }
        let who = members(ended).map(|rank| format!("the process of {}", self.label(rank)));
        let reason = format!("{} has ended", who.collect::<Vec<_>>().join(" and "));
        Some(self.fail(&call, ended, reason))
    }

    /// This rank gives up, with an exit code for all ranks or zero.
    pub(super) fn give_up(&self, code: u8, reason: &str) {
        let reason = format!("{} gave up: {reason}", self.label(self.rank));
        let failure = Failure { operation: String::new(), sequence: 0, code, reason, ranks: 1 << self.rank };
        failure.write(&self.region);
        self.wake_all();
    }

    /// Those of `set` that have left.
    pub(super) fn left(&self, set: u64) -> u64 {
        let left = |rank| self.region.word(self.layout.left(rank)).load(Ordering::Acquire) != 0;
        ranks_where(self.size, |rank| set >> rank & 1 == 1 && left(rank))
    }

    /// Those of `set` whose processes have ended.
    pub(super) fn ended(&self, set: u64) -> u64 {
        let Some(watch) = self.job.watch.get() else { return 0 };
        let ended = |rank: usize| watch.get(self.world[rank]).is_some_and(Watch::has_ended);
        ranks_where(self.size, |rank| set >> rank & 1 == 1 && ended(rank))
    }

    /// Those without which `set` cannot go on: a rank that waits is not to blame, whom it waits for is.
    pub(super) fn blame(&self, set: u64) -> u64 {
        let waits_for = |rank| {
            let waits_for = self.region.word(self.layout.waits_for(rank)).load(Ordering::Relaxed);
            waits_for & ranks_where(self.size, |_| true)
        };
        let (mut reached, mut new) = (set, set);
        while new != 0 {
            let next = members(new).map(waits_for).fold(0, |all, ranks| all | ranks);
            new = next & !reached;
            reached |= next;
        }
        match ranks_where(self.size, |rank| rank != self.rank && reached >> rank & 1 == 1 && waits_for(rank) == 0) {
            // A circle of ranks that wait for each other.
            0 => set,
            blamed => blamed,
        }
    }
}

impl Ordered for Group {
    fn healthy(&self, call: &Call) -> Result<()> {
        Group::healthy(self, call)
    }

    fn deadline(&self) -> Duration {
        self.job.options.deadline
    }

    fn own_label(&self) -> String {
        self.label(self.rank)
    }

    fn fail_here(&self, call: &Call, reason: String) -> Error {
        self.fail(call, 1 << self.rank, reason)
    }
}

/// What a call after the first failure ends with.
fn again(call: &Call, first: &Error) -> Error {
    let Error::Communication { operation, sequence, reason, ranks } = first else { return first.clone() };
    let (own, ranks) = (call.what.to_string(), ranks.clone());
    let reason = match own == *operation && call.sequence == *sequence {
        true => reason.clone(),
        false => format!("the group is broken since {operation} (number {sequence}): {reason}"),
    };
    Error::Communication { operation: own, sequence: call.sequence, reason, ranks }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.region.word(self.layout.left(self.rank)).store(1, Ordering::Release);
        self.wake_all();
        let departed = self.region.word(DEPARTED).fetch_add(1, Ordering::AcqRel) + 1;
        // The first group's memory ends with the file.
        if departed == self.size as u64
            && self.offset != 0
            && let Err(error) = self.job.file.release(self.offset, self.layout.bytes())
        {
            tracing::debug!(%error, "memory of a group stays until the job ends");
        }
    }
}
