//! The collectives, each as what a rank gives and takes in one round.
//!
//! Defines [`run`], which [`super::rank`] calls on the lane's thread.
//! Reductions add in the order of the ranks wherever an element is added, so their bits know nothing of chunks and
//! rounds.

use super::exchange::{GIVEN, REDUCED, Rings, Rounds, Staged};
use super::group::members;
use crate::comm::call::Channel;
use crate::comm::plan::{GRAIN, Plan, Reducer, piece, place};
use crate::dtype::DType;
use crate::error::Result;

/// Up to this many bytes every rank reduces everything for itself, which needs one meeting instead of two.
const SMALL: usize = 16 << 10;

/// Run a collective on this rank: `send` is what it reads, `data` what it writes, which some both read and write.
///
/// # Errors
/// As [`Rings::run`].
pub(super) fn run(plan: Plan, dtype: DType, send: &[u8], data: &mut [u8], rings: &mut Rings<'_>) -> Result<()> {
    let (rank, size, chunk) = (rings.group.rank, rings.group.size, rings.group.layout.chunk());
    if size == 1 {
        if !send.is_empty() {
            data.copy_from_slice(send);
        }
        return Ok(());
    }
    let by_chunks = |bytes: usize| bytes.div_ceil(chunk);
    // A chunk holds a part for each rank.
    let part = (chunk / size) / GRAIN * GRAIN;
    let by_parts = |bytes: usize| bytes.div_ceil(part);
    match plan {
        Plan::AllGather => {
            place(data, rank, send.len()).copy_from_slice(send);
            rings.run(by_chunks(send.len()), &mut AllGather { send, recv: data, chunk })
        }
        Plan::ReduceScatter(by) => {
            let reduction = Reducer { dtype, by, rank, size };
            rings.run(by_parts(data.len()), &mut ReduceScatter { send, recv: data, part, reduction })
        }
        Plan::AllReduce(by) => {
            let reduction = Reducer { dtype, by, rank, size };
            match size == 2 || data.len() <= SMALL.min(chunk) {
                true => rings.run(by_chunks(data.len()), &mut EachReduces { data, chunk, reduction }),
                false => all_reduce_in_parts(data, part, reduction, rings),
            }
        }
        Plan::Reduce(by, root) => {
            let reduction = Reducer { dtype, by, rank, size };
            rings.run(by_chunks(data.len()), &mut Reduce { data, chunk, root, reduction })
        }
        Plan::Broadcast(root) => {
            rings.run(by_chunks(data.len()), &mut Broadcast { data, chunk, root, is_root: root == rank })
        }
        Plan::AllToAll => {
            let bytes = send.len() / size;
            place(data, rank, bytes).copy_from_slice(&send[rank * bytes..][..bytes]);
            rings.run(by_parts(bytes), &mut AllToAll { send, recv: data, part, rank, size })
        }
    }
}

struct AllGather<'a> {
    send: &'a [u8],
    recv: &'a mut [u8],
    chunk: usize,
}

impl Rounds for AllGather<'_> {
    fn give(&self, round: usize, slot: &mut [u8]) {
        let values = &self.send[piece(0..self.send.len(), self.chunk, round)];
        slot[..values.len()].copy_from_slice(values);
    }

    fn take(&mut self, round: usize, staged: &Staged<'_>) -> Result<()> {
        let range = piece(0..self.send.len(), self.chunk, round);
        for rank in members(staged.from()) {
            let to = &mut place(self.recv, rank, self.send.len())[range.clone()];
            to.copy_from_slice(staged.of(rank, 0, range.len()));
        }
        Ok(())
    }
}

struct ReduceScatter<'a> {
    send: &'a [u8],
    recv: &'a mut [u8],
    part: usize,
    reduction: Reducer,
}

impl Rounds for ReduceScatter<'_> {
    fn give(&self, round: usize, slot: &mut [u8]) {
        give_parts(self.send, (self.part, round), (self.reduction.rank, self.reduction.size), slot);
    }

    fn take(&mut self, round: usize, staged: &Staged<'_>) -> Result<()> {
        let (rank, bytes) = (self.reduction.rank, self.recv.len());
        let range = piece(0..bytes, self.part, round);
        let own = &self.send[rank * bytes..][range.clone()];
        self.reduction.reduce(Some(own), staged.each(rank * self.part, range.len()), &mut self.recv[range])
    }
}

struct AllToAll<'a> {
    send: &'a [u8],
    recv: &'a mut [u8],
    part: usize,
    rank: usize,
    size: usize,
}

impl Rounds for AllToAll<'_> {
    fn give(&self, round: usize, slot: &mut [u8]) {
        give_parts(self.send, (self.part, round), (self.rank, self.size), slot);
    }

    fn take(&mut self, round: usize, staged: &Staged<'_>) -> Result<()> {
        let bytes = self.recv.len() / self.size;
        let range = piece(0..bytes, self.part, round);
        for rank in members(staged.from()) {
            let to = &mut place(self.recv, rank, bytes)[range.clone()];
            to.copy_from_slice(staged.of(rank, self.rank * self.part, range.len()));
        }
        Ok(())
    }
}

