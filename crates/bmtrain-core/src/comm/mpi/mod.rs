//! Ranks that are processes of one MPI job, on one host or on several. For processors; with the feature `mpi`.
//!
//! [`MpiRank::join`] makes this process a rank; from there on it is like any other
//! [`Communicator`](super::Communicator). `join` starts MPI, `progress` is the one thread that calls it; what ranks
//! send each other is in `comm::messages`, the collectives themselves are in `comm::engine`.
//!
//! * **Threads.** Only the progress thread calls MPI, which therefore has to give the level *funneled* and no more. It
//!   never waits inside MPI: messages are started and looked at again. So a lost rank cannot hold it, it hears of
//!   failures at any time, and it answers when others ask whether this process still lives.
//! * **Bits.** Values are moved as they are and reduced here, in the order of the ranks, by the code that ranks of one
//!   machine use. MPI's own reductions promise no order and know no bf16.
//! * **Failures.** As for [ranks of one machine](super::host), but that any failure is one of the whole job, whose
//!   messages may never come to their end. At a deadline the ranks are asked; to blame is a rank that does not answer
//!   or does not wait itself. A process that ended is noticed at once where it ran on this host, elsewhere at the
//!   deadline. After a failure MPI is not finalized, which would wait for the lost rank: see [`MpiRank::end_job`].
//! * **The one wait that may be long.** A rank that is done waits for the others as long as they answer that they live,
//!   for they may have work of their own left. At every deadline it asks; a rank that does not answer is abandoned,
//!   with a warning.

mod join;
mod progress;
mod rank;

pub use rank::MpiRank;

use crate::error::{Error, Result};
use std::time::Duration;

/// Connection of the ranks of an MPI job. Equal on all of them, but for the deadline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MpiOptions {
    /// Wait for other ranks before a rank gives up.
    pub deadline: Duration,
    /// Bytes that are moved at a time: a multiple of 4096, up to 64 MiB. A message up to this size is sent without
    /// waiting for its receiver.
    pub chunk: usize,
}

impl Default for MpiOptions {
    fn default() -> Self {
        MpiOptions { deadline: Duration::from_secs(30), chunk: 256 << 10 }
    }
}

/// The ranks of a group.
type MpiGroup = super::messages::MessageGroup<join::Session>;

impl MpiOptions {
    fn check(&self) -> Result<()> {
        let wrong = |reason: String| Err(Error::argument("ranks of MPI", reason));
        if self.chunk == 0 || !self.chunk.is_multiple_of(4096) || self.chunk > 64 << 20 {
            return wrong(format!("chunks of {} bytes: take a multiple of 4096, up to {}", self.chunk, 64 << 20));
        }
        if self.deadline.is_zero() {
            return wrong("a deadline of no time at all: give ranks some seconds".into());
        }
        Ok(())
    }
}
