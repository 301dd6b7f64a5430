//! Defines [`TcpRank`], one process of a job whose ranks are connected by TCP.

use super::join::{self, TcpGroup};
use super::{TcpLinks, TcpOptions};
use crate::comm::engine::{Group, Member, communicator};
use crate::error::Result;
use std::sync::Arc;

/// This process's handle of a group of ranks that are connected by TCP. It belongs to the rank's thread; when it is
/// dropped by a panic there, the other ranks' calls fail and name this rank. When the last handle of a process is
/// dropped, it waits for the other ranks to end too, as long as they show signs of life.
#[derive(Debug)]
pub struct TcpRank {
    member: Arc<Member<TcpGroup>>,
}

impl TcpRank {
    /// Make this process a rank of the job that its connections belong to. Every rank has to join.
    ///
    /// # Errors
    /// Connections that do not belong to the rank; a deadline of zero; threads that the system refuses.
    pub fn join(links: TcpLinks, options: TcpOptions) -> Result<Self> {
        Ok(TcpRank { member: Member::new(join::join(links, options)?) })
    }
}

communicator!(TcpRank);
