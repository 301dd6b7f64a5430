//! Transfer of values: in pieces of at most a chunk, one message each.
//!
//! A rank sends a few rounds ahead, so that messages are under way while it works on earlier ones.

use super::Session;
use super::group::MessageGroup;
use super::job::Channel;
use super::message::{Kind, Message, MessageKey};
use crate::comm::call::{self, Call, describe};
use crate::comm::engine::{Flow, Group, Pieces, Transport};
use crate::error::{Error, Result};

/// Rounds that are given before they are needed.
const AHEAD: usize = 2;
/// Pieces of messages from one rank to another that are on their way at a time.
const WINDOW: u64 = 4;

/// Up to this many bytes every rank reduces everything itself.
const SMALL: usize = 32 << 10;

pub(crate) struct Transfer<'a, S: Session> {
    pub(crate) group: &'a MessageGroup<S>,
    pub(crate) call: &'a Call,
}

impl<S: Session> Transfer<'_, S> {
    /// Ranks that this one sends pieces to or receives them from. A rank without values for another one that sends to
    /// it answers with an empty piece in every round, so that no rank gets far ahead of its receivers.
    fn partners(&self, flow: Flow) -> Vec<usize> {
        let own = self.group.members.rank;
        self.group.members.others().filter(|other| flow.sends(own, *other) || flow.sends(*other, own)).collect()
    }

    /// The key of a rank's piece. Piece 0 is the record of the call.
    fn key(&self, from: usize, phase: usize, round: usize) -> MessageKey {
        let piece = (1 + 2 * round + phase) as u64;
        self.group.message_key(Channel::Lanes, from, self.call.sequence, piece)
    }
}

impl<S: Session> Transport for Transfer<'_, S> {
    fn rank_and_size(&self) -> (usize, usize) {
        (self.group.members.rank, self.group.members.size)
    }

    fn piece(&self, _: Flow) -> usize {
        self.group.job().chunk
    }

    fn small(&self) -> usize {
        SMALL
    }

    fn sends(&self, _: Flow) -> bool {
        true
    }

    fn publish(&mut self) {
        self.group.publish(call::Channel::Lanes, self.call, [0; 2]);
    }

    fn agree(&mut self) -> Result<()> {
        self.group.agree(call::Channel::Lanes, self.call, |_, _| ())
    }

    fn has_room(&self, _: usize, round: usize, current: usize) -> bool {
        round <= current + AHEAD
    }

    fn send<'b>(&mut self, phase: usize, round: usize, flow: Flow, piece: &dyn Fn(usize) -> &'b [u8]) -> Result<()> {
        let own = self.group.members.rank;
        for to in self.partners(flow) {
            let bytes = if flow.sends(own, to) { piece(to) } else { &[] };
            let room = if bytes.is_empty() { None } else { self.group.job().lock().spare.pop() };
            let key = self.key(own, phase, round);
            self.group.post(to, Message::of_bytes(Kind::Piece, key, bytes, room.unwrap_or_default()));
        }
        Ok(())
    }

    fn receive(
        &mut self,
        phase: usize,
        round: usize,
        flow: Flow,
        read: &mut dyn FnMut(&dyn Pieces) -> Result<()>,
    ) -> Result<()> {
        let (partners, job) = (self.partners(flow), self.group.job());
        let key = |from| self.key(from, phase, round);
        self.group.wait(self.call, |state| {
            partners.iter().copied().filter(|from| !state.messages.contains_key(&key(*from))).collect()
        })?;
        let mut state = job.lock();
        let from = partners.iter().filter_map(|from| Some((*from, state.messages.remove(&key(*from))?))).collect();
        drop(state);
        let received = Received { from };
        let own = self.group.members.rank;
        if partners.iter().any(|from| flow.sends(*from, own)) {
            read(&received)?;
        }
        let mut state = job.lock();
        for (_, message) in received.from {
            state.keep(message.into_words());
        }
        Ok(())
    }
}

/// Values received from the partners in a round.
struct Received {
    from: Vec<(usize, Message)>,
}

impl Pieces for Received {
    fn of(&self, rank: usize, bytes: usize) -> Result<&[u8]> {
        let piece = self.from.iter().find(|(from, _)| *from == rank).map(|(_, message)| message.bytes());
        match piece {
            Some(piece) if piece.len() == bytes => Ok(piece),
            piece => {
                Err(Error::shape("collective", format!("bytes from rank {rank}"), bytes, piece.map_or(0, <[u8]>::len)))
            }
        }
    }
}

impl<S: Session> MessageGroup<S> {
    /// Send a message. `sent` counts the pieces that this rank sent to the other one before.
    pub(crate) fn send(&self, call: &Call, to: usize, bytes: &[u8], sent: &mut u64) -> Result<()> {
        let key = |piece| self.message_key(Channel::Messages, self.members.rank, call.sequence, piece);
        self.post(to, Message::of_words(Kind::Record, key(0), &call.kind.encoded()));
        for (piece, part) in (1..).zip(bytes.chunks(self.job().chunk)) {
            let rank_key = self.rank_key(to);
            self.wait(call, |state| {
                let taken = state.taken.get(&rank_key).copied().unwrap_or(0);
                if sent.saturating_sub(taken) < WINDOW { vec![] } else { vec![to] }
            })?;
            let room = self.job().lock().spare.pop().unwrap_or_default();
            self.post(to, Message::of_bytes(Kind::Piece, key(piece), part, room));
            *sent += 1;
        }
        Ok(())
    }

    /// Receive a message.
    ///
    /// # Errors
    /// The other rank sent something else; as for every wait.
    pub(crate) fn receive(&self, call: &Call, from: usize, bytes: &mut [u8]) -> Result<()> {
        let key = |piece| self.message_key(Channel::Messages, from, call.sequence, piece);
        let next = |piece| {
            self.wait(call, |state| if state.messages.contains_key(&key(piece)) { vec![] } else { vec![from] })?;
            let message = self.job().lock().messages.remove(&key(piece));
            message.ok_or_else(|| self.fail(call, &[from], format!("{} sent nothing", self.members.label(from))))
        };
        let record = next(0)?;
        if record.content() != call.kind.encoded() {
            let words = *record.content().first_chunk().unwrap_or(&[0; 2]);
            let (own, other) = (self.members.label(self.members.rank), self.members.label(from));
            let reason = format!("{other} sent {}, {own} called {}", describe(words), call.kind);
            return Err(self.fail(call, &[self.members.rank, from], reason));
        }
        for (piece, part) in (1..).zip(bytes.chunks_mut(self.job().chunk)) {
            let message = next(piece)?;
            if message.bytes().len() != part.len() {
                let (expected, got) = (part.len(), message.bytes().len());
                let reason = format!("{} sent a piece of {got} bytes for one of {expected}", self.members.label(from));
                return Err(self.fail(call, &[from], reason));
            }
            part.copy_from_slice(message.bytes());
            self.job().lock().keep(message.into_words());
            self.post(
                from,
                Message::of_words(Kind::Taken, self.message_key(Channel::Messages, self.members.rank, 0, 0), &[]),
            );
        }
        Ok(())
    }
}
