//! The ranks of a group, how they agree on a call, and how a failure spreads.
//!
//! Defines [`Group`]. A group is a number that its ranks agree on; MPI knows of the one group of all ranks only.

use super::failure::Failure;
use super::job::{Channel, WORLD};
use super::join::Seat;
use super::letter::{Kind, Letter, Place};
use crate::comm::call::{Call, What, in_words};
use crate::comm::processes::Watch;
use crate::comm::turns::Ordered;
use crate::error::{Error, Result};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// This rank in a group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) seat: Arc<Seat>,
    number: u64,
    pub(super) rank: usize,
    pub(super) size: usize,
    /// The ranks' numbers in the job.
    pub(super) world: Vec<usize>,
    /// The first error of this rank in this group: what every later call ends with.
    broken: OnceLock<Error>,
}

impl Group {
    /// The group of all ranks.
    pub(super) fn world(seat: Arc<Seat>) -> Self {
        let (rank, size) = (seat.job.rank, seat.job.size);
        Group { seat, number: WORLD, rank, size, world: (0..size).collect(), broken: OnceLock::new() }
    }

    /// The other ranks of the group.
    pub(super) fn others(&self) -> impl Iterator<Item = usize> {
        let own = self.rank;
        (0..self.size).filter(move |rank| *rank != own)
    }

    /// A rank by its number, and by its number among all where that is another one.
    pub(super) fn label(&self, rank: usize) -> String {
        match self.world.get(rank) {
            Some(world) if *world != rank => format!("rank {rank} (rank {world} of all)"),
            _ => format!("rank {rank}"),
        }
    }

    /// Several ranks in words.
    pub(super) fn labels(&self, ranks: &[usize]) -> String {
        ranks.iter().map(|rank| self.label(*rank)).collect::<Vec<_>>().join(" and ")
    }

    /// Where a letter of a rank about a call belongs.
    pub(super) fn place(&self, channel: Channel, from: usize, sequence: u64, piece: u64) -> Place {
        Place { group: self.number, channel, from: self.world[from], sequence, piece }
    }

    /// The key of what a rank has taken of this one's messages.
    pub(super) fn key(&self, rank: usize) -> (u64, usize) {
        (self.number, self.world[rank])
    }

    /// How many calls of a channel a rank has come to, as far as it is known here.
    pub(super) fn calls_of(&self, rank: usize, channel: Channel) -> u64 {
        self.seat.job.lock().calls.get(&(self.number, channel, self.world[rank])).copied().unwrap_or(0)
    }

    /// Send a letter to a rank of the group.
    pub(super) fn post(&self, to: usize, letter: Letter) {
        self.seat.job.post(self.world[to], letter);
    }

    /// Show the other ranks what this one calls. Two words of its own go with it.
    pub(super) fn publish(&self, channel: Channel, call: &Call, extra: [u64; 2]) {
        let words: Vec<u64> = call.what.words().into_iter().chain(extra).collect();
        for other in self.others() {
            let place = self.place(channel, self.rank, call.sequence, 0);
            self.post(other, Letter::of_words(Kind::Record, place, &words));
        }
    }

    /// Wait until all ranks have come to a call that this one has published, and see that it is the same one. Returns
    /// the two words that each rank gave; this rank's are zero.
    ///
    /// # Errors
    /// Another call on some rank; as for every wait.
    pub(super) fn agree(&self, channel: Channel, call: &Call) -> Result<Vec<[u64; 2]>> {
        let place = |rank| self.place(channel, rank, call.sequence, 0);
        self.wait(call, |state| self.others().filter(|rank| !state.letters.contains_key(&place(*rank))).collect())?;
        let mut extras = vec![[0; 2]; self.size];
        for rank in self.others() {
            let record = self.seat.job.lock().letters.remove(&place(rank));
            let Some([code, part, first, second]) = record.as_ref().and_then(|letter| letter.content().first_chunk())
            else {
                return Err(self.fail(call, &[rank], format!("{} sent no words about its call", self.label(rank))));
            };
            if [*code, *part] != call.what.words() {
                let (own, other) = (self.label(self.rank), self.label(rank));
                let reason = format!(
                    "{own} called {}, {other} called {}; all ranks have to make the same calls in the same order",
                    call.what,
                    in_words([*code, *part])
                );
                return Err(self.fail(call, &[self.rank, rank], reason));
            }
            extras[rank] = [*first, *second];
        }
        Ok(extras)
    }

    /// Come together with all ranks, on the calling thread, and exchange two words.
    ///
    /// # Errors
    /// Another call on another rank; a failed job; a rank that does not come.
    pub(super) fn meet(&self, call: &Call, words: [u64; 2]) -> Result<Vec<[u64; 2]>> {
        self.healthy(call)?;
        self.publish(Channel::Host, call, words);
        let mut all = self.agree(Channel::Host, call)?;
        all[self.rank] = words;
        Ok(all)
    }

    /// The group of the ranks that come with this `colour`, in the order of `key` and then of their ranks.
    ///
    /// # Errors
    /// As for every meeting.
    pub(super) fn split(&self, colour: u64, key: u64, sequence: u64) -> Result<Group> {
        let wishes = self.meet(&Call { what: What::Split, sequence }, [colour, key])?;
        let mut members: Vec<(u64, usize)> = wishes
            .into_iter()
            .zip(0..)
            .filter(|([wish, _], _)| *wish == colour)
            .map(|([_, key], rank)| (key, rank))
            .collect();
        members.sort_unstable();
        let rank = members.iter().position(|(_, rank)| *rank == self.rank).unwrap_or(0);
        let world: Vec<usize> = members.iter().map(|(_, rank)| self.world[*rank]).collect();
        // All its ranks come to this number by themselves, and no other group of the job has it.
        let number = [sequence, colour, world[0] as u64].into_iter().fold(self.number, mixed);
        let (seat, size) = (Arc::clone(&self.seat), world.len());
        Ok(Group { seat, number, rank, size, world, broken: OnceLock::new() })
    }

