//! The collectives, each as what a rank gives and takes in one round.
//!
//! Defines [`run`], which `rank` calls on the lane's thread. Values are reduced
//! by [`crate::cpu::ranks`], in the order of the ranks, as those of ranks of one machine are; chunks and rounds leave
//! no trace in the bits.

use super::exchange::{Exchange, Pieces, Rounds};
use crate::comm::plan::{GRAIN, Plan, Reducer, piece, place};
use crate::dtype::DType;
use crate::error::Result;
use std::ops::Range;

/// Up to this many bytes every rank reduces everything for itself, which takes one phase instead of two.
const SMALL: usize = 32 << 10;

/// Run a collective on this rank: `send` is what it reads, `data` what it writes, which some both read and write.
///
/// # Errors
/// As [`Exchange::run`].
pub(super) fn run(plan: Plan, dtype: DType, send: &[u8], data: &mut [u8], exchange: &mut Exchange<'_>) -> Result<()> {
    let group = exchange.group;
    let chunk = group.seat.job.options.chunk;
    let own = Own { rank: group.rank, size: group.size, chunk };
    let rounds = |bytes: usize| bytes.div_ceil(chunk);
    let reducer = |by| Reducer { dtype, by, rank: own.rank, size: own.size };
    match plan {
        Plan::AllGather => {
            place(data, own.rank, send.len()).copy_from_slice(send);
            exchange.run(rounds(send.len()), &mut AllGather { send, recv: data, own })
        }
        Plan::ReduceScatter(by) => {
            exchange.run(rounds(data.len()), &mut ReduceScatter { send, recv: data, own, reducer: reducer(by) })
        }
        Plan::AllReduce(by) if own.size == 2 || data.len() <= SMALL => {
            exchange.run(rounds(data.len()), &mut EachReduces { data, own, reducer: reducer(by) })
        }
        Plan::AllReduce(by) => {
            let part = data.len().div_ceil(own.size).next_multiple_of(GRAIN);
            let reducer = reducer(by);
            exchange.run(rounds(part), &mut ReduceParts { data, part, own, reducer })?;
            exchange.run(rounds(part), &mut GatherParts { data, part, own })
        }
        Plan::Reduce(by, root) => {
            exchange.run(rounds(data.len()), &mut Reduce { data, root, own, reducer: reducer(by) })
        }
        Plan::Broadcast(root) => exchange.run(rounds(data.len()), &mut Broadcast { data, root, own }),
        Plan::AllToAll => {
            let bytes = send.len() / own.size;
            place(data, own.rank, bytes).copy_from_slice(&send[own.rank * bytes..][..bytes]);
            exchange.run(rounds(bytes), &mut AllToAll { send, recv: data, own })
        }
    }
}

/// This rank.
#[derive(Debug, Clone, Copy)]
struct Own {
    rank: usize,
    size: usize,
    chunk: usize,
}

impl Own {
    fn others(self) -> Vec<usize> {
        (0..self.size).filter(|rank| *rank != self.rank).collect()
    }

    /// Where the part of a rank lies in memory of `bytes` bytes in parts of `part`, and in it a round's piece.
    fn part(self, bytes: usize, part: usize, rank: usize, round: usize) -> Range<usize> {
        piece(piece(0..bytes, part, rank), self.chunk, round)
    }
}

struct AllGather<'a> {
    send: &'a [u8],
    recv: &'a mut [u8],
    own: Own,
}

impl Rounds for AllGather<'_> {
    fn partners(&self) -> Vec<usize> {
        self.own.others()
    }

    fn give(&self, round: usize, _: usize) -> &[u8] {
        &self.send[piece(0..self.send.len(), self.own.chunk, round)]
    }

    fn take(&mut self, round: usize, pieces: &Pieces) -> Result<()> {
        let range = piece(0..self.send.len(), self.own.chunk, round);
        for rank in self.own.others() {
            place(self.recv, rank, self.send.len())[range.clone()].copy_from_slice(pieces.of(rank, range.len())?);
        }
        Ok(())
    }
}

struct ReduceScatter<'a> {
    send: &'a [u8],
    recv: &'a mut [u8],
    own: Own,
    reducer: Reducer,
}

impl Rounds for ReduceScatter<'_> {
    fn partners(&self) -> Vec<usize> {
        self.own.others()
    }

    fn give(&self, round: usize, to: usize) -> &[u8] {
        &self.send[self.own.part(self.send.len(), self.recv.len(), to, round)]
    }

    fn take(&mut self, round: usize, pieces: &Pieces) -> Result<()> {
        let (own, bytes) = (self.own, self.recv.len());
        let values = &self.send[own.part(self.send.len(), bytes, own.rank, round)];
        let range = piece(0..bytes, own.chunk, round);
        self.reducer.reduce(Some(values), pieces.each(range.len()), &mut self.recv[range])
    }
}

