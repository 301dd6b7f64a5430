//! Counters that the blocks of a launch arrive at, so that the last of them goes on with what all have made.
//!
//! Each lane has counters of its own, because launches of one lane follow each other and launches of different lanes do
//! not. They are zero between launches: the block that comes last sets its counter back.
#![allow(unsafe_code)]

use super::driver::{Context, Pattern, Stream};
use crate::error::Result;
use crate::lane::Lane;
use std::sync::Arc;

/// Counters of a lane, a multiple of 64 so that no two lanes share a line of the cache: `kNormClusters` and one.
const COUNT: usize = 64;

#[derive(Debug)]
pub(super) struct Counters {
    context: Arc<Context>,
    address: u64,
}

impl Counters {
    pub(super) fn new(context: &Arc<Context>, stream: &Stream) -> Result<Self> {
        let len = Lane::ALL.len() * COUNT;
        let address = context.allocate(len * size_of::<u32>())?;
        let counters = Counters { context: Arc::clone(context), address };
        // SAFETY: memory for `len` counters was just taken, and nothing else knows of it.
        unsafe { stream.fill(address, Pattern::Word(0), len) }?;
        stream.synchronize()?;
        Ok(counters)
    }

    /// The address of a lane's counters.
    pub(super) fn address(&self, lane: Lane) -> u64 {
        self.address + (lane as usize * COUNT * size_of::<u32>()) as u64
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: taken in `new`, returned once. `cuMemFree` waits for the device, so that nothing queued uses it.
        if let Err(error) = unsafe { self.context.release(self.address) } {
            tracing::warn!(%error, "the counters of launches could not be returned to the device");
        }
    }
}
