//! One process of an MPI job as a [`Communicator`]: gives collectives to lanes and keeps them in order.
//!
//! Defines [`MpiRank`]. What runs on a lane holds on to the rank's place in its group, so that a handle may be dropped
//! while work is on its way; the process leaves the job when the last of both has ended.

use super::MpiOptions;
use super::collectives;
use super::exchange::Exchange;
use super::group::Group;
use super::join;
use crate::backend::{Backend, Lane};
use crate::comm::call::{Call, What};
use crate::comm::plan::{Plan, launch};
use crate::comm::turns::{CallTurns, lock};
use crate::comm::{Collective, Communicator};
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex};

/// This process's handle of a group of an MPI job. It belongs to the rank's thread; when it is dropped by a panic
/// there, the other ranks' calls fail and name this rank. When the last handle of a process is dropped, it waits for
/// the other ranks to come to their ends too, as MPI demands.
#[derive(Debug)]
pub struct MpiRank {
    member: Arc<Member>,
}

/// What a rank's handle and its work on lanes share.
#[derive(Debug)]
struct Member {
    group: Group,
    turns: CallTurns,
    /// Pieces sent to each rank.
    sent: Vec<Mutex<u64>>,
    /// Meetings of the host so far.
    meetings: Mutex<u64>,
}

impl MpiRank {
    /// Start MPI in this process, which a launcher of MPI has started, and wait until all ranks have come. Once in a
    /// process: MPI cannot be started again. Started by hand, a process is a job of its own, with one rank.
    ///
    /// # Errors
    /// Options outside their ranges, or others than those of another rank; an MPI without threads, or one that cannot
    /// start; ranks that do not come before the deadline. (Where MPI cannot start at all, it usually ends the process
    /// itself, in its own words.)
    pub fn join(options: MpiOptions) -> Result<Self> {
        Ok(MpiRank::new(join::join(options)?))
    }

    fn new(group: Group) -> Self {
        let sent = (0..group.size).map(|_| Mutex::default()).collect();
        let member = Member { turns: CallTurns::new(group.size), group, sent, meetings: Mutex::default() };
        MpiRank { member: Arc::new(member) }
    }

    /// As [`Communicator::split`], with the type of this rank.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    pub fn subgroup(&self, colour: usize, key: usize) -> Result<MpiRank> {
        let mut meetings = lock(&self.member.meetings);
        let group = self.member.group.split(colour as u64, key as u64, *meetings)?;
        *meetings += 1;
        Ok(MpiRank::new(group))
    }

    /// As [`Communicator::abort`], with the exit code of this rank, which the other ranks' calls return as
    /// [`Error::RankEnded`]; after a lost rank they name that one.
    pub fn abort_with(&self, code: u8, reason: &str) {
        self.member.group.give_up(code, reason);
    }

    /// End this process and all others of the job with an exit code, after a failure and when the user has been told.
    /// Waits a moment for the other ranks to tell theirs. A process that returned from `main` instead would end well,
    /// but launchers differ in what they make of the others, one that is stopped above all.
    pub fn end_job(&self, code: u8) -> ! {
        self.member.group.seat.end_job(i32::from(code))
    }
}

impl Communicator for MpiRank {
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
        let member = &self.member;
        let Group { rank, size, .. } = member.group;
        launch(&member.group, (rank, size), &member.turns, backend, (collective, on), |call, plan| {
            let worker = Arc::clone(member);
            Box::new(move |send, data| worker.run(&call, plan, send, data))
        })
    }

    fn split(&self, colour: usize, key: usize) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(self.subgroup(colour, key)?))
    }

    fn barrier(&self) -> Result<()> {
        let mut meetings = lock(&self.member.meetings);
        self.member.group.meet(&Call { what: What::Barrier, sequence: *meetings }, [0; 2])?;
        *meetings += 1;
        Ok(())
    }

    fn failure(&self) -> Option<Error> {
        self.member.group.failure()
    }

    fn abort(&self, reason: &str) {
        self.member.group.give_up(0, reason);
    }
}

impl Member {
    /// One call, on the lane's thread.
    fn run(&self, call: &Call, plan: Option<Plan>, send: &[u8], data: &mut [u8]) -> Result<()> {
        let _turn = self.turns.of(&call.what).wait(&self.group, call)?;
        self.group.healthy(call)?;
        self.exchange(call, plan, send, data).map_err(|error| self.group.fail_with(call, error))
    }

    fn exchange(&self, call: &Call, plan: Option<Plan>, send: &[u8], data: &mut [u8]) -> Result<()> {
        let group = &self.group;
        match (call.what, plan) {
            (What::Send(_, to), _) => group.send(call, to, send, &mut lock(&self.sent[to])),
            (What::Recv(_, from), _) => group.receive(call, from, data),
            (What::Collective(_), _) if group.size == 1 => {
                if !send.is_empty() {
                    data.copy_from_slice(send);
                }
                Ok(())
            }
            (What::Collective(signature), Some(plan)) => {
                collectives::run(plan, signature.dtype, send, data, &mut Exchange::begin(group, call))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for MpiRank {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The exit code of a defect.
            self.member.group.give_up(1, "its thread panicked");
        }
    }
}
