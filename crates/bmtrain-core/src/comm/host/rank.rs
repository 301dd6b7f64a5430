//! Defines [`HostRank`], one rank of a machine.

use super::group::SharedGroup;
use super::join;
use super::{HostOptions, Rendezvous, Traffic};
use crate::comm::engine::{Group, Member, communicator};
use crate::error::Result;
use std::sync::Arc;

/// A rank's handle of its group. It belongs to the rank's thread; when it is dropped by a panic there, the other ranks'
/// calls fail and name this rank.
#[derive(Debug)]
pub struct HostRank {
    member: Arc<Member<SharedGroup>>,
}

impl HostRank {
    pub(super) fn new(group: SharedGroup) -> Self {
        HostRank { member: Member::new(group) }
    }

    /// Join the ranks of this machine as rank `rank` of `size`, and wait until all have joined.
    ///
    /// # Errors
    /// Arguments outside their ranges; a rendezvous that cannot be used, or where this rank or other options are
    /// already; ranks that do not join before the deadline.
    pub fn join(at: impl Into<Rendezvous>, rank: usize, size: usize, options: HostOptions) -> Result<Self> {
        Ok(HostRank::new(join::join(at.into(), rank, size, options)?))
    }

    /// Traffic of this rank in this group so far, by name of operation.
    pub fn traffic(&self) -> Vec<(&'static str, Traffic)> {
        self.member.group.traffic()
    }
}

communicator!(HostRank);
