//! Uploads through a ring of page-locked blocks, so that the host's slice is free when the call returns.
//!
//! The driver's own copy from ordinary memory may wait for the stream, and when it returns is its business. Here the
//! host writes a block, queues the copy from it and goes on; it waits only for a block that is still being read.
#![allow(unsafe_code)]

use super::driver::{Context, Event, Pinned, Stream};
use crate::error::Result;
use std::sync::Arc;

/// Batches fit into one block; parameters go through the ring in pieces.
const BLOCK_BYTES: usize = 1 << 20;
const BLOCKS: usize = 4;

/// The ring. Blocks are taken when they are first needed.
#[derive(Debug, Default)]
pub(super) struct Staging {
    blocks: Vec<Block>,
    next: usize,
}

#[derive(Debug)]
struct Block {
    memory: Pinned,
    /// Recorded after the latest copy from the block.
    read: Event,
}

impl Staging {
    /// Queue a copy of `host` to the device.
    ///
    /// # Safety
    /// The `host.len()` bytes from `to` are valid until the stream has run the copy.
    pub(super) unsafe fn upload(
        &mut self,
        context: &Arc<Context>,
        stream: &Stream,
        host: &[u8],
        to: u64,
    ) -> Result<()> {
        for (index, piece) in host.chunks(BLOCK_BYTES).enumerate() {
            let block = self.free_block(context)?;
            block.memory.bytes_mut()[..piece.len()].copy_from_slice(piece);
            let to = to + (index * BLOCK_BYTES) as u64;
            // SAFETY: the destination is the caller's promise. The block is written again only after the event that
            // follows this copy is reached, and it is dropped only after `wait` (see `Drop`).
            unsafe { stream.upload(&block.memory, piece.len(), to) }?;
            if let Err(error) = block.read.record(stream) {
                // Without the event it is unknown when the block is free.
                stream.synchronize()?;
                return Err(error);
            }
        }
        Ok(())
    }

    pub(super) fn bytes(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES
    }

    /// The block that was used longest ago, once it has been read.
    fn free_block(&mut self, context: &Arc<Context>) -> Result<&mut Block> {
        let index = self.next;
        self.next = (self.next + 1) % BLOCKS;
        if index == self.blocks.len() {
            self.blocks.push(Block { memory: Pinned::new(context, BLOCK_BYTES)?, read: Event::new(context)? });
        } else {
            self.blocks[index].read.synchronize()?;
        }
        Ok(&mut self.blocks[index])
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        for block in &self.blocks {
            if let Err(error) = block.read.synchronize() {
                tracing::warn!(%error, "the device failed while it read staged data");
            }
        }
    }
}
