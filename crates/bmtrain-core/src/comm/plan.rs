//! What ranks on processors do alike, however their bytes travel: which collective it is, how memory is cut, who
//! reduces.
//!
//! Defines [`Plan`], [`Reducer`], [`place`] and [`piece`], and [`launch`], by which a communicator gives a collective
//! to a lane. Called by the ranks of one machine and by those of MPI; each has its own way of moving pieces.

use super::call::{Call, What};
use super::turns::{CallTurns, Ordered};
use super::{Collective, Reduction};
use crate::backend::{Backend, HostWork, Lane};
use crate::cpu::ranks::{Source, reduce};
use crate::dtype::DType;
use crate::error::Result;
use std::ops::Range;

/// Parts begin at multiples of this many bytes: a whole number of elements of every type.
pub(super) const GRAIN: usize = 64;

/// What a collective does, without the memory it does it to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Plan {
    AllGather,
    ReduceScatter(Reduction),
    AllReduce(Reduction),
    Reduce(Reduction, usize),
    Broadcast(usize),
    AllToAll,
}

impl Plan {
    /// The plan of a collective of all ranks; none for a message between two.
    fn of(collective: &Collective<'_>) -> Option<Self> {
        Some(match collective {
            Collective::AllGather { .. } => Plan::AllGather,
            Collective::ReduceScatter { by, .. } => Plan::ReduceScatter(*by),
            Collective::AllReduce { by, .. } => Plan::AllReduce(*by),
            Collective::Reduce { by, root, .. } => Plan::Reduce(*by, *root),
            Collective::Broadcast { root, .. } => Plan::Broadcast(*root),
            Collective::AllToAll { .. } => Plan::AllToAll,
            Collective::Send { .. } | Collective::Recv { .. } => return None,
        })
    }
}

/// Give a collective of rank `rank` of `size` to a lane, when it is its turn to be launched. `work` makes what then
/// runs there.
///
/// # Errors
/// Views that do not fit the collective or the group; a group that has failed; what the backend refuses.
pub(super) fn launch(
    group: &impl Ordered,
    (rank, size): (usize, usize),
    turns: &CallTurns,
    backend: &dyn Backend,
    (collective, on): (Collective<'_>, Lane),
    work: impl FnOnce(Call, Option<Plan>) -> HostWork,
) -> Result<()> {
    collective.check(rank, size)?;
    let (what, plan) = (What::of(&collective), Plan::of(&collective));
    turns.of(&what).launch(|sequence| {
        let call = Call { what, sequence };
        group.healthy(&call)?;
        let work = work(call, plan);
        match collective {
            Collective::AllGather { send, recv }
            | Collective::ReduceScatter { send, recv, .. }
            | Collective::AllToAll { send, recv } => backend.fill_on_host(Some(send), recv, work, on),
            Collective::Recv { data, .. } => backend.fill_on_host(None, data, work, on),
            Collective::Broadcast { data, root } if root != rank => backend.fill_on_host(None, data, work, on),
            Collective::AllReduce { data, .. }
            | Collective::Reduce { data, .. }
            | Collective::Broadcast { data, .. } => backend.on_host(None, Some(data), work, on),
            Collective::Send { data, .. } => backend.on_host(Some(data), None, work, on),
        }
    })
}

/// The part of rank `rank` of memory in parts of `bytes`.
pub(super) fn place(data: &mut [u8], rank: usize, bytes: usize) -> &mut [u8] {
    &mut data[rank * bytes..][..bytes]
}

/// Piece number `round` of `range` in pieces of `piece`.
pub(super) fn piece(range: Range<usize>, piece: usize, round: usize) -> Range<usize> {
    let start = (range.start + round * piece).min(range.end);
    start..(start + piece).min(range.end)
}

/// How values are reduced, and by whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reducer {
    pub(super) dtype: DType,
    pub(super) by: Reduction,
    pub(super) rank: usize,
    pub(super) size: usize,
}

impl Reducer {
    /// Reduce the values of all ranks, in their order, to `out`: `own` of this rank, or what is in `out` already, and
    /// `of` of each other one.
    ///
    /// # Errors
    /// What `of` returns.
    pub(super) fn reduce<'b>(
        &self,
        own: Option<&'b [u8]>,
        of: impl Fn(usize) -> Result<&'b [u8]>,
        out: &mut [u8],
    ) -> Result<()> {
        let source = |rank| match (rank == self.rank, own) {
            (true, None) => Ok(Source::Place),
            (true, Some(own)) => Ok(Source::Bytes(own)),
            (false, _) => of(rank).map(Source::Bytes),
        };
        let sources: Vec<Source<'_>> = (0..self.size).map(source).collect::<Result<_>>()?;
        reduce(self.dtype, self.by, &sources, out)
    }
}
