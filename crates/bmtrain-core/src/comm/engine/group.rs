//! A rank in a group: how the ranks agree on a call, and what a failure looks like from here.

use super::{CollectiveKind, Failure};
use crate::comm::call::{Call, CallKind, Channel, describe};
use crate::error::{Error, Result};
use std::fmt::Debug;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Number of the group of all ranks.
pub(crate) const WORLD: u64 = 0;

/// A rank's place in its group.
#[derive(Debug)]
pub(crate) struct Membership {
    /// Number of the group; [`WORLD`] for all ranks.
    pub(crate) group: u64,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) world: Vec<usize>,
    /// The host of each rank of all; empty where messages are to name none.
    hosts: Arc<[String]>,
    /// The first error of this rank in this group: every later call ends with it.
    first_error: OnceLock<Error>,
}

impl Membership {
    pub(crate) fn new(group: u64, rank: usize, world: Vec<usize>) -> Self {
        Membership { group, rank, size: world.len(), world, hosts: Arc::default(), first_error: OnceLock::new() }
    }

    /// With the host of each rank of all, which messages then name.
    pub(crate) fn on(self, hosts: Arc<[String]>) -> Self {
        Membership { hosts, ..self }
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.rank;
        (0..self.size).filter(move |rank| *rank != own)
    }

    /// The number in this group of a rank of all.
    pub(crate) fn rank_of(&self, world: usize) -> Option<usize> {
        self.world.iter().position(|rank| *rank == world)
    }

    /// A rank by its number, by its number among all where that is another one, and by its host where that is known.
    pub(crate) fn label(&self, rank: usize) -> String {
        let world = self.world.get(rank).copied().unwrap_or(rank);
        let host = self.hosts.get(world).filter(|host| !host.is_empty());
        let on = host.map_or_else(String::new, |host| format!(" on {host}"));
        if world == rank { format!("rank {rank}{on}") } else { format!("rank {rank} (rank {world} of all){on}") }
    }

    fn labels(&self, ranks: &[usize], prefix: &str) -> String {
        ranks.iter().map(|rank| format!("{prefix}{}", self.label(*rank))).collect::<Vec<_>>().join(" and ")
    }

    fn keep(&self, error: Error) -> Error {
        self.first_error.get_or_init(|| error).clone()
    }

    fn error(&self, call: &Call, failure: Failure) -> Error {
        if failure.has_exit_code() {
            let rank = failure.ranks.first().copied().unwrap_or(0);
            return Error::RankEnded { rank, code: failure.code, reason: failure.reason };
        }
        let (operation, sequence) = (call.kind.to_string(), call.sequence);
        let is_here = failure.group == self.group;
        let is_this_call = is_here && failure.operation == operation && failure.sequence == sequence;
        let mut reason = match is_this_call || failure.operation.is_empty() {
            true => failure.reason,
            false => format!("{} (number {}) failed: {}", failure.operation, failure.sequence, failure.reason),
        };
        if !is_here {
            let whose = if failure.group == WORLD { "the group of all ranks" } else { "another group of the job" };
            reason = format!("{whose} failed: {reason}");
        }
        let ranks = failure.ranks.iter().filter_map(|rank| self.rank_of(*rank)).collect();
        Error::Communication { operation, sequence, reason, ranks }
    }
}

