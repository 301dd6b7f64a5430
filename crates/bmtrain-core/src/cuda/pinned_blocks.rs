//! Page-locked blocks that are used again and again: taking one from the driver drains the device.
#![allow(unsafe_code)]

use super::driver::{Context, Event, Pinned};
use crate::error::Result;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// Blocks are as long as a power of two from this on, up to [`LARGE`], and multiples of that beyond.
const SMALL: usize = 4 << 10;
const LARGE: usize = 16 << 20;

#[derive(Debug)]
pub(super) struct Block {
    memory: UnsafeCell<Pinned>,
    address: usize,
    bytes: usize,
}

// SAFETY: who may touch the memory when is decided by the order of a lane; see `bytes` and `bytes_mut`.
unsafe impl Sync for Block {}

impl Block {
    pub(super) fn address(&self) -> usize {
        self.address
    }

    /// The first `bytes` bytes.
    ///
    /// # Safety
    /// Neither the device nor another thread writes them while they are borrowed.
    pub(super) unsafe fn bytes(&self, bytes: usize) -> &[u8] {
        // SAFETY: promised by the caller.
        unsafe { &(&*self.memory.get()).bytes()[..bytes] }
    }

    /// The first `bytes` bytes, for writing.
    ///
    /// # Safety
    /// Neither the device nor another thread uses them while they are borrowed.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn bytes_mut(&self, bytes: usize) -> &mut [u8] {
        // SAFETY: promised by the caller.
        unsafe { &mut (&mut *self.memory.get()).bytes_mut()[..bytes] }
    }
}

/// Blocks with the events after which they are free.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    used: VecDeque<(Arc<Event>, Arc<Block>)>,
}

impl Blocks {
    /// A block of at least `bytes` bytes that is not in use.
    pub(super) fn take(&mut self, context: &Arc<Context>, bytes: usize) -> Result<Arc<Block>> {
        let class = class(bytes);
        for index in 0..self.used.len() {
            if self.used[index].1.bytes == class
                && self.used[index].0.is_reached()?
                && let Some((_, block)) = self.used.remove(index)
            {
                return Ok(block);
            }
        }
        let memory = Pinned::new(context, class)?;
        let address = memory.host_address();
        Ok(Arc::new(Block { memory: UnsafeCell::new(memory), address, bytes: class }))
    }

    /// Blocks that are free once the event is reached.
    pub(super) fn release(&mut self, free: &Arc<Event>, blocks: [Arc<Block>; 2]) {
        self.used.extend(blocks.into_iter().map(|block| (Arc::clone(free), block)));
    }

    pub(super) fn wait(&self) -> Result<()> {
        self.used.iter().try_for_each(|(free, _)| free.synchronize())
    }

    pub(super) fn bytes(&self) -> usize {
        self.used.iter().map(|(_, block)| block.bytes).sum()
    }
}

fn class(bytes: usize) -> usize {
    if bytes > LARGE { bytes.next_multiple_of(LARGE) } else { bytes.max(SMALL).next_power_of_two() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_in_few_lengths_that_hold_what_is_asked_for() {
        for bytes in [0, 1, SMALL, SMALL + 1, 100_000, LARGE, LARGE + 1, 5 * LARGE] {
            assert!(class(bytes) >= bytes.max(SMALL) && class(bytes) < 2 * bytes.max(SMALL).max(1), "{bytes}");
        }
        assert_eq!(class(LARGE + 1), 2 * LARGE);
    }
}
