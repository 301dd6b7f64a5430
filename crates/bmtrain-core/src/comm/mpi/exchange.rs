//! How values move: pieces of at most a chunk, a letter each.
//!
//! Defines [`Rounds`], what a collective gives and takes in each round ([`super::collectives`] writes them down), and
//! [`Exchange`], which runs them; and messages between two ranks. A rank gives a few rounds ahead, so that letters are
//! on their way while it works on earlier ones; whom it gives to gives it something in every round, if only an empty
//! letter, so that nobody is buried in letters.

use super::group::Group;
use super::job::Channel;
use super::letter::{Kind, Letter};
use crate::comm::call::{Call, in_words};
use crate::error::{Error, Result};

/// Rounds that are given before they are needed.
const AHEAD: usize = 2;
/// Pieces of messages from one rank to another that are on their way at a time.
const WINDOW: u64 = 4;

/// One collective on this rank, in rounds of at most a chunk for each partner.
pub(super) trait Rounds {
    /// With whom this rank exchanges pieces.
    fn partners(&self) -> Vec<usize>;
    /// What a partner gets in a round.
    fn give(&self, round: usize, to: usize) -> &[u8];
    /// Use what the partners gave in a round.
    ///
    /// # Errors
    /// What they gave cannot be used.
    fn take(&mut self, round: usize, pieces: &Pieces) -> Result<()>;
}

/// What partners gave in a round.
pub(super) struct Pieces {
    from: Vec<(usize, Letter)>,
}

impl Pieces {
    /// The piece of a partner.
    ///
    /// # Errors
    /// It has another length, or there is none.
    pub(super) fn of(&self, rank: usize, bytes: usize) -> Result<&[u8]> {
        let piece = self.from.iter().find(|(from, _)| *from == rank).map(|(_, letter)| letter.bytes());
        match piece {
            Some(piece) if piece.len() == bytes => Ok(piece),
            piece => Err(Error::shape("mpi", format!("bytes from rank {rank}"), bytes, piece.map_or(0, <[u8]>::len))),
        }
    }

    /// The same of each rank.
    pub(super) fn each<'s>(&'s self, bytes: usize) -> impl Fn(usize) -> Result<&'s [u8]> {
        move |rank| self.of(rank, bytes)
    }
}

/// A collective under way.
pub(super) struct Exchange<'a> {
    pub(super) group: &'a Group,
    call: &'a Call,
    agreed: bool,
    /// Pieces of each rank so far; piece 0 is the record of the call.
    next: u64,
}

impl<'a> Exchange<'a> {
    /// Begin a collective: show the others what it is.
    pub(super) fn begin(group: &'a Group, call: &'a Call) -> Self {
        group.publish(Channel::Lanes, call, [0; 2]);
        Exchange { group, call, agreed: false, next: 1 }
    }

    /// Some rounds.
    ///
    /// # Errors
    /// Another call on another rank; a failed job; a rank that does not come.
    pub(super) fn run(&mut self, rounds: usize, steps: &mut impl Rounds) -> Result<()> {
        let partners = steps.partners();
        let mut given = 0;
        for round in 0..rounds {
            while given < rounds && given <= round + AHEAD {
                for to in &partners {
                    self.give(self.next + given as u64, *to, steps.give(given, *to));
                }
                given += 1;
            }
            // What came before the ranks agree is looked at by nobody if they do not.
            self.agree()?;
            let pieces = self.collect(self.next + round as u64, &partners)?;
            steps.take(round, &pieces)?;
            let mut state = self.group.seat.job.lock();
            for (_, letter) in pieces.from {
                state.keep(letter.into_words());
            }
        }
        self.next += rounds as u64;
        self.agree()
    }

    /// Wait until all ranks have come to this call.
    ///
    /// # Errors
    /// As [`Group::agree`].
    fn agree(&mut self) -> Result<()> {
        if !self.agreed {
            self.group.agree(Channel::Lanes, self.call)?;
            self.agreed = true;
        }
        Ok(())
    }

    fn give(&self, piece: u64, to: usize, bytes: &[u8]) {
        let room = if bytes.is_empty() { None } else { self.group.seat.job.lock().spare.pop() };
        let place = self.group.place(Channel::Lanes, self.group.rank, self.call.sequence, piece);
        self.group.post(to, Letter::of_bytes(Kind::Piece, place, bytes, room.unwrap_or_default()));
    }

    fn collect(&self, piece: u64, partners: &[usize]) -> Result<Pieces> {
        let place = |from| self.group.place(Channel::Lanes, from, self.call.sequence, piece);
        self.group.wait(self.call, |state| {
            partners.iter().copied().filter(|from| !state.letters.contains_key(&place(*from))).collect()
        })?;
        let mut state = self.group.seat.job.lock();
        let from = partners.iter().filter_map(|from| Some((*from, state.letters.remove(&place(*from))?))).collect();
        Ok(Pieces { from })
    }
}

impl Group {
    /// Send a message. `sent` counts the pieces that this rank sent to the other one before.
    ///
    /// # Errors
    /// As for every wait.
    pub(super) fn send(&self, call: &Call, to: usize, bytes: &[u8], sent: &mut u64) -> Result<()> {
        let place = |piece| self.place(Channel::Messages, self.rank, call.sequence, piece);
        self.post(to, Letter::of_words(Kind::Record, place(0), &call.what.words()));
        for (piece, part) in (1..).zip(bytes.chunks(self.seat.job.options.chunk)) {
            let key = self.key(to);
            self.wait(call, |state| {
                let taken = state.taken.get(&key).copied().unwrap_or(0);
                if sent.saturating_sub(taken) < WINDOW { vec![] } else { vec![to] }
            })?;
            let room = self.seat.job.lock().spare.pop().unwrap_or_default();
            self.post(to, Letter::of_bytes(Kind::Piece, place(piece), part, room));
            *sent += 1;
        }
        Ok(())
    }

    /// Receive a message.
    ///
    /// # Errors
    /// The other rank sent something else; as for every wait.
    pub(super) fn receive(&self, call: &Call, from: usize, bytes: &mut [u8]) -> Result<()> {
        let place = |piece| self.place(Channel::Messages, from, call.sequence, piece);
        let next = |piece| {
            self.wait(call, |state| if state.letters.contains_key(&place(piece)) { vec![] } else { vec![from] })?;
            let letter = self.seat.job.lock().letters.remove(&place(piece));
            letter.ok_or_else(|| self.fail(call, &[from], format!("{} sent nothing", self.label(from))))
        };
        let record = next(0)?;
        if record.content() != call.what.words() {
            let words = *record.content().first_chunk().unwrap_or(&[0; 2]);
            let (own, other) = (self.label(self.rank), self.label(from));
            let reason = format!("{other} sent {}, {own} called {}", in_words(words), call.what);
            return Err(self.fail(call, &[self.rank, from], reason));
        }
        for (piece, part) in (1..).zip(bytes.chunks_mut(self.seat.job.options.chunk)) {
            let letter = next(piece)?;
            if letter.bytes().len() != part.len() {
                let (expected, got) = (part.len(), letter.bytes().len());
                let reason = format!("{} sent a piece of {got} bytes for one of {expected}", self.label(from));
                return Err(self.fail(call, &[from], reason));
            }
            part.copy_from_slice(letter.bytes());
            self.seat.job.lock().keep(letter.into_words());
            self.post(from, Letter::of_words(Kind::Taken, self.place(Channel::Messages, self.rank, 0, 0), &[]));
        }
        Ok(())
    }
}
