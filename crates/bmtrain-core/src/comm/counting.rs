//! One rank of a group whose other ranks are not there: for counting what a rank takes before there are any.

use super::{Collective, Communicator};
use crate::backend::{Backend, Lane};
use crate::error::{Error, Result};
use std::sync::Arc;

/// A rank without peers. Collectives are checked as for a real group of its size and move nothing: what a
/// rank receives stays as it is. Of use on a backend that computes nothing, such as [`crate::wrap::Counting`].
#[derive(Debug, Clone, Copy)]
pub struct CountingRank {
    rank: usize,
    size: usize,
}

impl CountingRank {
    /// Rank `rank` of `size`.
    pub fn new(rank: usize, size: usize) -> Result<Self> {
        if rank >= size {
            return Err(Error::argument("counting rank", format!("rank {rank} of {size} ranks")));
        }
        Ok(CountingRank { rank, size })
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

    fn launch(&self, _backend: &dyn Backend, collective: Collective<'_>, _on: Lane) -> Result<()> {
        collective.check(self.rank, self.size)
    }

    fn split(&self, _colour: usize, _key: usize) -> Result<Arc<dyn Communicator>> {
        // How many ranks give the same colour is known to ranks that are there.
        let reason = "the other ranks are not there to be split: make a counting rank of the smaller group's size";
        Err(Error::argument("split", reason))
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
    fn collectives_are_checked_for_the_size_of_the_group_and_nobody_is_waited_for() {
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
    fn a_rank_outside_of_its_group_is_refused() {
        assert!(CountingRank::new(4, 4).is_err() && CountingRank::new(0, 0).is_err());
    }
}
