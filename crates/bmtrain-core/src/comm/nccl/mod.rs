//! Ranks whose devices communicate by NCCL, over ranks that are connected already.
//!
//! [`NcclRank::join`] makes a rank of a [`CudaBackend`](crate::cuda::CudaBackend) and of the rank's *control plane*: a
//! communicator of the same ranks between hosts' memory ([`host`](super::host) on one host, `mpi` on several). The
//! control plane hands out NCCL's ids, waits at barriers, splits groups, and hears of lost ranks; values go from device
//! to device. In reading order: `library` opens NCCL, `connection` is one of its communicators, `join` brings ranks
//! together, `rank` gives collectives to lanes, `watch` sees to it that nothing waits for ever and tells how it failed,
//! `job` is what the groups of a rank share.
//!
//! * **One device for each rank.** NCCL refuses ranks that share one; those communicate through the host.
//! * **Order.** Collectives of a group run on each rank in the order in which they were launched, from whatever lanes.
//!   Messages have connections of their own, one for those that go to higher ranks and one for those to lower ranks, so
//!   that they hold up neither collectives nor each other in a circle. Each rank sends to its neighbours once when
//!   these are made, because the first message between two ranks waits for both hosts.
//! * **Bits.** Integers, gathers and messages are exact. Floats are added in an order that NCCL chooses by size, number
//!   of ranks and wiring: [`is_ordered`](super::Communicator::is_ordered) is false. 16-bit floats are rounded after
//!   each addition, not once at the end. The same call on the same machine gives the same bits again, as far as NCCL
//!   promises that.
//! * **Other calls.** NCCL does not compare what ranks call. Ranks whose calls do not fit together wait for each other
//!   until the deadline; then they tell each other what they wait in, and all of them report it.
//! * **Failures.** A thread of each rank looks at what is under way some times a second: a failure that NCCL or the
//!   control plane knows of, or a call that has taken longer than the deadline, breaks everything off on all ranks.
//!   From then on every wait for the device and every call ends in an error that names call, number and, where it is
//!   known, the lost rank.

mod connection;
mod job;
mod join;
mod library;
mod rank;
mod watch;

pub use crate::cuda::nccl_version::Version;
pub use library::Library;
pub use rank::NcclRank;

use crate::cuda::{CudaOptions, nccl_paths};
use std::path::PathBuf;
use std::time::Duration;

/// Connection of ranks by NCCL. Equal on all of them, but for the libraries.
#[derive(Debug, Clone, PartialEq)]
pub struct NcclOptions {
    /// Deadline of a call, from the moment when the device has come to it, and of the start of the ranks.
    pub deadline: Duration,
    /// Paths of NCCL, from which the first that can be opened is taken: see [`nccl_paths`].
    pub libraries: Vec<PathBuf>,
    /// Whether every group has connections for messages between two ranks from its start. Without them a group takes
    /// one connection and its memory instead of three, until [`connect_messages`] adds the other two.
    ///
    /// [`connect_messages`]: super::Communicator::connect_messages
    pub messages: bool,
}

impl Default for NcclOptions {
    fn default() -> Self {
        NcclOptions {
            deadline: Duration::from_secs(30),
            libraries: nccl_paths(&CudaOptions::default()),
            messages: true,
        }
    }
}
