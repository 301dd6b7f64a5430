//! [`CountingHeap`] proves that the steady state of a program allocates nothing large.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// Allocations of at least this many bytes count as large.
pub const LARGE: usize = 64 * 1024;

static LARGE_ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// The system's allocator with counters.
#[derive(Debug, Default, Clone, Copy)]
pub struct CountingHeap;

/// Counts of allocations since the program started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapCounts {
    /// All allocations.
    pub allocations: u64,
    /// Allocations of at least [`LARGE`] bytes.
    pub large: u64,
}

/// The current counts; zeros if the allocator is not installed.
pub fn counts() -> HeapCounts {
    HeapCounts { allocations: ALLOCATIONS.load(Ordering::Relaxed), large: LARGE_ALLOCATIONS.load(Ordering::Relaxed) }
}

fn count(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    if bytes >= LARGE {
        LARGE_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches atomics only.
unsafe impl GlobalAlloc for CountingHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are the system allocator's requirements.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
