//! One rank as a [`Communicator`]: gives collectives to lanes and keeps count of them.
//!
//! Defines [`HostRank`]. What runs on a lane holds on to the rank's place in its group, so that a handle may be dropped
//! while work is on its way; the place is left when the last of both has ended.

use super::collectives;
use super::exchange::Rings;
use super::group::Group;
use super::join::{self, Place};
use super::layout::RINGS;
use super::{HostOptions, Traffic};
use crate::backend::{Backend, Lane};
use crate::comm::call::{Call, NAMES, What};
use crate::comm::plan::{Plan, launch};
use crate::comm::turns::{CallTurns, lock};
use crate::comm::{Collective, Communicator};
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A rank's handle of its group. It belongs to the rank's thread; when it is dropped by a panic there, the other ranks'
/// calls fail and name this rank.
#[derive(Debug)]
pub struct HostRank {
    member: Arc<Member>,
}

/// What a rank's handle and its work on lanes share.
#[derive(Debug)]
struct Member {
    group: Group,
    turns: CallTurns,
    /// The next chunk in each ring, of each rank's messages to and from here: used by whose turn it is.
    next_in_rings: Mutex<[u64; RINGS]>,
    next_sent: Vec<Mutex<u64>>,
    next_received: Vec<Mutex<u64>>,
    /// Meetings of the host so far.
    meetings: Mutex<u64>,
    traffic: Mutex<[Traffic; NAMES.len()]>,
}

impl HostRank {
    pub(super) fn new(group: Group) -> Self {
        let counts = || (0..group.size).map(|_| Mutex::new(0)).collect();
        let member = Member {
            turns: CallTurns::new(group.size),
            next_in_rings: Mutex::default(),
            next_sent: counts(),
            next_received: counts(),
            meetings: Mutex::default(),
            traffic: Mutex::default(),
            group,
        };
        HostRank { member: Arc::new(member) }
    }

    /// Join the ranks of this machine as rank `rank` of `size`, and wait until all have come.
    ///
    /// # Errors
    /// Arguments outside their ranges; a place that cannot be used, or where this rank or other options are already;
    /// ranks that do not come before the deadline.
    pub fn join(place: impl Into<Place>, rank: usize, size: usize, options: HostOptions) -> Result<Self> {
        Ok(HostRank::new(join::join(place.into(), rank, size, options)?))
    }

    /// As [`Communicator::split`], with the type of this rank.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    pub fn subgroup(&self, colour: usize, key: usize) -> Result<HostRank> {
        let mut meetings = lock(&self.member.meetings);
        let begin = Instant::now();
        let group = self.member.group.split(colour as u64, key as u64, *meetings)?;
        *meetings += 2;
        self.member.count(&What::Split, 0, begin);
        Ok(HostRank::new(group))
    }

    /// As [`Communicator::abort`], with the exit code of this rank, which the other ranks' calls return as
    /// [`Error::RankEnded`]; after a lost rank they name that one.
    pub fn abort_with(&self, code: u8, reason: &str) {
        self.member.group.give_up(code, reason);
    }

    /// What this rank has done in this group so far, by name of operation.
    pub fn traffic(&self) -> Vec<(&'static str, Traffic)> {
        let traffic = *lock(&self.member.traffic);
        NAMES.into_iter().zip(traffic).filter(|(_, traffic)| traffic.calls > 0).collect()
    }
}

impl Communicator for HostRank {
    fn rank(&self) -> usize {
        self.member.group.rank
    }

    fn size(&self) -> usize {
        self.member.group.size
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn launch(&self, backend: &dyn Backend, collective: Collective<'_>, on: Lane) -> Result<()> {
        let (member, bytes) = (&self.member, collective.bytes());
        let Group { rank, size, .. } = member.group;
        launch(&member.group, (rank, size), &member.turns, backend, (collective, on), |call, plan| {
            let worker = Arc::clone(member);
            Box::new(move |send, data| worker.run(&call, plan, bytes, send, data))
        })
    }

    fn split(&self, colour: usize, key: usize) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(self.subgroup(colour, key)?))
    }

    fn barrier(&self) -> Result<()> {
        let mut meetings = lock(&self.member.meetings);
        let begin = Instant::now();
        self.member.group.meet(&Call { what: What::Barrier, sequence: *meetings }, [0; 2])?;
        *meetings += 1;
        self.member.count(&What::Barrier, 0, begin);
        Ok(())
    }

    fn failure(&self) -> Option<Error> {
        // Not the lock of a meeting that may be going on: which number it has is of no interest to a failure between
        // calls.
        self.member.group.failure(0)
    }

    fn abort(&self, reason: &str) {
        self.member.group.give_up(0, reason);
    }
}

impl Member {
    /// One call, on the lane's thread.
    fn run(&self, call: &Call, plan: Option<Plan>, bytes: usize, send: &[u8], data: &mut [u8]) -> Result<()> {
        let _turn = self.turns.of(&call.what).wait(&self.group, call)?;
        self.group.healthy(call)?;
        let begin = Instant::now();
        let result = self.exchange(call, plan, send, data).map_err(|error| self.group.fail_with(call, error));
        let under_way = result?;
        if let Some(link) = self.group.job.options.link
            && self.group.size > 1
        {
            let bytes = if let What::Recv(..) = call.what { data.len() } else { bytes };
            self.group.pause(call, link.time(bytes).saturating_sub(under_way))?;
        }
        self.count(&call.what, bytes, begin);
        Ok(())
    }

    /// Move the data. Returns how long they have been under way: since all ranks were there, or since a message was
    /// sent.
    fn exchange(&self, call: &Call, plan: Option<Plan>, send: &[u8], data: &mut [u8]) -> Result<Duration> {
        let (group, begin) = (&self.group, Instant::now());
        match (call.what, plan) {
            (What::Send(_, to), _) => {
                group.send(call, to, send, &mut lock(&self.next_sent[to]))?;
                Ok(begin.elapsed())
            }
            (What::Recv(_, from), _) => group.receive(call, from, data, &mut lock(&self.next_received[from])),
            (What::Collective(signature), Some(plan)) => {
                let mut rings = Rings { group, call, next: &mut lock(&self.next_in_rings), met: begin };
                collectives::run(plan, signature.dtype, send, data, &mut rings)?;
                Ok(rings.met.elapsed())
            }
            _ => Ok(Duration::ZERO),
        }
    }

    fn count(&self, what: &What, bytes: usize, begin: Instant) {
        if let Some(place) = NAMES.iter().position(|name| *name == what.name()) {
            let traffic = &mut lock(&self.traffic)[place];
            traffic.calls += 1;
            traffic.bytes += bytes as u64;
            traffic.seconds += begin.elapsed().as_secs_f64();
        }
    }
}

impl Drop for HostRank {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The exit code of a defect.
            self.member.group.give_up(1, "its thread panicked");
        }
    }
}
