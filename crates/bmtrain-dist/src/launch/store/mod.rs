//! Meeting point of the processes of a job: a small key-value store over TCP, for ids and barriers, not for tensors.
//!
//! Rank 0 holds the store, the others connect. It is the place to notice that a rank is missing, has ended, runs
//! another version or recipe, or belongs to another job. Everything has a deadline, and who is missing at one is named.
//! Once all have come, [`Store::into_links`] hands the connections over to a control plane
//! ([`TcpRank`](bmtrain_core::comm::tcp::TcpRank)). Called by [`ProcessGroup`](super::ProcessGroup) for ranks on
//! several hosts, through [`Launch::store`](super::Launch::store).

mod answers;
mod board;
mod client;
mod frame;
mod handshake;
mod refused;
mod server;

pub use client::Store;
pub use handshake::Token;
pub use server::StoreServer;

use crate::error::{Error, Result};
use std::net::IpAddr;
use std::time::Duration;

/// Options of the meeting of a job's processes.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// This process's rank.
    pub rank: usize,
    /// Number of ranks, W; the same on all.
    pub world: usize,
    /// Host of rank 0, to connect to.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The address at which rank 0 listens; `None` for the address of `host`.
    pub bind: Option<IpAddr>,
    /// Secret that every process of the job has and no other.
    pub token: Token,
    /// Hash of the job's configuration; the same on all ranks.
    pub recipe: [u8; 32],
    /// Version of this program; the same on all ranks.
    pub version: String,
    /// The name of this process's host, for messages to users.
    pub own_host: String,
    /// Wait until all ranks have come.
    pub deadline: Duration,
    /// Time for a connection to prove that it belongs here.
    pub handshake: Duration,
    /// Time for a rank to come after a process of its number was refused for its token. Then all ranks that wait for it
    /// end, with the reason.
    pub patience: Duration,
}

impl StoreOptions {
    /// Default wait until all ranks have come.
    pub const DEADLINE: Duration = Duration::from_secs(300);

    /// Default time for a connection to prove that it belongs here.
    pub const HANDSHAKE: Duration = Duration::from_secs(5);

    /// Default time for a rank to come after a process of its number was refused.
    pub const PATIENCE: Duration = Duration::from_secs(30);

    /// On this host's loopback.
    pub fn new(rank: usize, world: usize, port: u16, token: Token, recipe: [u8; 32]) -> Self {
        let loopback = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        let host = loopback.to_string();
        let (deadline, handshake, patience) = (Self::DEADLINE, Self::HANDSHAKE, Self::PATIENCE);
        let (version, own_host) = (env!("CARGO_PKG_VERSION").to_owned(), String::new());
        let bind = Some(loopback);
        StoreOptions { rank, world, host, port, bind, token, recipe, version, own_host, deadline, handshake, patience }
    }

    fn check(&self) -> Result<()> {
        if self.rank < self.world {
            return Ok(());
        }
        let reason = format!("rank {} of {} ranks", self.rank, self.world);
        Err(self.error(reason, "ranks count from 0; look at the launcher's variables"))
    }

    /// Address and port, as errors name them.
    fn place(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// An error at this place that is about no rank.
    fn error(&self, reason: impl Into<String>, fix: impl Into<String>) -> Error {
        Error::Rendezvous { place: self.place(), reason: reason.into(), fix: fix.into(), ranks: Vec::new() }
    }
}