/// A rank in a group, and how it reaches the others. The methods without a body are the transport's.
pub(crate) trait Group: Debug + Send + Sync + Sized + 'static {
    /// This rank's place in the group.
    fn members(&self) -> &Membership;

    fn deadline(&self) -> Duration;

    fn reported(&self) -> Option<Failure>;

    /// Report a failure to all ranks, unless there has been one.
    fn report(&self, failure: Failure);

    /// Other ranks whose processes have ended without leaving the group. Does not wait.
    fn lost(&self) -> Vec<usize>;

    /// Number of calls of a channel that a rank has come to.
    fn calls_of(&self, rank: usize, channel: Channel) -> u64;

    /// Publish a call of this rank to the other ranks, with two integers of the caller.
    fn publish(&self, channel: Channel, call: &Call, extra: [u64; 2]);

    /// Wait until all other ranks have published their call of this number.
    fn await_calls(&self, channel: Channel, call: &Call) -> Result<()>;

    /// A rank's publication: the two integers of its call and the two of its caller. Can be read once.
    fn published(&self, rank: usize, channel: Channel, call: &Call) -> Option<[u64; 4]>;

    /// The group of the ranks that call with this `color`, in the order of `key` and then of their ranks, and how many
    /// meetings of the host it took; `sequence` is the number of the first.
    fn split(&self, color: u64, key: u64, sequence: u64) -> Result<(Self, u64)>;

    /// Run a call on the lane's thread. Returns how long the values have been under way.
    fn run(&self, call: &Call, kind: Option<CollectiveKind>, send: &[u8], data: &mut [u8]) -> Result<Duration>;

    /// A call of `bytes` bytes that began at `begin` has succeeded; `under_way` is none for calls of the host.
    fn completed(&self, _call: &Call, _bytes: usize, _begin: Instant, _under_way: Option<Duration>) -> Result<()> {
        Ok(())
    }

    /// Nothing has failed so far, on any rank.
    ///
    /// # Errors
    /// The first failure, as reported by the rank that found it.
    fn healthy(&self, call: &Call) -> Result<()> {
        let members = self.members();
        let Some(first) = members.first_error.get() else {
            return match self.reported() {
                None => Ok(()),
                Some(failure) => Err(members.keep(members.error(call, failure))),
            };
        };
        let Error::Communication { operation: then, sequence: number, reason, ranks } = first else {
            return Err(first.clone());
        };
        let (operation, sequence) = (call.kind.to_string(), call.sequence);
        let reason = match *then == operation && *number == sequence {
            true => reason.clone(),
            false => format!("the group is broken since {then} (number {number}): {reason}"),
        };
        Err(Error::Communication { operation, sequence, reason, ranks: ranks.clone() })
    }

    /// This rank found a failure of some ranks of the group: report it.
    fn fail(&self, call: &Call, ranks: &[usize], reason: String) -> Error {
        let members = self.members();
        let (operation, sequence, group) = (call.kind.to_string(), call.sequence, members.group);
        let world = ranks.iter().filter_map(|rank| members.world.get(*rank).copied()).collect();
        let (told, told_reason) = (operation.clone(), reason.clone());
        self.report(Failure { group, operation: told, sequence, code: 0, reason: told_reason, ranks: world });
        members.keep(Error::Communication { operation, sequence, reason, ranks: ranks.to_vec() })
    }

    /// As [`Group::fail`], for any other error of a call on this rank.
    fn fail_with(&self, call: &Call, error: Error) -> Error {
        let members = self.members();
        // Where the system refuses this rank something, the rank ends by that and aborts the group. If the others heard
        // of it here, they could be the first to end, and the program would report a lost rank in place of the limit.
        if members.first_error.get().is_none() && !matches!(error, Error::Refused { .. }) {
            let reason = format!("{} failed: {error}", members.label(members.rank));
            self.fail(call, &[members.rank], reason);
        }
        error
    }

    /// Ranks have left the group while this one waits for them.
    fn fail_left(&self, call: &Call, ranks: &[usize]) -> Error {
        self.fail(call, ranks, format!("{} has left the group", self.members().labels(ranks, "")))
    }

    /// The processes of ranks have ended.
    fn fail_ended(&self, call: &Call, ranks: &[usize]) -> Error {
        self.fail(call, ranks, format!("{} has ended", self.members().labels(ranks, "the process of ")))
    }

    /// This rank gives up, with an exit code for all ranks or zero.
    fn give_up(&self, code: u8, reason: &str) {
        let members = self.members();
        let reason = format!("{} gave up: {reason}", members.label(members.rank));
        let ranks = vec![members.world[members.rank]];
        self.report(Failure { group: members.group, code, reason, ranks, ..Failure::default() });
    }

    /// The first failure so far, or lost ranks. Does not wait.
    fn failure(&self) -> Option<Error> {
        let call = Call { kind: CallKind::Barrier, sequence: 0 };
        if let Err(error) = self.healthy(&call) {
            return Some(error);
        }
        let lost = self.lost();
        (!lost.is_empty()).then(|| self.fail_ended(&call, &lost))
    }

    /// Wait until all ranks have come to a call that this one has published, and compare their calls with it. `extra`
    /// gets the two integers of each other rank.
    fn agree(&self, channel: Channel, call: &Call, mut extra: impl FnMut(usize, [u64; 2])) -> Result<()> {
        self.await_calls(channel, call)?;
        let members = self.members();
        for rank in members.others() {
            let Some([code, part, first, second]) = self.published(rank, channel, call) else {
                return Err(self.fail(call, &[rank], format!("{} sent nothing about its call", members.label(rank))));
            };
            if [code, part] != call.kind.encoded() {
                let (own, other) = (members.label(members.rank), members.label(rank));
                let reason = format!(
                    "{own} called {}, {other} called {}; all ranks have to make the same calls in the same order",
                    call.kind,
                    describe([code, part])
                );
                return Err(self.fail(call, &[members.rank.min(rank), members.rank.max(rank)], reason));
            }
            extra(rank, [first, second]);
        }
        Ok(())
    }

    /// Wait for all ranks on the calling thread, and gather two integers of each.
    fn meet(&self, call: &Call, words: [u64; 2]) -> Result<Vec<[u64; 2]>> {
        self.healthy(call)?;
        self.publish(Channel::Host, call, words);
        let mut all = vec![words; self.members().size];
        self.agree(Channel::Host, call, |rank, words| all[rank] = words)?;
        Ok(all)
    }

    /// A rank, and how far it has come.
    fn progress_of(&self, call: &Call, rank: usize) -> String {
        call.whereabouts(self.members().label(rank), |channel| self.calls_of(rank, channel))
    }
}

/// The ranks of a color, in the order of their keys and then of their numbers, from the color and key of each rank.
pub(crate) fn members_of_color(wishes: &[[u64; 2]], color: u64) -> Vec<usize> {
    let mut members: Vec<usize> = (0..wishes.len()).filter(|rank| wishes[*rank][0] == color).collect();
    members.sort_by_key(|rank| wishes[*rank][1]);
    members
}

/// Ranks to blame when the ranks `absent` do not come: not a rank that waits, but the ranks it waits for, and a rank
/// that does not answer (`waits_for` gives none).
pub(crate) fn blamed(absent: &[usize], own: usize, waits_for: impl Fn(usize) -> Option<Vec<usize>>) -> Vec<usize> {
    let mut reached = absent.to_vec();
    let mut next = 0;
    while let Some(rank) = reached.get(next).copied() {
        next += 1;
        for awaited in waits_for(rank).into_iter().flatten() {
            if !reached.contains(&awaited) {
                reached.push(awaited);
            }
        }
    }
    reached.retain(|rank| *rank != own && waits_for(*rank).is_none_or(|awaited| awaited.is_empty()));
    if reached.is_empty() {
        // The ranks wait for each other in a cycle.
        reached = absent.to_vec();
    }
    reached.sort_unstable();
    reached
}