    /// Nothing has failed so far, on any rank.
    ///
    /// # Errors
    /// The first failure, in the words of whoever found it.
    pub(super) fn healthy(&self, call: &Call) -> Result<()> {
        let (operation, sequence) = (call.what.to_string(), call.sequence);
        if let Some(first) = self.broken.get() {
            let Error::Communication { operation: then, sequence: number, reason, ranks } = first else {
                return Err(first.clone());
            };
            let reason = match *then == operation && *number == sequence {
                true => reason.clone(),
                false => format!("the group is broken since {then} (number {number}): {reason}"),
            };
            return Err(Error::Communication { operation, sequence, reason, ranks: ranks.clone() });
        }
        let Some(failure) = self.seat.job.lock().failure.clone() else { return Ok(()) };
        // The code of a rank that lost another one is none for all ranks.
        if !matches!(failure.code, 0 | 6) {
            let rank = failure.ranks.first().copied().unwrap_or(0);
            let error = Error::RankEnded { rank, code: failure.code, reason: failure.reason };
            return Err(self.broken.get_or_init(|| error).clone());
        }
        let same_call = failure.operation == operation && failure.sequence == sequence && failure.group == self.number;
        let mut reason = match same_call || failure.operation.is_empty() {
            true => failure.reason,
            false => format!("{} (number {}) failed: {}", failure.operation, failure.sequence, failure.reason),
        };
        if failure.group != self.number {
            let whose = if failure.group == WORLD { "the group of all ranks" } else { "another group of the job" };
            reason = format!("{whose} failed: {reason}");
        }
        let here = |rank: &usize| self.world.iter().position(|world| world == rank);
        let ranks = failure.ranks.iter().filter_map(here).collect();
        let error = Error::Communication { operation, sequence, reason, ranks };
        Err(self.broken.get_or_init(|| error).clone())
    }

    /// This rank found that something is wrong with some ranks: every rank will know.
    pub(super) fn fail(&self, call: &Call, ranks: &[usize], reason: String) -> Error {
        let (operation, sequence, group) = (call.what.to_string(), call.sequence, self.number);
        let world = ranks.iter().map(|rank| self.world[*rank]).collect();
        self.seat.job.fail(Failure {
            group,
            operation: operation.clone(),
            sequence,
            code: 0,
            reason: reason.clone(),
            ranks: world,
        });
        let error = Error::Communication { operation, sequence, reason, ranks: ranks.to_vec() };
        self.broken.get_or_init(|| error).clone()
    }

    /// As [`Group::fail`], for whatever else went wrong in a call.
    pub(super) fn fail_with(&self, call: &Call, error: Error) -> Error {
        if self.broken.get().is_none() {
            let reason = format!("{} failed: {error}", self.label(self.rank));
            self.fail(call, &[self.rank], reason);
        }
        error
    }

    /// What has failed so far, or the ranks whose processes have ended on this host and did not leave before. Waits for
    /// nobody.
    pub(super) fn failure(&self) -> Option<Error> {
        let call = Call { what: What::Barrier, sequence: 0 };
        if let Err(error) = self.healthy(&call) {
            return Some(error);
        }
        let watch = self.seat.job.watch.get()?;
        let ended = |rank: &usize| watch.get(self.world[*rank]).is_some_and(Watch::has_ended);
        // Asked first: whoever has left and ended since is in order.
        let ended: Vec<usize> = self.others().filter(ended).collect();
        let state = self.seat.job.lock();
        let left = |rank: &usize| state.left.contains(&self.key(*rank)) || state.gone.contains(&self.world[*rank]);
        let lost: Vec<usize> = ended.into_iter().filter(|rank| !left(rank)).collect();
        drop(state);
        if lost.is_empty() {
            return None;
        }
        let who: Vec<String> = lost.iter().map(|rank| format!("the process of {}", self.label(*rank))).collect();
        Some(self.fail(&call, &lost, format!("{} has ended", who.join(" and "))))
    }

    /// This rank gives up, with an exit code for all ranks or zero.
    pub(super) fn give_up(&self, code: u8, reason: &str) {
        let reason = format!("{} gave up: {reason}", self.label(self.rank));
        let ranks = vec![self.world[self.rank]];
        self.seat.job.fail(Failure { group: self.number, operation: String::new(), sequence: 0, code, reason, ranks });
    }
}

/// One number from two, with all bits mixed.
fn mixed(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ x >> 31).max(1)
}

impl Ordered for Group {
    fn healthy(&self, call: &Call) -> Result<()> {
        Group::healthy(self, call)
    }

    fn deadline(&self) -> Duration {
        self.seat.job.options.deadline
    }

    fn own_label(&self) -> String {
        self.label(self.rank)
    }

    fn fail_here(&self, call: &Call, reason: String) -> Error {
        self.fail(call, &[self.rank], reason)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What went wrong is told past all other letters, and is the better reason.
        if self.seat.job.lock().failure.is_some() {
            return;
        }
        for other in self.others() {
            let place = self.place(Channel::Host, self.rank, 0, 0);
            self.post(other, Letter::of_words(Kind::Left, place, &[]));
        }
    }
}
