//! Which blocks are whole on this rank, by the memory that is really in use: where blocks are to be whole only while
//! they work, a third one is a mistake of ours. Defines [`Census`], which all storages of a model share; called by
//! [`Flat::gather`](super::Flat::gather).

use crate::block::ring::SLOTS;
use bmtrain_core::{Storage, Watch};
use std::cell::{Cell, RefCell};

/// Blocks with gathered values that someone still holds, be it a tensor that an op kept.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// Number of the block, and its memory.
    whole: RefCell<Vec<(usize, Watch)>>,
    /// The most there were at once.
    most: Cell<usize>,
}

impl Census {
    /// A block, or the part of it that lies in one storage, has become whole.
    pub(super) fn enter(&self, block: usize, storage: &Storage) {
        let mut whole = self.whole.borrow_mut();
        whole.retain(|(_, memory)| memory.is_alive());
        whole.push((block, storage.watch()));
        let blocks = distinct(&whole);
        self.most.set(self.most.get().max(blocks.len()));
        debug_assert!(blocks.len() <= SLOTS, "blocks {blocks:?} are whole at once: at most {SLOTS} may be");
    }

    /// The most blocks that were whole at once so far.
    pub(super) fn most(&self) -> usize {
        self.most.get()
    }
}

fn distinct(whole: &[(usize, Watch)]) -> Vec<usize> {
    let mut blocks: Vec<usize> = whole.iter().map(|(block, _)| *block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use bmtrain_core::{DType, Device, Segment};

    fn storage(device: &Device) -> Storage {
        Storage::zeros(device, 8, DType::F32, Segment::Gathered).unwrap()
    }

    #[test]
    fn a_block_counts_once_and_only_while_its_memory_is_held() {
        let (device, census) = (Device::cpu(1).unwrap(), Census::default());
        let [first, frozen_part, second] = [0, 0, 1].map(|block| {
            let storage = storage(&device);
            census.enter(block, &storage);
            storage
        });
        assert_eq!(census.most(), 2);
        drop((first, frozen_part));
        census.enter(2, &storage(&device));
        assert_eq!(census.most(), 2);
        drop(second);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "blocks [0, 1, 2] are whole at once")]
    fn a_tensor_that_keeps_a_released_block_is_found_when_the_second_next_one_comes() {
        let (device, census) = (Device::cpu(1).unwrap(), Census::default());
        let first = storage(&device);
        census.enter(0, &first);
        let _kept = first.tensor(0, [2]).unwrap();
        drop(first);
        let (second, third) = (storage(&device), storage(&device));
        census.enter(1, &second);
        census.enter(2, &third);
    }
}
