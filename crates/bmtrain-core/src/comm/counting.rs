//! One rank of a group whose other ranks are not there: for counting what a rank takes before there are any.

use super::{Collective, Communicator};
use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::lane::Lane;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A rank without peers. Collectives are checked as for a real group of its size and move nothing: what a
/// rank receives stays as it is. Of use on a backend that computes nothing, such as [`crate::wrap::Counting`].
///
/// Clones, and groups split from it, count what is sent together.
#[derive(Debug, Clone)]
pub struct CountingRank {
    rank: usize,
    size: usize,
    sent: Arc<AtomicU64>,
}

impl CountingRank {
    /// Rank `rank` of `size`.
    pub fn new(rank: usize, size: usize) -> Result<Self> {
        if rank >= size {
            return Err(Error::argument("counting rank", format!("rank {rank} of {size} ranks")));
        }
        Ok(CountingRank { rank, size, sent: Arc::default() })
    }

    /// Bytes that this rank would have sent so far, with collectives as rings ([`Collective::ring_bytes`]).
    pub fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Communicator for CountingRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn is_ordered(&self) -> bool {
        true
    }

    fn launch(&self, backend: &dyn Backend, collective: Collective<'_>, on: Lane) -> Result<()> {
        collective.check(self.rank, self.size)?;
        self.sent.fetch_add(collective.ring_bytes(self.size), Ordering::Relaxed);
        match collective {
            // A counting backend holds its memory for a while.
            Collective::Send { data, .. } => backend.on_host(Some(data), None, Box::new(|_, _| Ok(())), on),
            _ => Ok(()),
        }
    }

    fn split(&self, _colour: usize, _key: usize) -> Result<Arc<dyn Communicator>> {
        // How many ranks give the same colour is known to ranks that are there.
        let reason = "the other ranks are not there to be split: split by what each rank gives, or make a counting \
                      rank of the smaller group's size";
        Err(Error::argument("split", reason))
    }

    fn split_by(&self, of: &dyn Fn(usize) -> (usize, usize)) -> Result<Arc<dyn Communicator>> {
        let (color, _) = of(self.rank);
        let mut members: Vec<usize> = (0..self.size).filter(|rank| of(*rank).0 == color).collect();
        members.sort_by_key(|rank| (of(*rank).1, *rank));
        let rank = members.iter().position(|member| *member == self.rank).unwrap_or(0);
        Ok(Arc::new(CountingRank { rank, size: members.len(), sent: Arc::clone(&self.sent) }))
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    fn abort(&self, reason: &str) {
        tracing::debug!(reason, "a counting rank gives up");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::Reduction;
    use crate::wrap::Counting;
    use crate::{DType, Device, Segment, Storage};

    #[test]
    fn collectives_are_checked_for_the_size_of_the_group_and_no_rank_is_waited_for() {
        let device = Device::new(Arc::new(Counting::new(1 << 20)));
        let rank = CountingRank::new(3, 4).unwrap();
        let storage = |len| Storage::empty(&device, len, DType::F32, Segment::Workspace).unwrap();
        let (part, whole) = (storage(128), storage(512));
        let launch = |send: &Storage, recv: &Storage| {
            let (send, recv) = (send.view(0..send.len()).unwrap(), recv.view_mut(0..recv.len()).unwrap());
            rank.launch(device.backend(), Collective::AllGather { send, recv }, Lane::Compute)
        };
        launch(&part, &whole).unwrap();
        assert!(launch(&part, &part).is_err(), "a gather of four parts into one");
        let data = part.view_mut(0..128).unwrap();
        rank.launch(device.backend(), Collective::AllReduce { data, by: Reduction::Sum }, Lane::Compute).unwrap();
        rank.barrier().unwrap();
        assert!(rank.split(0, 0).is_err());
    }

    #[test]
    fn what_is_sent_is_counted_as_rings_with_the_groups_that_are_split() {
        let device = Device::new(Arc::new(Counting::new(1 << 20)));
        let rank = CountingRank::new(2, 4).unwrap();
        let storage = |len| Storage::empty(&device, len, DType::F32, Segment::Workspace).unwrap();
        let (part, whole) = (storage(128), storage(512));
        let (send, recv) = (part.view(0..128).unwrap(), whole.view_mut(0..512).unwrap());
        rank.launch(device.backend(), Collective::AllGather { send, recv }, Lane::Compute).unwrap();
        assert_eq!(rank.sent_bytes(), 3 * 512);
        let data = whole.view_mut(0..512).unwrap();
        rank.launch(device.backend(), Collective::AllReduce { data, by: Reduction::Sum }, Lane::Compute).unwrap();
        assert_eq!(rank.sent_bytes(), 3 * 512 + 2 * 3 * 512);
        // Even and odd ranks, the last first.
        let even = rank.split_by(&|rank| (rank % 2, 4 - rank)).unwrap();
        assert_eq!((even.rank(), even.size()), (0, 2));
        let data = part.view(0..128).unwrap();
        even.launch(device.backend(), Collective::Send { data, to: 1 }, Lane::Pipe).unwrap();
        assert_eq!(rank.sent_bytes(), 9 * 512 + 512);
    }

    #[test]
    fn a_rank_outside_of_its_group_is_refused() {
        assert!(CountingRank::new(4, 4).is_err() && CountingRank::new(0, 0).is_err());
    }
}
