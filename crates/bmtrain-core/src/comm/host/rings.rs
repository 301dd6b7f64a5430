//! Data movement of collectives: every rank stages chunks in rings of its own, and the others read them there.
//!
//! While a rank works on one chunk it has staged the next ones, so that the others need not wait for it, and the rings
//! are small enough that a staged chunk is still in a cache when it is read.
//!
//! Chunks of a ring are numbered from the first call of the group on; all ranks count alike, because all make the same
//! calls. A chunk's slot is used again when every other rank has marked the chunk before as taken.
#![allow(unsafe_code)]

use super::group::{SharedGroup, ranks_in, ranks_where};
use super::layout::{RINGS, SLOTS};
use crate::comm::call::{Call, Channel};
use crate::comm::engine::{Flow, Group, Pieces, Transport};
use crate::comm::reduce::GRAIN;
use crate::error::Result;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// The rings of a group, during one call.
pub(super) struct Rings<'a> {
    pub(super) group: &'a SharedGroup,
    pub(super) call: &'a Call,
    /// The number of the next chunk in each ring.
    pub(super) next: &'a mut [u64; RINGS],
    /// Time at which all ranks had come to the call; before that, at which this one had.
    pub(super) met: Instant,
}

/// Up to this many bytes every rank reduces everything itself.
const SMALL: usize = 16 << 10;

impl Rings<'_> {
    fn number(&self, ring: usize, round: usize) -> u64 {
        self.next[ring] + round as u64
    }

    /// The ranks that have not taken the chunk in the slot for a round.
    fn readers(&self, ring: usize, round: usize) -> u64 {
        let SharedGroup { layout, region, members, .. } = self.group;
        let needed = (self.number(ring, round) + 1).saturating_sub(SLOTS as u64);
        let is_behind = |other: usize| region.slot(layout.taken(other, ring)).load(Ordering::Acquire) < needed;
        ranks_where(members.size, |other| other != members.rank && is_behind(other))
    }
}

impl Transport for Rings<'_> {
    fn rank_and_size(&self) -> (usize, usize) {
        (self.group.members.rank, self.group.members.size)
    }

    fn piece(&self, flow: Flow) -> usize {
        let chunk = self.group.layout.chunk();
        match flow {
            // A chunk holds a piece for each rank.
            Flow::Scatter => (chunk / self.group.members.size) / GRAIN * GRAIN,
            Flow::Gather | Flow::ToRoot(_) | Flow::FromRoot(_) => chunk,
        }
    }

    fn small(&self) -> usize {
        SMALL.min(self.group.layout.chunk())
    }

    fn sends(&self, flow: Flow) -> bool {
        (0..self.group.members.size).any(|to| flow.sends(self.group.members.rank, to))
    }

    fn publish(&mut self) {
        self.group.publish(Channel::Lanes, self.call, [0; 2]);
    }

    fn agree(&mut self) -> Result<()> {
        self.group.agree(Channel::Lanes, self.call, |_, _| ())?;
        self.met = Instant::now();
        Ok(())
    }

    fn has_room(&self, ring: usize, round: usize, _: usize) -> bool {
        self.readers(ring, round) == 0
    }

    /// Stage a chunk. Waits until the slot is no longer read.
    fn send<'b>(&mut self, ring: usize, round: usize, flow: Flow, piece: &dyn Fn(usize) -> &'b [u8]) -> Result<()> {
        let SharedGroup { layout, region, members, .. } = self.group;
        self.group.reserve_rings(self.call)?;
        let number = self.number(ring, round);
        self.group.wait(self.call, || self.readers(ring, round))?;
        // SAFETY: only this rank writes to its slots, in one call at a time, and every other rank has marked the chunk
        // that was here before as taken; they will not read this one before `staged` is stored below.
        let slot = unsafe { region.part_mut(layout.slot(members.rank, ring, number), layout.chunk()) };
        if flow == Flow::Scatter {
            for (to, slot) in slot.chunks_mut(self.piece(flow)).take(members.size).enumerate() {
                let values = if to == members.rank { &[] } else { piece(to) };
                slot[..values.len()].copy_from_slice(values);
            }
        } else {
            let values = piece(members.rank);
            slot[..values.len()].copy_from_slice(values);
        }
        region.slot(layout.staged(members.rank, ring)).store(number + 1, Ordering::Release);
        self.group.notify();
        Ok(())
    }

    /// Wait until the chunks are staged, and mark them as taken when `read` has used them.
    fn receive(
        &mut self,
        ring: usize,
        round: usize,
        flow: Flow,
        read: &mut dyn FnMut(&dyn Pieces) -> Result<()>,
    ) -> Result<()> {
        let SharedGroup { layout, region, members, .. } = self.group;
        let number = self.number(ring, round);
        let from = ranks_where(members.size, |other| flow.sends(other, members.rank));
        let is_behind = |other: usize| region.slot(layout.staged(other, ring)).load(Ordering::Acquire) <= number;
        let behind = || ranks_in(from).filter(|other| is_behind(*other)).fold(0, |set, other| set | 1 << other);
        self.group.wait(self.call, behind)?;
        if from != 0 {
            let start = if flow == Flow::Scatter { members.rank * self.piece(flow) } else { 0 };
            read(&Staged { group: self.group, ring, number, from, start })?;
        }
        region.slot(layout.taken(members.rank, ring)).store(number + 1, Ordering::Release);
        self.group.notify();
        Ok(())
    }

    fn advance(&mut self, ring: usize, rounds: usize) {
        self.next[ring] += rounds as u64;
    }
}

/// The chunks that the other ranks have staged in a round.
struct Staged<'a> {
    group: &'a SharedGroup,
    ring: usize,
    number: u64,
    from: u64,
    /// Start of the pieces for this rank in them.
    start: usize,
}

impl Pieces for Staged<'_> {
    fn of(&self, rank: usize, bytes: usize) -> Result<&[u8]> {
        let layout = &self.group.layout;
        if self.from >> rank & 1 == 0 || self.start.checked_add(bytes).is_none_or(|end| end > layout.chunk()) {
            debug_assert!(false, "{bytes} bytes from {} of the chunk of rank {rank}", self.start);
            return Ok(&[]);
        }
        // SAFETY: the rank has staged this chunk, as `receive` saw, and does not write to its slot again before this
        // rank has marked it as taken, which `receive` does after the closure that this value is lent to.
        Ok(unsafe { self.group.region.part(layout.slot(rank, self.ring, self.number) + self.start, bytes) })
    }
}
