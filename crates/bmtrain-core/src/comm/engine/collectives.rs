//! The collectives, each as what a rank sends and receives in one round.
//!
//! Every element is reduced in the order of the ranks, so its bits do not depend on chunks and rounds.

use super::{CollectiveKind, Flow, GIVEN, Pieces, REDUCED, Transport};
use crate::comm::reduce::{GRAIN, Reducer};
use crate::dtype::DType;
use crate::error::Result;
use std::ops::Range;

/// Run a collective on this rank: `send` is what it reads, `data` what it writes, or both where it works in place.
pub(crate) fn run(
    kind: CollectiveKind,
    dtype: DType,
    send: &[u8],
    data: &mut [u8],
    transport: &mut impl Transport,
) -> Result<()> {
    let (rank, size) = transport.rank_and_size();
    if size == 1 {
        if !send.is_empty() {
            data.copy_from_slice(send);
        }
        return Ok(());
    }
    transport.publish();
    let reducer = |by| Reducer { dtype, by, rank, size };
    let bytes = data.len();
    match kind {
        CollectiveKind::AllGather => copy_parts(transport, Flow::Gather, send, data, send.len()),
        CollectiveKind::AllToAll => copy_parts(transport, Flow::Scatter, send, data, send.len() / size),
        CollectiveKind::Broadcast(root) => {
            run_rounds(transport, Flow::FromRoot(root), bytes, &mut Broadcast { data, root })
        }
        CollectiveKind::ReduceScatter(by) => {
            let step = &mut Reduce { send: Some(send), data, reducer: reducer(by) };
            run_rounds(transport, Flow::Scatter, bytes, step)
        }
        CollectiveKind::Reduce(by, root) => {
            let step = &mut Reduce { send: None, data, reducer: reducer(by) };
            run_rounds(transport, Flow::ToRoot(root), bytes, step)
        }
        CollectiveKind::AllReduce(by) if size == 2 || bytes <= transport.small() => {
            let step = &mut Reduce { send: None, data, reducer: reducer(by) };
            run_rounds(transport, Flow::Gather, bytes, step)
        }
        CollectiveKind::AllReduce(by) => all_reduce_in_parts(transport, data, reducer(by)),
    }
}

/// The work of a rank on a range of every rank's part in each round.
trait Step {
    /// Values sent to rank `to`.
    fn send(&self, range: Range<usize>, to: usize) -> &[u8];

    /// Use what the other ranks have sent.
    fn receive(&mut self, range: Range<usize>, pieces: &dyn Pieces) -> Result<()>;
}

/// Run the rounds of a collective whose parts have `bytes` bytes.
fn run_rounds(transport: &mut impl Transport, flow: Flow, bytes: usize, step: &mut impl Step) -> Result<()> {
    let piece_bytes = transport.piece(flow);
    let rounds = bytes.div_ceil(piece_bytes);
    let range = |round| piece(0..bytes, piece_bytes, round);
    let to_send = if transport.sends(flow) { rounds } else { 0 };
    let mut sent = 0;
    for round in 0..rounds {
        // As far ahead as there is room: a rank that had to sleep finds several rounds to do when it wakes up.
        while sent < to_send && (sent <= round || transport.has_room(GIVEN, sent, round)) {
            transport.send(GIVEN, sent, flow, &|to| step.send(range(sent), to))?;
            sent += 1;
        }
        // No rank reads what was sent if the ranks do not agree.
        if round == 0 {
            transport.agree()?;
        }
        transport.receive(GIVEN, round, flow, &mut |pieces| step.receive(range(round), pieces))?;
    }
    if rounds == 0 {
        transport.agree()?;
    }
    transport.advance(GIVEN, rounds);
    Ok(())
}

/// An all-gather or an all-to-all: every rank's part is copied to `recv`, in the order of the ranks.
fn copy_parts(transport: &mut impl Transport, flow: Flow, send: &[u8], recv: &mut [u8], bytes: usize) -> Result<()> {
    let (rank, size) = transport.rank_and_size();
    let mut step = CopyParts { send, recv, bytes, flow, rank, size };
    let own = if flow == Flow::Scatter { rank * bytes } else { 0 };
    step.recv[rank * bytes..][..bytes].copy_from_slice(&send[own..][..bytes]);
    run_rounds(transport, flow, bytes, &mut step)
}

