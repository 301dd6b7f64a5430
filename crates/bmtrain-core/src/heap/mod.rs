//! Allocators that a binary installs with `#[global_allocator]`: [`EndingHeap`] ends a program with an exit code if an
//! allocation fails; with the feature `testing`, `CountingHeap` counts allocations.
#![allow(unsafe_code)]

#[cfg(any(test, feature = "testing"))]
mod counting;
mod ending;

#[cfg(any(test, feature = "testing"))]
pub use counting::{CountingHeap, HeapCounts, LARGE, counts};
pub use ending::{EndingHeap, fallible, release_unused, reserve_stack, share_arena};
