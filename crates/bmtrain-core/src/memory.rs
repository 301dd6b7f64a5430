//! [`Memory`], a range that a backend hands out, and the host's: anonymous pages, zeroed by the system when they are
//! first touched.
//!
//! [`allocate`] and [`release`] are called by the CPU backend, by buffers of the host beside other devices, and where
//! the stack of the main thread is reserved.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr;

/// A range of device memory that a backend handed out.
#[derive(Debug, PartialEq, Eq)]
pub struct Memory {
    address: u64,
    bytes: usize,
}

impl Memory {
    /// Describe memory of a backend.
    ///
    /// # Safety
    /// Until the backend's [`release`](crate::Backend::release) is called with it, the `bytes` bytes from `address`
    /// must be valid for every kernel and copy of that backend, initialised (to any value), aligned to 512 bytes and
    /// used by nothing else. Views derived from this value are what safe code uses to reach it.
    pub unsafe fn new(address: u64, bytes: usize) -> Self {
        Memory { address, bytes }
    }

    /// First address, meaningful to the backend alone.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Bytes of a huge page of x86-64, and of aarch64 with pages of 4 KiB.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Take memory. Pages that are never touched cost nothing, so a slab may be larger than what is used of it.
pub(crate) fn allocate(bytes: usize) -> Result<Memory> {
    let failed = || Error::no_memory("cpu", bytes);
    let length = bytes.max(1).checked_next_multiple_of(4096).ok_or_else(failed)?;
    let (access, kind) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new private mapping at an address of the system's choice touches no memory that is in use.
    let address = unsafe { mmap_anonymous(ptr::null_mut(), length, access, kind) }.map_err(|_| failed())?;
    // Below this size a huge page would be mostly air.
    if length >= 4 * HUGE_PAGE {
        // SAFETY: the range is the mapping just made. Large pages are a wish: without them everything works, slower.
        let _ = unsafe { madvise(address, length, Advice::LinuxHugepage) };
    }
    // SAFETY: freshly mapped readable and writable, page-aligned, reads as zeros, owned by the returned value alone.
    Ok(unsafe { Memory::new(address as u64, length) })
}

/// Ask for huge pages where `data` covers whole ones. Without them everything works, slower.
pub(crate) fn prefer_huge_pages(data: &mut [f32]) {
    let range = data.as_mut_ptr_range();
    let (start, end) = (range.start as usize, range.end as usize);
    let first = start.next_multiple_of(4096);
    if let Some(length) = (end / 4096 * 4096).checked_sub(first).filter(|length| *length > 0) {
        // SAFETY: whole pages inside the borrowed slice; the advice leaves their content as it is.
        let _ = unsafe { madvise(first as *mut c_void, length, Advice::LinuxHugepage) };
    }
}

/// Give memory of [`allocate`] back.
pub(crate) fn release(memory: Memory) {
    // SAFETY: the range was mapped by `allocate` and is consumed here; the pool has waited for the work on it.
    if let Err(error) = unsafe { munmap(memory.address() as *mut c_void, memory.bytes()) } {
        tracing::warn!(%error, bytes = memory.bytes(), "memory could not be returned to the system");
    }
}