struct CopyParts<'a> {
    send: &'a [u8],
    recv: &'a mut [u8],
    /// Length of a rank's part.
    bytes: usize,
    flow: Flow,
    rank: usize,
    size: usize,
}

impl Step for CopyParts<'_> {
    fn send(&self, range: Range<usize>, to: usize) -> &[u8] {
        let start = if self.flow == Flow::Scatter { to * self.bytes } else { 0 };
        &self.send[start..][range]
    }

    fn receive(&mut self, range: Range<usize>, pieces: &dyn Pieces) -> Result<()> {
        for rank in (0..self.size).filter(|rank| *rank != self.rank) {
            let part = &mut self.recv[rank * self.bytes..][range.clone()];
            part.copy_from_slice(pieces.of(rank, range.len())?);
        }
        Ok(())
    }
}

struct Broadcast<'a> {
    data: &'a mut [u8],
    root: usize,
}

impl Step for Broadcast<'_> {
    fn send(&self, range: Range<usize>, _: usize) -> &[u8] {
        &self.data[range]
    }

    fn receive(&mut self, range: Range<usize>, pieces: &dyn Pieces) -> Result<()> {
        self.data[range.clone()].copy_from_slice(pieces.of(self.root, range.len())?);
        Ok(())
    }
}

/// Reduces what all ranks send: a part of `send` for each rank, or all of `data`, in place.
struct Reduce<'a> {
    send: Option<&'a [u8]>,
    data: &'a mut [u8],
    reducer: Reducer,
}

impl Step for Reduce<'_> {
    fn send(&self, range: Range<usize>, to: usize) -> &[u8] {
        match self.send {
            Some(send) => &send[to * self.data.len()..][range],
            None => &self.data[range],
        }
    }

    fn receive(&mut self, range: Range<usize>, pieces: &dyn Pieces) -> Result<()> {
        let own = self.send.map(|send| &send[self.reducer.rank * self.data.len()..][range.clone()]);
        self.reducer.reduce(own, |rank| pieces.of(rank, range.len()), &mut self.data[range.clone()])
    }
}

/// An all-reduce in rounds of a block with a part for each rank, which reduces its part and sends it to the others.
/// While a rank reduces one block it has sent its values of the next ones; then it collects the block before.
fn all_reduce_in_parts(transport: &mut impl Transport, data: &mut [u8], reducer: Reducer) -> Result<()> {
    let Reducer { rank, size, .. } = reducer;
    let (block, bytes) = (transport.piece(Flow::Scatter) * size, data.len());
    let rounds = bytes.div_ceil(block);
    // The part of a rank in a round; the last block is divided like the others, into smaller parts.
    let part_of = |round: usize, rank: usize| {
        let whole = piece(0..bytes, block, round);
        let part = whole.len().div_ceil(size).next_multiple_of(GRAIN);
        piece(whole, part, rank)
    };
    let mut sent = 0;
    for round in 0..=rounds {
        while sent < rounds && (sent <= round || transport.has_room(GIVEN, sent, round)) {
            let data = &*data;
            transport.send(GIVEN, sent, Flow::Scatter, &|to| &data[part_of(sent, to)])?;
            sent += 1;
        }
        if round == 0 {
            transport.agree()?;
        }
        if round < rounds {
            let own = part_of(round, rank);
            transport.receive(GIVEN, round, Flow::Scatter, &mut |pieces| {
                reducer.reduce(None, |rank| pieces.of(rank, own.len()), &mut data[own.clone()])
            })?;
            let reduced = &data[own];
            transport.send(REDUCED, round, Flow::Gather, &|_| reduced)?;
        }
        if let Some(round) = round.checked_sub(1) {
            transport.receive(REDUCED, round, Flow::Gather, &mut |pieces| {
                for other in (0..size).filter(|other| *other != rank) {
                    let range = part_of(round, other);
                    data[range.clone()].copy_from_slice(pieces.of(other, range.len())?);
                }
                Ok(())
            })?;
        }
    }
    transport.advance(GIVEN, rounds);
    transport.advance(REDUCED, rounds);
    Ok(())
}

/// Piece number `round` of `range` in pieces of `piece`.
fn piece(range: Range<usize>, piece: usize, round: usize) -> Range<usize> {
    let start = (range.start + round * piece).min(range.end);
    start..(start + piece).min(range.end)
}
