//! Ranks that are processes and send each other messages, whatever carries these: MPI (`mpi`) or connections of TCP
//! ([`super::tcp`]).
//!
//! In reading order: `group` is the ranks of a group, `transfer` sends and receives the pieces of collectives and
//! messages, `wait` is how a rank waits for others, `leave` how it leaves, `job` what the threads of a process share,
//! `message` what is sent. A carrier takes messages from [`job::MessageJob`], brings them to the same structure of
//! another process, and keeps the order of those from one rank to another.

mod group;
pub(super) mod job;
mod leave;
pub(super) mod message;
mod transfer;
mod wait;

pub(super) use group::MessageGroup;

use job::MessageJob;
use std::fmt::Debug;

/// A process's membership in a job, which is left when it is dropped.
pub(super) trait Session: Debug + Send + Sync + 'static {
    fn job(&self) -> &MessageJob;
}
