//! A rank as a [`Communicator`](crate::comm::Communicator): launches collectives on lanes, in the order of the calls.
//!
//! Work on a lane keeps the rank in its group, so that a handle may be dropped before the work has run; the rank leaves
//! when the last of both has ended.

use super::Group;
use crate::backend::Backend;
use crate::comm::call::{Call, CallKind};
use crate::comm::queue::{CallQueues, lock};
use crate::comm::{Collective, Reduction};
use crate::error::Result;
use crate::lane::Lane;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Kind of a collective, without its memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum CollectiveKind {
    AllGather,
    ReduceScatter(Reduction),
    AllReduce(Reduction),
    Reduce(Reduction, usize),
    Broadcast(usize),
    AllToAll,
}

impl CollectiveKind {
    /// The kind of a collective of all ranks; none for a message between two.
    fn of(collective: &Collective<'_>) -> Option<Self> {
        Some(match collective {
            Collective::AllGather { .. } => CollectiveKind::AllGather,
            Collective::ReduceScatter { by, .. } => CollectiveKind::ReduceScatter(*by),
            Collective::AllReduce { by, .. } => CollectiveKind::AllReduce(*by),
            Collective::Reduce { by, root, .. } => CollectiveKind::Reduce(*by, *root),
            Collective::Broadcast { root, .. } => CollectiveKind::Broadcast(*root),
            Collective::AllToAll { .. } => CollectiveKind::AllToAll,
            Collective::Send { .. } | Collective::Recv { .. } => return None,
        })
    }
}

/// State that a rank's handle and its work on lanes share.
#[derive(Debug)]
pub(crate) struct Member<G> {
    pub(crate) group: G,
    queues: CallQueues,
    /// Meetings of the host so far.
    meetings: Mutex<u64>,
}

impl<G: Group> Member<G> {
    pub(crate) fn new(group: G) -> Arc<Self> {
        let queues = CallQueues::new(group.members().size);
        Arc::new(Member { group, queues, meetings: Mutex::default() })
    }

    /// Give a collective to a lane, where it runs after the calls launched before.
    ///
    /// # Errors
    /// Views that do not fit the collective or the group; a failed group; a launch that the backend refuses.
    pub(crate) fn launch(self: &Arc<Self>, backend: &dyn Backend, collective: Collective<'_>, on: Lane) -> Result<()> {
        let members = self.group.members();
        collective.check(members.rank, members.size)?;
        let (call_kind, kind, bytes) = (CallKind::of(&collective), CollectiveKind::of(&collective), collective.bytes());
        self.queues.of(&call_kind).launch(|sequence| {
            let call = Call { kind: call_kind, sequence };
            self.group.healthy(&call)?;
            let member = Arc::clone(self);
            let work = Box::new(move |send: &[u8], data: &mut [u8]| member.run(&call, kind, bytes, send, data));
            match collective {
                Collective::AllGather { send, recv }
                | Collective::ReduceScatter { send, recv, .. }
                | Collective::AllToAll { send, recv } => backend.fill_on_host(Some(send), recv, work, on),
                Collective::Recv { data, .. } => backend.fill_on_host(None, data, work, on),
                Collective::Broadcast { data, root } if root != members.rank => {
                    backend.fill_on_host(None, data, work, on)
                }
                Collective::AllReduce { data, .. }
                | Collective::Reduce { data, .. }
                | Collective::Broadcast { data, .. } => backend.on_host(None, Some(data), work, on),
                Collective::Send { data, .. } => backend.on_host(Some(data), None, work, on),
            }
        })
    }

    /// One call, on the lane's thread.
    fn run(&self, call: &Call, kind: Option<CollectiveKind>, bytes: usize, send: &[u8], data: &mut [u8]) -> Result<()> {
        let _turn = self.queues.of(&call.kind).wait(&self.group, call)?;
        self.group.healthy(call)?;
        let begin = Instant::now();
        let result = self.group.run(call, kind, send, data);
        let under_way = result.map_err(|error| self.group.fail_with(call, error))?;
        self.group.completed(call, bytes, begin, Some(under_way))
    }

    pub(crate) fn split(&self, color: usize, key: usize) -> Result<Arc<Self>> {
        let mut meetings = lock(&self.meetings);
        let (call, begin) = (Call { kind: CallKind::Split, sequence: *meetings }, Instant::now());
        let (group, met) = self.group.split(color as u64, key as u64, *meetings)?;
        *meetings += met;
        self.group.completed(&call, 0, begin, None)?;
        Ok(Member::new(group))
    }

    pub(crate) fn barrier(&self) -> Result<()> {
        let mut meetings = lock(&self.meetings);
        let (call, begin) = (Call { kind: CallKind::Barrier, sequence: *meetings }, Instant::now());
        self.group.meet(&call, [0; 2])?;
        *meetings += 1;
        self.group.completed(&call, 0, begin, None)
    }

    /// The handle of the rank is dropped: if by a panic, the other ranks' calls fail and name this rank.
    pub(crate) fn dropped(&self) {
        if std::thread::panicking() {
            // The exit code of a bug.
            self.group.give_up(1, "its thread panicked");
        }
    }
}

/// Makes a type with a field `member: Arc<Member<_>>` a [`Communicator`](crate::comm::Communicator).
macro_rules! communicator {
    ($rank:ident) => {
        impl $rank {
            /// As [`Communicator::split`](crate::comm::Communicator::split), with the type of this rank.
            pub fn subgroup(&self, color: usize, key: usize) -> $crate::error::Result<$rank> {
                Ok($rank { member: self.member.split(color, key)? })
            }

            /// As [`Communicator::abort`](crate::comm::Communicator::abort), with the exit code of this rank, which
            /// the other ranks' calls return as [`Error::RankEnded`](crate::Error::RankEnded); after a lost rank they
            /// name that one.
            pub fn abort_with(&self, code: u8, reason: &str) {
                self.member.group.give_up(code, reason);
            }
        }

        impl $crate::comm::Communicator for $rank {
            fn rank(&self) -> usize {
                self.member.group.members().rank
            }

            fn size(&self) -> usize {
                self.member.group.members().size
            }

            fn is_ordered(&self) -> bool {
                true
            }

            fn launch(
                &self,
                backend: &dyn $crate::backend::Backend,
                collective: $crate::comm::Collective<'_>,
                on: $crate::backend::Lane,
            ) -> $crate::error::Result<()> {
                self.member.launch(backend, collective, on)
            }

            fn split(
                &self,
                color: usize,
                key: usize,
            ) -> $crate::error::Result<std::sync::Arc<dyn $crate::comm::Communicator>> {
                Ok(std::sync::Arc::new(self.subgroup(color, key)?))
            }

            fn barrier(&self) -> $crate::error::Result<()> {
                self.member.barrier()
            }

            fn failure(&self) -> Option<$crate::error::Error> {
                self.member.group.failure()
            }

            fn abort(&self, reason: &str) {
                self.member.group.give_up(0, reason);
            }
        }

        impl Drop for $rank {
            fn drop(&mut self) {
                self.member.dropped();
            }
        }
    };
}
pub(crate) use communicator;
