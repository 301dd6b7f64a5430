//! How collectives move data: every rank stages chunks in a ring of its own, and the others take what they need from
//! there.
//!
//! Defines [`Rings`], which turns the memory of the rings into slices, and [`Rounds`], what a collective does in each
//! round; [`super::collectives`] writes them down. While a rank works on one chunk it has staged the next ones, so that
//! the others need not wait for it, and the rings are small enough that what is staged is still in a cache when it is
//! read.
//!
//! Chunks of a ring are numbered from the first call of the group on; all ranks count alike, because all make the same
//! calls. A chunk's slot is used again when every other rank has said that it is done with the chunk before.
#![allow(unsafe_code)]

use super::group::{Group, members, ranks_where};
use super::layout::{RINGS, SLOTS};
use crate::comm::call::{Call, Channel};
use crate::error::Result;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What ranks give: values to reduce or to copy.
pub(super) const GIVEN: usize = 0;
/// What they have reduced.
pub(super) const REDUCED: usize = 1;

/// The rings of a group, during one call.
pub(super) struct Rings<'a> {
    pub(super) group: &'a Group,
    pub(super) call: &'a Call,
    /// The number of the next chunk in each ring.
    pub(super) next: &'a mut [u64; RINGS],
    /// When all ranks had come to the call; before that, when this one had.
    pub(super) met: Instant,
}

/// What the other ranks have staged in a round.
pub(super) struct Staged<'a> {
    group: &'a Group,
    ring: usize,
    post: u64,
    from: u64,
}

/// One collective on this rank, in rounds of a chunk each.
pub(super) trait Rounds {
    /// Whether this rank gives anything.
    fn gives(&self) -> bool {
        true
    }
    /// Write what this rank gives in a round.
    fn give(&self, round: usize, slot: &mut [u8]);
    /// From whom this rank takes.
    fn takes_from(&self, others: u64) -> u64 {
        others
    }
    /// Use what the others gave in a round.
    ///
    /// # Errors
    /// What they gave cannot be used.
    fn take(&mut self, round: usize, staged: &Staged<'_>) -> Result<()>;
}

impl Rings<'_> {
    /// A collective from its first word to its last round.
    ///
    /// # Errors
    /// Another call on another rank; a failed group; a rank that does not come.
    pub(super) fn run(&mut self, rounds: usize, steps: &mut impl Rounds) -> Result<()> {
        self.group.publish(Channel::Lanes, self.call, [0; 2]);
        let from = steps.takes_from(self.group.others());
        let to_give = if steps.gives() { rounds } else { 0 };
        let mut given = 0;
        for round in 0..rounds {
            // As far ahead as there is room: a rank that had to sleep finds several rounds to do when it wakes up.
            while given < to_give && (given <= round || self.has_room(GIVEN, given)) {
                self.stage(GIVEN, given, |slot| steps.give(given, slot))?;
                given += 1;
            }
            // What is staged before the ranks agree is seen by nobody if they do not.
            if round == 0 {
                self.agree()?;
            }
            self.take(GIVEN, round, from, |staged| steps.take(round, staged))?;
        }
        if rounds == 0 {
            self.agree()?;
        }
        self.advance(GIVEN, rounds);
        Ok(())
    }

    /// Wait until all ranks have come to this call.
    ///
    /// # Errors
    /// As [`Group::agree`].
    pub(super) fn agree(&mut self) -> Result<()> {
        self.group.agree(Channel::Lanes, self.call)?;
        self.met = Instant::now();
        Ok(())
    }

    /// Go on to the next call.
    pub(super) fn advance(&mut self, ring: usize, rounds: usize) {
        self.next[ring] += rounds as u64;
    }

    /// Let `write` fill this rank's slot for a round, and show it to the others.
    ///
    /// # Errors
    /// As for every wait: the slot may still be in use by others.
    pub(super) fn stage(&self, ring: usize, round: usize, write: impl FnOnce(&mut [u8])) -> Result<()> {
        let Group { layout, region, rank, .. } = self.group;
        self.group.reserve_rings(self.call)?;
        let post = self.next[ring] + round as u64;
        self.group.wait(self.call, || self.readers(ring, round))?;
        // SAFETY: only this rank writes to its slots, in one call at a time, and every other rank has said that it no
        // longer reads the chunk that was here before; they will not read this one before `staged` is stored below.
        let slot = unsafe { region.part_mut(layout.slot(*rank, ring, post), layout.chunk()) };
        write(slot);
        region.word(layout.staged(*rank, ring)).store(post + 1, Ordering::Release);
        self.group.notify();
        Ok(())
    }

    /// The ranks that are not done with what is in the slot for a round.
    fn readers(&self, ring: usize, round: usize) -> u64 {
        let Group { layout, region, rank, size, .. } = self.group;
        let needed = (self.next[ring] + round as u64 + 1).saturating_sub(SLOTS as u64);
        let is_behind = |other: usize| region.word(layout.taken(other, ring)).load(Ordering::Acquire) < needed;
        ranks_where(*size, |other| other != *rank && is_behind(other))
    }

    /// Whether a round can be staged without waiting.
    pub(super) fn has_room(&self, ring: usize, round: usize) -> bool {
        self.readers(ring, round) == 0
    }

    /// Wait until the ranks `from` have staged a round, let `read` use it, and tell everybody that this rank is done
    /// with it.
    ///
    /// # Errors
    /// As for every wait; what `read` returns.
    pub(super) fn take(
        &self,
        ring: usize,
        round: usize,
        from: u64,
        read: impl FnOnce(&Staged<'_>) -> Result<()>,
    ) -> Result<()> {
        let Group { layout, region, rank, .. } = self.group;
        let post = self.next[ring] + round as u64;
        let is_behind = |other: usize| region.word(layout.staged(other, ring)).load(Ordering::Acquire) <= post;
        let behind = || members(from).filter(|other| is_behind(*other)).fold(0, |set, other| set | 1 << other);
        self.group.wait(self.call, behind)?;
        read(&Staged { group: self.group, ring, post, from })?;
        region.word(layout.taken(*rank, ring)).store(post + 1, Ordering::Release);
        self.group.notify();
        Ok(())
    }
}

impl Staged<'_> {
    /// The ranks whose chunks these are.
    pub(super) fn from(&self) -> u64 {
        self.from
    }

    /// That part of the chunk of each rank.
    pub(super) fn each<'s>(&'s self, start: usize, bytes: usize) -> impl Fn(usize) -> Result<&'s [u8]> {
        move |rank| Ok(self.of(rank, start, bytes))
    }

    /// Part of the chunk of a rank; nothing of a rank that this one does not take from.
    pub(super) fn of(&self, rank: usize, start: usize, bytes: usize) -> &[u8] {
        let layout = &self.group.layout;
        if self.from >> rank & 1 == 0 || start.checked_add(bytes).is_none_or(|end| end > layout.chunk()) {
            debug_assert!(false, "{bytes} bytes from {start} of the chunk of rank {rank}");
            return &[];
        }
        // SAFETY: the rank has staged this chunk, as `take` saw, and does not write to its slot again before this rank
        // says that it is done, which `take` does after the closure that this value is lent to.
        unsafe { self.group.region.part(layout.slot(rank, self.ring, self.post) + start, bytes) }
    }
}
