//! Defines [`MpiRank`], one process of an MPI job.

use super::MpiGroup;
use super::{MpiOptions, join};
use crate::comm::engine::{Group, Member, communicator};
use crate::error::Result;
use std::sync::Arc;

/// This process's handle of a group of an MPI job. It belongs to the rank's thread; when it is dropped by a panic
/// there, the other ranks' calls fail and name this rank. When the last handle of a process is dropped, it waits for
/// the other ranks to end too, as MPI demands.
#[derive(Debug)]
pub struct MpiRank {
    member: Arc<Member<MpiGroup>>,
}

impl MpiRank {
    /// Start MPI in this process, which a launcher of MPI has started, and wait until all ranks have joined. Once in a
    /// process: MPI cannot be started again. Without a launcher, a process is a job of its own, with one rank.
    ///
    /// # Errors
    /// Options outside their ranges, or that differ from another rank's; an MPI without threads, or one that cannot
    /// start; ranks that do not join before the deadline. (Where MPI cannot start at all, it usually ends the process
    /// itself, with its own message.)
    pub fn join(options: MpiOptions) -> Result<Self> {
        Ok(MpiRank { member: Member::new(join::join(options)?) })
    }

    /// End this process and all others of the job with an exit code, after a failure and when the user has been told.
    /// Waits a moment for the other ranks to report theirs. A process that returned from `main` instead would end well,
    /// but launchers differ in what they make of the others, one that is stopped above all.
    pub fn end_job(&self, code: u8) -> ! {
        self.member.group.session.end_job(i32::from(code))
    }
}

communicator!(MpiRank);
