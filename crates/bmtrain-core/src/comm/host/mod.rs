//! Ranks on one machine: threads of one process, processes, or both, over memory that they share.
//!
//! [`HostGroup::threads`] makes the ranks of one process, [`HostRank::join`] brings processes together; from there on
//! they are alike. In reading order: `meeting` brings processes together by the `table` of their job, whose bytes are
//! `content`; `join` makes a job, `rings` moves the chunks of collectives, `pair` the messages between two; `group` is
//! what ranks see of each other, `failure` how they report one, `wait` how they wait, `layout` the offsets of
//! everything. The collectives themselves are in `comm::engine`.
//!
//! * **Bits.** Values are reduced in the order of the ranks, whatever the sizes of chunks, the timing and the kind of
//!   rank.
//! * **Order.** Collectives run on each rank in the order in which they were launched, from whatever lanes. Messages
//!   between two ranks have an order of their own, and so have [barriers](crate::comm::Communicator::barrier) and
//!   splits, which run on the calling thread while collectives may be on their way. (A backend that runs all lanes on
//!   one thread, in an order of its own, has to be given one lane for each group.)
//! * **Failures.** Every wait has a deadline. A rank that is lost, gives up, leaves while others wait for it or calls
//!   something else breaks the group: calls on all ranks end in an error with the same story, and so do all later ones.
//!   What fails in the group of all ranks fails in the groups split from it as well. A rank that moved its part of a
//!   last call and went on without waiting learns of a failure in it at its next call.

mod content;
mod failure;
mod group;
mod join;
mod layout;
mod mapping;
mod meeting;
mod pair;
mod rank;
mod rings;
mod table;
mod wait;

pub use join::Rendezvous;
pub use layout::MAX_RANKS;
pub use meeting::Meeting;
pub use rank::HostRank;

use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Connection of the ranks of one machine. Equal on all of them, but for deadline and link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostOptions {
    /// Wait for other ranks before a rank gives up.
    pub deadline: Duration,
    /// Bytes that are moved at a time: a multiple of 4096, up to 64 MiB. A message up to this size is sent without
    /// waiting for its receiver. Each rank takes sixteen chunks of memory for collectives, and four for each rank it
    /// sends to.
    pub chunk: usize,
    /// A link that is slower than the memory, for measurements.
    pub link: Option<Link>,
}

impl Default for HostOptions {
    fn default() -> Self {
        HostOptions { deadline: Duration::from_secs(30), chunk: 128 << 10, link: None }
    }
}

/// A link that every collective pretends to use: from the moment all ranks have come, it takes at least
/// `latency + bytes / bytes_per_second`, with the bytes of
/// [`Collective::bytes`](crate::comm::Collective::bytes). A message takes as long from the beginning of its sending,
/// for the sender and for the receiver.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Time that passes for any number of bytes.
    pub latency: Duration,
    /// Bandwidth of one rank.
    pub bytes_per_second: f64,
}

impl Link {
    /// Transfer time of `bytes` bytes.
    pub fn time(&self, bytes: usize) -> Duration {
        let moving = Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_second).unwrap_or(Duration::MAX);
        self.latency.saturating_add(moving)
    }
}

/// Traffic of a rank under one name of operation. Calls that failed are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Traffic {
    /// Calls that ended well.
    pub calls: u64,
    /// Bytes given away, by [`Collective::bytes`](crate::comm::Collective::bytes).
    pub bytes: u64,
    /// Time on the lane, including waits for other ranks.
    pub seconds: f64,
}

/// The ranks of this machine.
#[derive(Debug)]
pub struct HostGroup;

impl HostGroup {
    /// Ranks for `size` threads of this process: give one to each.
    ///
    /// # Errors
    /// Options or a size outside their ranges; no memory to share.
    pub fn threads(size: usize, options: HostOptions) -> Result<Vec<HostRank>> {
        Ok(join::places(size, options)?.into_iter().map(HostRank::new).collect())
    }

    /// A file for processes to meet at: in memory where the system has a directory for that. Ranks that are to meet
    /// need the same `name`, and no other job may have it at the same time. Letters, digits, dots, dashes and
    /// underscores tell names apart; everything else counts as an underscore.
    pub fn place(name: &str) -> PathBuf {
        let memory = Path::new("/dev/shm");
        let directory = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let name: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' }).collect();
        directory.join(format!("bmtrain-{name}"))
    }
}

impl HostOptions {
    fn check(&self, rank: usize, size: usize) -> Result<()> {
        let wrong = |reason: String| Err(Error::argument("ranks of one machine", reason));
        meeting::require_ranks(rank, size)?;
        if self.chunk == 0 || !self.chunk.is_multiple_of(4096) || self.chunk > 64 << 20 {
            return wrong(format!("chunks of {} bytes: take a multiple of 4096, up to {}", self.chunk, 64 << 20));
        }
        if self.deadline.is_zero() {
            return wrong("a deadline of no time at all: give ranks some seconds".into());
        }
        match self.link {
            Some(link) if !link.bytes_per_second.is_finite() || link.bytes_per_second <= 0.0 => {
                wrong(format!("a link of {} bytes per second", link.bytes_per_second))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
pub(super) fn group_of_one(deadline: Duration) -> impl super::engine::Group {
    let mut groups = join::places(1, HostOptions { deadline, ..HostOptions::default() }).unwrap();
    groups.remove(0)
}
