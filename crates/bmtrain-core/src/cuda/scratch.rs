//! Device memory that a launch needs besides its arguments: partial sums, the workspace of matrix products.
//!
//! Each lane has a block that its launches use one after the other, in the order of the lane. It grows to what the
//! largest of them asked for; steady state allocates nothing. A block that has become too small is kept until the
//! device is closed: the driver's `cuMemFree` waits for all work of the device, and where ranks are threads of one
//! process, a collective of this device may wait for another rank, which waits for a lock of the driver. Blocks at
//! least double, so all that were outgrown are less than the block in use.
//!
//! What one launch queues between taking the block and its last use of it must not be mixed with what another thread
//! gives to the same lane, and the block must not be returned in between by one that needs a larger one. So it is
//! [`Taken`] until the launch is queued; another thread that wants it waits that long, which is some calls of the
//! driver.
#![allow(unsafe_code)]

use super::driver::Context;
use crate::error::Result;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The least that is taken.
const LEAST: usize = 4 << 20;

/// The block of a lane, until all work that uses it is queued.
#[derive(Debug)]
#[must_use = "the block is another thread's as soon as this is dropped"]
pub(super) struct Taken<'s> {
    address: u64,
    _blocks: MutexGuard<'s, Vec<Block>>,
}

impl Taken<'_> {
    /// The first address, a multiple of 256.
    pub(super) fn address(&self) -> u64 {
        self.address
    }
}

#[derive(Debug)]
pub(super) struct Scratch {
    context: Arc<Context>,
    /// The last one is in use; queued work may still use the smaller ones before it.
    blocks: Mutex<Vec<Block>>,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    address: u64,
    bytes: usize,
}

impl Scratch {
    /// Nothing is taken before it is asked for.
    pub(super) fn new(context: &Arc<Context>) -> Self {
        Scratch { context: Arc::clone(context), blocks: Mutex::default() }
    }

    /// At least `bytes` bytes, for work that is queued on the lane while they are held. What an earlier launch left
    /// there is overwritten by the next. A launch takes them once: a second time it would wait for itself.
    pub(super) fn take(&self, bytes: usize) -> Result<Taken<'_>> {
        let mut blocks = self.lock();
        let held = blocks.last().copied().unwrap_or(Block { address: 0, bytes: 0 });
        if held.bytes >= bytes {
            return Ok(Taken { address: held.address, _blocks: blocks });
        }
        let bytes = bytes.max(2 * held.bytes).max(LEAST);
        let address = self.context.allocate(bytes)?;
        blocks.push(Block { address, bytes });
        Ok(Taken { address, _blocks: blocks })
    }

    pub(super) fn bytes(&self) -> usize {
        self.lock().iter().map(|block| block.bytes).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Block>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for Block { address, bytes } in std::mem::take(&mut *self.lock()) {
            // SAFETY: taken in `take`, returned once. `cuMemFree` waits for the device, so that nothing queued uses it.
            if let Err(error) = unsafe { self.context.release(address) } {
                tracing::warn!(%error, bytes, "scratch memory could not be returned to the device");
            }
        }
    }
}
