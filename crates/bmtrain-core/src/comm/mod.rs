//! Collective communication between ranks: one trait, [`Communicator`], for every transport.
//!
//! A [`Collective`] is a value, as kernels are, and a [`Communicator`] gives it to a lane of the rank's device: it
//! takes its turn there, beside the work of other lanes. [`Solo`] is a group of one, [`CountingRank`] one of a group
//! that is not there; [`host`] connects threads and processes of one machine, `mpi` (with the feature of that name)
//! processes of several, [`tcp`] processes of several for control messages; `nccl` (with the feature `cuda`) the
//! devices of ranks that are connected already. All ranks of a group call the same collectives in the same order with
//! the same sizes; where they do not, or one of them is lost,
//! the call ends in an error on every rank, not in silence. [`tensors`] has the same as calls on tensors, `ops` those
//! with gradients.

mod call;
mod collective;
mod counting;
mod engine;
pub mod host;
mod messages;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "cuda")]
pub mod nccl;
mod processes;
mod queue;
mod reduce;
mod solo;
pub mod tcp;
pub mod tensors;

pub use collective::{Collective, Reduction, Signature};
pub use counting::CountingRank;
pub use solo::Solo;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::lane::Lane;
use std::fmt::Debug;
use std::sync::Arc;

/// One rank's membership in a group of ranks.
///
/// Sums are taken in the order of the ranks on every implementation whose [`Communicator::is_ordered`] is true, so
/// that their bits depend on the values alone.
pub trait Communicator: Debug + Send + Sync {
    /// This rank's number in the group, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn size(&self) -> usize;

    /// Whether reductions add in the order of the ranks.
    fn is_ordered(&self) -> bool;

    /// Give a collective to a lane of this rank's device. Its views are for that lane.
    ///
    /// # Errors
    /// Views that do not fit the collective or the group. What goes wrong later (other calls on other
    /// ranks, a lost rank, a deadline) is a failure of the lane, told at the next wait for it.
    fn launch(&self, backend: &dyn Backend, collective: Collective<'_>, on: Lane) -> Result<()>;

    /// Several collectives as one: a library that can moves them together. The default gives one after the other,
    /// messages last and in an order in which ranks that send to each other do not wait in a circle, whatever the sizes
    /// ([`Collective::turn`]). What one rank gives as one, all ranks of the group give as one.
    fn launch_all(&self, backend: &dyn Backend, mut collectives: Vec<Collective<'_>>, on: Lane) -> Result<()> {
        collectives.sort_by_key(|collective| collective.turn(self.rank()));
        collectives.into_iter().try_for_each(|collective| self.launch(backend, collective, on))
    }

    /// A group of those ranks that give the same `color`, in the order of `key` and, where keys are equal, of their
    /// ranks. Every rank of this group has to call it.
    fn split(&self, color: usize, key: usize) -> Result<Arc<dyn Communicator>>;

    /// Prepare the group for messages between two ranks, [`Collective::Send`] and [`Collective::Recv`]. Every rank of
    /// the group has to call it, before the first message; later calls do nothing. The default is for transports that
    /// need no preparation.
    fn connect_messages(&self) -> Result<()> {
        Ok(())
    }

    /// As [`Communicator::split`] where each rank knows what all give: `of` is the colour and key of a rank. A group
    /// whose other ranks are not there can be split in this way alone.
    fn split_by(&self, of: &dyn Fn(usize) -> (usize, usize)) -> Result<Arc<dyn Communicator>> {
        let (color, key) = of(self.rank());
        self.split(color, key)
    }

    /// Wait until every rank has come here. For the host alone; lanes go on.
    fn barrier(&self) -> Result<()>;

    /// The known failure of the group, or of a rank of it whose process has ended without leaving, without blocking.
    /// For callers that wait for the ranks in a way of their own; `None` from a communicator that cannot tell.
    fn failure(&self) -> Option<Error> {
        None
    }

    /// Tell the other ranks that this one gives up: what they wait for ends in an error that names it and the reason.
    fn abort(&self, reason: &str);
}
