//! Page-locked memory of the host.
#![allow(unsafe_code)]

use super::{Context, answer, failure, warn_of};
use crate::error::Result;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Host memory that the device reads by itself, while the host does something else.
#[derive(Debug)]
pub(in crate::cuda) struct Pinned {
    start: NonNull<u8>,
    bytes: usize,
    context: Arc<Context>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}
// SAFETY: shared references read plain memory, or use atomics.
unsafe impl Sync for Pinned {}

impl Pinned {
    pub(in crate::cuda) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        context.drain()?;
        const NO_FLAGS: u32 = 0;
        let mut start = ptr::null_mut();
        // SAFETY: one address is written.
        answer("cuMemHostAlloc", unsafe { (context.driver.pinned_allocate)(&mut start, bytes, NO_FLAGS) })?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| failure("cuMemHostAlloc", "no address"))?;
        // SAFETY: `bytes` bytes from `start` were just taken.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { start, bytes, context: Arc::clone(context) })
    }

    /// Address of the memory in this process, for [`super::Stream::upload_later`].
    pub(in crate::cuda) fn host_address(&self) -> usize {
        self.start.as_ptr().expose_provenance()
    }

    pub(in crate::cuda) fn device_address(&self) -> Result<u64> {
        self.context.bind()?;
        let mut address = 0;
        // SAFETY: the memory was taken in `new` and lives.
        let status =
            unsafe { (self.context.driver.pinned_device_address)(&mut address, self.start.as_ptr().cast(), 0) };
        answer("cuMemHostGetDevicePointer", status)?;
        Ok(address)
    }

    /// Write a number to the `u32` at `index`, for a stream that waits for it, with release ordering: what was written
    /// to other memory before is visible first.
    pub(in crate::cuda) fn publish(&self, index: usize, number: u32) {
        self.number_at(index).store(number, Ordering::Release);
    }

    /// The number in the `u32` at `index`, which a stream may write at any time, with acquire ordering.
    pub(in crate::cuda) fn number(&self, index: usize) -> u32 {
        self.number_at(index).load(Ordering::Acquire)
    }

    fn number_at(&self, index: usize) -> &AtomicU32 {
        assert!((index + 1) * size_of::<u32>() <= self.bytes, "an index beyond the end of the memory");
        // SAFETY: page-locked memory is aligned to a page, and the index is inside of it; all use it as an
        // atomic.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().cast::<u32>().add(index)) }
    }

    /// The memory. The device must not write it while it is borrowed.
    pub(in crate::cuda) fn bytes(&self) -> &[u8] {
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
            let drained = self.context.drain();
            // SAFETY: taken in `new`, returned only here.
            answer("cuMemFreeHost", unsafe { (self.context.driver.pinned_free)(self.start.as_ptr().cast()) })
                .and(drained)
        };
        warn_of(free());
    }
}
