//! Collectives of ranks on processors, whatever connects the ranks.
//!
//! [`super::host`] and `super::mpi` are transports: each moves pieces of at most a chunk between ranks ([`Transport`])
//! and tells a rank what the other ranks of its group call ([`Group`]). The rest is here. In reading order: `rank`
//! launches collectives on lanes, `collectives` runs them in rounds, `group` compares the calls of the ranks, `failure`
//! is what a rank reports to the others.

mod collectives;
mod failure;
mod group;
mod rank;

pub(super) use collectives::run;
pub(super) use failure::Failure;
pub(super) use group::{Group, Membership, WORLD, blamed, members_of_color};
pub(super) use rank::{CollectiveKind, Member, communicator};

use crate::error::Result;

/// Phase of a collective in which ranks send their own values.
pub(super) const GIVEN: usize = 0;
/// Phase in which they send what they have reduced.
pub(super) const REDUCED: usize = 1;

/// Senders and receivers of a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Flow {
    Gather,
    Scatter,
    ToRoot(usize),
    FromRoot(usize),
}

impl Flow {
    pub(super) fn sends(self, from: usize, to: usize) -> bool {
        from != to
            && match self {
                Flow::Gather | Flow::Scatter => true,
                Flow::ToRoot(root) => to == root,
                Flow::FromRoot(root) => from == root,
            }
    }
}

/// Moves the pieces of one collective between this rank and the others, in rounds.
pub(super) trait Transport {
    fn rank_and_size(&self) -> (usize, usize);

    /// Most bytes that a rank sends to one other rank in a round: a multiple of [`GRAIN`](super::reduce::GRAIN).
    fn piece(&self, flow: Flow) -> usize;

    /// Up to this many bytes every rank reduces everything itself, which takes one phase instead of two.
    fn small(&self) -> usize;

    fn sends(&self, flow: Flow) -> bool;

    fn publish(&mut self);

    fn agree(&mut self) -> Result<()>;

    /// Whether a later round can be sent before round `current` is received, without waiting.
    fn has_room(&self, phase: usize, round: usize, current: usize) -> bool;

    /// Send the pieces of a round: `piece` is what a rank gets. Unless the flow is [`Flow::Scatter`], all get the same.
    fn send<'b>(&mut self, phase: usize, round: usize, flow: Flow, piece: &dyn Fn(usize) -> &'b [u8]) -> Result<()>;

    /// Wait for the pieces of a round that this rank is sent, if any, and let `read` use them.
    fn receive(
        &mut self,
        phase: usize,
        round: usize,
        flow: Flow,
        read: &mut dyn FnMut(&dyn Pieces) -> Result<()>,
    ) -> Result<()>;

    /// A phase has ended after this many rounds.
    fn advance(&mut self, _phase: usize, _rounds: usize) {}
}

/// The pieces that this rank has received in a round.
pub(super) trait Pieces {
    /// The piece of a rank, which has to have this length.
    fn of(&self, rank: usize, bytes: usize) -> Result<&[u8]>;
}