/// Stage a piece of the part of every other rank, each at its place in the slot.
fn give_parts(send: &[u8], (part, round): (usize, usize), (rank, size): (usize, usize), slot: &mut [u8]) {
    let bytes = send.len() / size;
    let range = piece(0..bytes, part, round);
    for other in (0..size).filter(|other| *other != rank) {
        let values = &send[other * bytes..][range.clone()];
        slot[other * part..][..values.len()].copy_from_slice(values);
    }
}

/// Every rank sees everything and reduces it for itself.
struct EachReduces<'a> {
    data: &'a mut [u8],
    chunk: usize,
    reduction: Reducer,
}

impl Rounds for EachReduces<'_> {
    fn give(&self, round: usize, slot: &mut [u8]) {
        let values = &self.data[piece(0..self.data.len(), self.chunk, round)];
        slot[..values.len()].copy_from_slice(values);
    }

    fn take(&mut self, round: usize, staged: &Staged<'_>) -> Result<()> {
        let range = piece(0..self.data.len(), self.chunk, round);
        self.reduction.reduce(None, staged.each(0, range.len()), &mut self.data[range])
    }
}

struct Reduce<'a> {
    data: &'a mut [u8],
    chunk: usize,
    root: usize,
    reduction: Reducer,
}

impl Rounds for Reduce<'_> {
    fn gives(&self) -> bool {
        self.reduction.rank != self.root
    }

    fn give(&self, round: usize, slot: &mut [u8]) {
        let values = &self.data[piece(0..self.data.len(), self.chunk, round)];
        slot[..values.len()].copy_from_slice(values);
    }

    fn takes_from(&self, others: u64) -> u64 {
        if self.gives() { 0 } else { others }
    }

    fn take(&mut self, round: usize, staged: &Staged<'_>) -> Result<()> {
        if self.gives() {
            return Ok(());
        }
        let range = piece(0..self.data.len(), self.chunk, round);
        self.reduction.reduce(None, staged.each(0, range.len()), &mut self.data[range])
    }
}

struct Broadcast<'a> {
    data: &'a mut [u8],
    chunk: usize,
    root: usize,
    is_root: bool,
}

impl Rounds for Broadcast<'_> {
    fn gives(&self) -> bool {
        self.is_root
    }

    fn give(&self, round: usize, slot: &mut [u8]) {
        let values = &self.data[piece(0..self.data.len(), self.chunk, round)];
        slot[..values.len()].copy_from_slice(values);
    }

    fn takes_from(&self, _: u64) -> u64 {
        if self.is_root { 0 } else { 1 << self.root }
    }

    fn take(&mut self, round: usize, staged: &Staged<'_>) -> Result<()> {
        if !self.is_root {
            let range = piece(0..self.data.len(), self.chunk, round);
            let values = staged.of(self.root, 0, range.len());
            self.data[range].copy_from_slice(values);
        }
        Ok(())
    }
}

/// Each round is a block of one part for each rank, which reduces its part and shows it to the others. While a rank
/// reduces one block it has staged the next ones, and then collects the one before.
fn all_reduce_in_parts(data: &mut [u8], most: usize, reduction: Reducer, rings: &mut Rings<'_>) -> Result<()> {
    let Reducer { rank, size, .. } = reduction;
    let (block, bytes) = (most * size, data.len());
    let rounds = bytes.div_ceil(block);
    // Where the part of a rank lies in a round; the last block is divided like the others, into smaller parts.
    let part_of = |round: usize, rank: usize| {
        let whole = piece(0..bytes, block, round);
        let part = whole.len().div_ceil(size).next_multiple_of(GRAIN);
        piece(whole, part, rank)
    };
    let give = |data: &[u8], round: usize, slot: &mut [u8]| {
        for other in (0..size).filter(|other| *other != rank) {
            let values = &data[part_of(round, other)];
            slot[other * most..][..values.len()].copy_from_slice(values);
        }
    };
    let others = rings.group.others();
    rings.group.publish(Channel::Lanes, rings.call, [0; 2]);
    let mut given = 0;
    for round in 0..=rounds {
        while given < rounds && (given <= round || rings.has_room(GIVEN, given)) {
            rings.stage(GIVEN, given, |slot| give(data, given, slot))?;
            given += 1;
        }
        if round == 0 {
            rings.agree()?;
        }
        if round < rounds {
            let own = part_of(round, rank);
            rings.take(GIVEN, round, others, |staged| {
                reduction.reduce(None, staged.each(rank * most, own.len()), &mut data[own.clone()])
            })?;
            rings.stage(REDUCED, round, |slot| slot[..own.len()].copy_from_slice(&data[own]))?;
        }
        if let Some(round) = round.checked_sub(1) {
            rings.take(REDUCED, round, others, |staged| {
                for other in members(others) {
                    let range = part_of(round, other);
                    data[range.clone()].copy_from_slice(staged.of(other, 0, range.len()));
                }
                Ok(())
            })?;
        }
    }
    rings.advance(GIVEN, rounds);
    rings.advance(REDUCED, rounds);
    Ok(())
}
