//! "GEMM scratch": the memory that products pack and widen their operands into, one per thread, kept between products.
//!
//! A thread's scratch grows to at most about 4 MiB: 2.25 MiB of packed B, 0.3 MiB of widened A, 0.2 MiB of widened B, 1
//! MiB of sums for 16-bit results.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Bytes of GEMM scratch held by all threads of the process.
pub fn scratch_bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Packed panels of B.
    pub(super) panels: Region,
    /// Widened rows of A.
    pub(super) left: Region,
    /// Widened lines of B on their way to a panel.
    pub(super) lines: Region,
    /// f32 sums of a 16-bit result.
    pub(super) sums: Region,
}

#[cfg(test)]
impl Scratch {
    pub(super) fn bytes(&self) -> usize {
        [&self.panels, &self.left, &self.lines, &self.sums].iter().map(|region| region.0.len() * size_of::<f32>()).sum()
    }
}

#[derive(Debug, Default)]
pub(super) struct Region(Vec<f32>);

/// f32 per cache line; vectors that straddle two lines cost two loads.
const LINE: usize = 16;

impl Region {
    /// `len` elements of arbitrary content, the first at the start of a cache line.
    pub(super) fn take(&mut self, len: usize) -> &mut [f32] {
        let needed = len + LINE;
        if self.0.len() < needed {
            BYTES.fetch_add((needed - self.0.len()) * size_of::<f32>(), Ordering::Relaxed);
            // The old content is worthless: dropping it first keeps the peak at the new size.
            self.0 = Vec::new();
            self.0 = vec![0.0; needed];
        }
        let skip = self.0.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        &mut self.0[skip..skip + len]
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        BYTES.fetch_sub(self.0.len() * size_of::<f32>(), Ordering::Relaxed);
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Lends this thread's scratch. A product inside a product (an epilogue that multiplies) gets one of its own.
pub(super) fn with<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        Ok(mut scratch) => work(&mut scratch),
        Err(_) => work(&mut Scratch::default()),
    })
}
