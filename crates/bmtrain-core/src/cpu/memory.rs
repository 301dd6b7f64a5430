//! Memory of the CPU backend: zeroed, aligned, taken lazily from the system page by page.
#![allow(unsafe_code)]

use crate::backend::Memory;
use crate::error::{Error, Result};
use crate::pool::ALIGNMENT;
use std::alloc::{Layout, alloc_zeroed, dealloc};

/// Take zeroed memory. Pages that are never touched cost nothing, so a slab may be larger than what is used of it.
pub(super) fn allocate(bytes: usize) -> Result<Memory> {
    let failed = |reason: String| Error::Device { backend: "cpu".into(), call: "allocate", reason };
    let layout = Layout::from_size_align(bytes.max(ALIGNMENT), ALIGNMENT).map_err(|error| failed(error.to_string()))?;
    // SAFETY: the layout has a size above zero.
    let pointer = unsafe { alloc_zeroed(layout) };
    if pointer.is_null() {
        return Err(failed(format!("the system refused {bytes} bytes")));
    }
    // SAFETY: freshly allocated with this size and alignment, initialised to zeros, and owned by the returned value alone.
    Ok(unsafe { Memory::new(pointer as u64, layout.size()) })
}

/// Give memory back.
pub(super) fn release(memory: Memory) {
    if let Ok(layout) = Layout::from_size_align(memory.bytes(), ALIGNMENT) {
        // SAFETY: the memory was made by `allocate` with this very layout and is consumed here.
        unsafe { dealloc(memory.address() as *mut u8, layout) };
    }
}
