//! Census of the blocks gathered on this rank, by the memory that is really in use: with ZeRO-3, where blocks are
//! gathered only while they compute, a third one is a bug. Defines [`Census`], which all storages of a model share;
//! called by [`Flat::gather`](super::Flat::gather).

use bmtrain_core::{Storage, Watch};
use std::cell::{Cell, RefCell};

/// Blocks whose parameters may be gathered at once.
pub(crate) const MAX_GATHERED_BLOCKS: usize = 2;

/// Blocks with gathered values that are still in use, if only by a tensor that an op saved.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// Number of the block, and its memory.
    gathered: RefCell<Vec<(usize, Watch)>>,
    /// The largest number at once so far.
    most: Cell<usize>,
}

impl Census {
    /// One storage of a block was gathered.
    pub(super) fn enter(&self, block: usize, storage: &Storage) {
        let mut gathered = self.gathered.borrow_mut();
        gathered.retain(|(_, memory)| memory.is_alive());
        gathered.push((block, storage.watch()));
        let blocks = distinct(&gathered);
        self.most.set(self.most.get().max(blocks.len()));
        debug_assert!(blocks.len() <= MAX_GATHERED_BLOCKS, "blocks {blocks:?} are gathered at once");
    }

    /// The largest number of blocks that were gathered at once so far.
    pub(super) fn most(&self) -> usize {
        self.most.get()
    }
}

fn distinct(gathered: &[(usize, Watch)]) -> Vec<usize> {
    let mut blocks: Vec<usize> = gathered.iter().map(|(block, _)| *block).collect();
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
    #[should_panic(expected = "blocks [0, 1, 2] are gathered at once")]
    fn a_saved_tensor_of_a_released_block_is_found_when_the_second_next_block_is_gathered() {
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
