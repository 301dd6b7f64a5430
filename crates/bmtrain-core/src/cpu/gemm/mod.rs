//! Matrix products on the CPU.

/// Bytes of packing scratch kept by all threads.
pub fn scratch_bytes() -> usize { 0 }
