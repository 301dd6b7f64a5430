//! Ranks on several hosts whose processes are connected by TCP: a control plane for [`nccl`](super::nccl), not a
//! transport of tensors.
//!
//! [`TcpRank::join`] makes a rank of connections that exist and whose other ends have proved to belong to the job: a
//! rendezvous makes them. In reading order: `join` starts the threads of a rank, `carrier` takes messages to their
//! connections and to this rank, `link` is one connection. What ranks send each other is in `comm::messages`, the
//! collectives themselves are in `comm::engine`.
//!
//! * **A star.** Every rank has one connection, to rank 0, which passes on what the others send each other. So one port
//!   of one host has to be reachable, and a rank has two threads for its connection; rank 0 has two for each rank.
//!   Control messages are short and few. Values take the same way, through the host and rank 0: right, but slow.
//! * **Frames.** Lengths are checked before memory is taken, ranks before anything is passed on. A frame that is not
//!   from this program fails the job and names its sender. Nothing is encrypted.
//! * **Failures.** As for [ranks of one machine](super::host), but that any failure is one of the whole job. A process
//!   that ends closes its connection, which is noticed at once. A host without power or network, or a process that is
//!   stopped, closes nothing: both ends of a connection send signs of life, and one that is silent for the deadline is
//!   lost. Either way all ranks are told which rank, and on which host.

mod carrier;
mod join;
mod link;
mod rank;

pub use rank::TcpRank;

use crate::error::{Error, Result};
use std::net::TcpStream;
use std::time::Duration;

/// Bytes of values in a message.
const CHUNK: usize = 64 << 10;

/// Options of ranks that are connected by TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpOptions {
    /// Wait for other ranks, and longest silence of one, before the job fails.
    pub deadline: Duration,
}

impl Default for TcpOptions {
    fn default() -> Self {
        TcpOptions { deadline: Duration::from_secs(30) }
    }
}

/// The connections of a rank, whose other ends are known to be ranks of the same job and version.
#[derive(Debug)]
pub struct TcpLinks {
    /// This rank's number.
    pub rank: usize,
    /// The host of each rank, for messages to users.
    pub hosts: Vec<String>,
    /// On rank 0 a connection to each other rank, with its number; elsewhere one connection, to rank 0.
    pub streams: Vec<(usize, TcpStream)>,
}

impl TcpLinks {
    fn check(&self, options: TcpOptions) -> Result<()> {
        let wrong = |reason: String| Err(Error::argument("ranks that are connected by TCP", reason));
        let size = self.hosts.len();
        if self.rank >= size {
            return wrong(format!("rank {} of {size} ranks: ranks count from 0", self.rank));
        }
        let mut ranks: Vec<usize> = self.streams.iter().map(|(rank, _)| *rank).collect();
        ranks.sort_unstable();
        let expected: Vec<usize> = if self.rank == 0 { (1..size).collect() } else { vec![0] };
        if ranks != expected {
            return wrong(format!("rank {} has connections to {ranks:?}, but needs {expected:?}", self.rank));
        }
        if options.deadline.is_zero() {
            return wrong("a deadline of no time at all: give ranks some seconds".into());
        }
        Ok(())
    }
}
