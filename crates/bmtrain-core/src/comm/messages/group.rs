//! A rank in a group of a job whose processes send each other messages.
//!
//! A group is a number that its ranks agree on; what carries the messages knows of the one group of all ranks only.

use super::Session;
use super::job::{Channel, MessageJob};
use super::message::{Kind, Message, MessageKey};
use super::transfer::Transfer;
use crate::comm::call::{self, Call, CallKind};
use crate::comm::engine::{self, CollectiveKind, Failure, Group, Membership, WORLD, members_of_color};
use crate::comm::processes::Watch;
use crate::comm::queue::lock;
use crate::error::Result;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct MessageGroup<S: Session> {
    pub(crate) session: Arc<S>,
    pub(crate) members: Membership,
    sent: Vec<Mutex<u64>>,
}

impl<S: Session> MessageGroup<S> {
    pub(crate) fn world(session: Arc<S>) -> Self {
        let job = session.job();
        let members = Membership::new(WORLD, job.rank, (0..job.size).collect()).on(Arc::clone(&job.hosts));
        MessageGroup::new(session, members)
    }

    fn new(session: Arc<S>, members: Membership) -> Self {
        let sent = (0..members.size).map(|_| Mutex::default()).collect();
        MessageGroup { session, members, sent }
    }

    /// The key of a message of a rank about a call.
    pub(crate) fn message_key(&self, channel: Channel, from: usize, sequence: u64, piece: u64) -> MessageKey {
        MessageKey { group: self.members.group, channel, from: self.members.world[from], sequence, piece }
    }

    pub(crate) fn rank_key(&self, rank: usize) -> (u64, usize) {
        (self.members.group, self.members.world[rank])
    }

    pub(crate) fn job(&self) -> &MessageJob {
        self.session.job()
    }

    pub(crate) fn post(&self, to: usize, message: Message) {
        self.job().post(self.members.world[to], message);
    }
}

impl<S: Session> Group for MessageGroup<S> {
    fn members(&self) -> &Membership {
        &self.members
    }

    fn deadline(&self) -> Duration {
        self.job().deadline
    }

    fn reported(&self) -> Option<Failure> {
        self.job().lock().failure.clone()
    }

    fn report(&self, failure: Failure) {
        self.job().fail(failure);
    }

    /// Sees the processes on this host only.
    fn lost(&self) -> Vec<usize> {
        let Some(watch) = self.job().watch.get() else { return vec![] };
        let has_ended = |rank: &usize| watch.get(self.members.world[*rank]).is_some_and(Watch::has_ended);
        // Asked in this order: a rank may leave and end between the two.
        let ended: Vec<usize> = self.members.others().filter(has_ended).collect();
        let state = self.job().lock();
        ended.into_iter().filter(|rank| !state.has_left(self.rank_key(*rank))).collect()
    }

    fn calls_of(&self, rank: usize, channel: call::Channel) -> u64 {
        let (group, rank) = self.rank_key(rank);
        self.job().lock().calls.get(&(group, channel.into(), rank)).copied().unwrap_or(0)
    }

    fn publish(&self, channel: call::Channel, call: &Call, extra: [u64; 2]) {
        let words: Vec<u64> = call.kind.encoded().into_iter().chain(extra).collect();
        let key = self.message_key(channel.into(), self.members.rank, call.sequence, 0);
        for other in self.members.others() {
            self.post(other, Message::of_words(Kind::Record, key, &words));
        }
    }

    fn await_calls(&self, channel: call::Channel, call: &Call) -> Result<()> {
        let key = |rank| self.message_key(channel.into(), rank, call.sequence, 0);
        self.wait(call, |state| {
            self.members.others().filter(|rank| !state.messages.contains_key(&key(*rank))).collect()
        })
    }

    fn published(&self, rank: usize, channel: call::Channel, call: &Call) -> Option<[u64; 4]> {
        let key = self.message_key(channel.into(), rank, call.sequence, 0);
        self.job().lock().messages.remove(&key)?.content().first_chunk().copied()
    }

    fn split(&self, color: u64, key: u64, sequence: u64) -> Result<(Self, u64)> {
        let wishes = self.meet(&Call { kind: CallKind::Split, sequence }, [color, key])?;
        let ranks = members_of_color(&wishes, color);
        let rank = ranks.iter().position(|rank| *rank == self.members.rank).unwrap_or(0);
        let world: Vec<usize> = ranks.iter().map(|rank| self.members.world[*rank]).collect();
        // All its ranks compute this number, and no other group of the job has it.
        let number = [sequence, color, world[0] as u64].into_iter().fold(self.members.group, mixed);
        let members = Membership::new(number, rank, world).on(Arc::clone(&self.job().hosts));
        Ok((MessageGroup::new(Arc::clone(&self.session), members), 1))
    }

    fn run(&self, call: &Call, kind: Option<CollectiveKind>, send: &[u8], data: &mut [u8]) -> Result<Duration> {
        match (call.kind, kind) {
            (CallKind::Send(_, to), _) => self.send(call, to, send, &mut lock(&self.sent[to]))?,
            (CallKind::Recv(_, from), _) => self.receive(call, from, data)?,
            (CallKind::Collective(signature), Some(kind)) => {
                engine::run(kind, signature.dtype, send, data, &mut Transfer { group: self, call })?;
            }
            _ => {}
        }
        Ok(Duration::ZERO)
    }
}

/// One number from two, with all bits mixed.
fn mixed(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(23).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ x >> 31).max(1)
}

impl<S: Session> Drop for MessageGroup<S> {
    fn drop(&mut self) {
        // A failure is sent past all other messages, and is the better reason.
        if self.job().lock().failure.is_some() {
            return;
        }
        let key = self.message_key(Channel::Host, self.members.rank, 0, 0);
        for other in self.members.others() {
            self.post(other, Message::of_words(Kind::Left, key, &[]));
        }
    }
}
