//! Page-locked memory of the host.
#![allow(unsafe_code)]

use super::{Context, answer, failure, warn_of};
use crate::error::Result;
use cudarc::driver::result;
use std::ptr::NonNull;
use std::sync::Arc;

/// Host memory that the device reads by itself, while the host does something else.
#[derive(Debug)]
pub(in crate::cuda) struct Pinned {
    start: NonNull<u8>,
    bytes: usize,
    context: Arc<Context>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Take page-locked memory, filled with zeros.
    pub(in crate::cuda) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        context.bind()?;
        // SAFETY: the memory is given a value below, before anything reads it.
        let start = answer("cuMemHostAlloc", unsafe { result::malloc_host(bytes, 0) })?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| failure("cuMemHostAlloc", "no address"))?;
        // SAFETY: `bytes` bytes from `start` were just taken.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { start, bytes, context: Arc::clone(context) })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the range is owned, initialised in `new` and written only through `bytes_mut`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// The memory, for writing. No copy from it may be queued.
    pub(in crate::cuda) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let free = || {
            self.context.bind()?;
            // SAFETY: taken in `new`, returned only here.
            answer("cuMemFreeHost", unsafe { result::free_host(self.start.as_ptr().cast()) })
        };
        warn_of(free());
    }
}