/// Every rank sees everything and reduces it for itself.
struct EachReduces<'a> {
    data: &'a mut [u8],
    own: Own,
    reducer: Reducer,
}

impl Rounds for EachReduces<'_> {
    fn partners(&self) -> Vec<usize> {
        self.own.others()
    }

    fn give(&self, round: usize, _: usize) -> &[u8] {
        &self.data[piece(0..self.data.len(), self.own.chunk, round)]
    }

    fn take(&mut self, round: usize, pieces: &Pieces) -> Result<()> {
        let range = piece(0..self.data.len(), self.own.chunk, round);
        self.reducer.reduce(None, pieces.each(range.len()), &mut self.data[range])
    }
}

/// The first half of an all-reduce: each rank reduces a part, in its place.
struct ReduceParts<'a> {
    data: &'a mut [u8],
    part: usize,
    own: Own,
    reducer: Reducer,
}

impl Rounds for ReduceParts<'_> {
    fn partners(&self) -> Vec<usize> {
        self.own.others()
    }

    fn give(&self, round: usize, to: usize) -> &[u8] {
        &self.data[self.own.part(self.data.len(), self.part, to, round)]
    }

    fn take(&mut self, round: usize, pieces: &Pieces) -> Result<()> {
        let range = self.own.part(self.data.len(), self.part, self.own.rank, round);
        self.reducer.reduce(None, pieces.each(range.len()), &mut self.data[range])
    }
}

/// The second half: each rank shows its part to the others.
struct GatherParts<'a> {
    data: &'a mut [u8],
    part: usize,
    own: Own,
}

impl Rounds for GatherParts<'_> {
    fn partners(&self) -> Vec<usize> {
        self.own.others()
    }

    fn give(&self, round: usize, _: usize) -> &[u8] {
        &self.data[self.own.part(self.data.len(), self.part, self.own.rank, round)]
    }

    fn take(&mut self, round: usize, pieces: &Pieces) -> Result<()> {
        for rank in self.own.others() {
            let range = self.own.part(self.data.len(), self.part, rank, round);
            self.data[range.clone()].copy_from_slice(pieces.of(rank, range.len())?);
        }
        Ok(())
    }
}

struct Reduce<'a> {
    data: &'a mut [u8],
    root: usize,
    own: Own,
    reducer: Reducer,
}

impl Rounds for Reduce<'_> {
    fn partners(&self) -> Vec<usize> {
        with_root(self.own, self.root)
    }

    fn give(&self, round: usize, _: usize) -> &[u8] {
        match self.own.rank == self.root {
            true => &[],
            false => &self.data[piece(0..self.data.len(), self.own.chunk, round)],
        }
    }

    fn take(&mut self, round: usize, pieces: &Pieces) -> Result<()> {
        if self.own.rank != self.root {
            return Ok(());
        }
        let range = piece(0..self.data.len(), self.own.chunk, round);
        self.reducer.reduce(None, pieces.each(range.len()), &mut self.data[range])
    }
}

struct Broadcast<'a> {
    data: &'a mut [u8],
    root: usize,
    own: Own,
}

impl Rounds for Broadcast<'_> {
    fn partners(&self) -> Vec<usize> {
        with_root(self.own, self.root)
    }

    fn give(&self, round: usize, _: usize) -> &[u8] {
        match self.own.rank == self.root {
            true => &self.data[piece(0..self.data.len(), self.own.chunk, round)],
            false => &[],
        }
    }

    fn take(&mut self, round: usize, pieces: &Pieces) -> Result<()> {
        if self.own.rank != self.root {
            let range = piece(0..self.data.len(), self.own.chunk, round);
            self.data[range.clone()].copy_from_slice(pieces.of(self.root, range.len())?);
        }
        Ok(())
    }
}

/// The root exchanges pieces with everybody, everybody else with the root.
fn with_root(own: Own, root: usize) -> Vec<usize> {
    if own.rank == root { own.others() } else { vec![root] }
}

struct AllToAll<'a> {
    send: &'a [u8],
    recv: &'a mut [u8],
    own: Own,
}

impl Rounds for AllToAll<'_> {
    fn partners(&self) -> Vec<usize> {
        self.own.others()
    }

    fn give(&self, round: usize, to: usize) -> &[u8] {
        &self.send[self.own.part(self.send.len(), self.send.len() / self.own.size, to, round)]
    }

    fn take(&mut self, round: usize, pieces: &Pieces) -> Result<()> {
        for rank in self.own.others() {
            let range = self.own.part(self.recv.len(), self.recv.len() / self.own.size, rank, round);
            self.recv[range.clone()].copy_from_slice(pieces.of(rank, range.len())?);
        }
        Ok(())
    }
}
