//! Memory that the threads of a stem work in and keep between calls.

use super::vector::LINE;
use std::sync::atomic::{AtomicUsize, Ordering};

/// f32 of one use; it grows to the longest call.
#[derive(Debug)]
pub(super) struct Region {
    data: Vec<f32>,
    /// Bytes of all regions of the stem.
    held: &'static AtomicUsize,
}

impl Region {
    pub(super) fn new(held: &'static AtomicUsize) -> Self {
        Region { data: Vec::new(), held }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.data.len() * size_of::<f32>()
    }

    /// `len` elements of arbitrary content, the first at the start of a cache line: a vector that straddles two lines
    /// costs two loads.
    pub(super) fn take(&mut self, len: usize) -> &mut [f32] {
        self.take_of(len, len)
    }

    /// As [`Region::take`], from a region of at least `most` elements, so that a later call for up to `most` finds it
    /// large enough. Pages that are never touched cost nothing.
    pub(super) fn take_of(&mut self, len: usize, most: usize) -> &mut [f32] {
        let needed = len.max(most) + LINE;
        if self.data.len() < needed {
            self.held.fetch_add((needed - self.data.len()) * size_of::<f32>(), Ordering::Relaxed);
            // The old content is worthless: dropping it first keeps the peak at the new size.
            self.data = Vec::new();
            self.data = vec![0.0; needed];
        }
        let skip = self.data.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
        &mut self.data[skip..skip + len]
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.held.fetch_sub(self.data.len() * size_of::<f32>(), Ordering::Relaxed);
    }
}

/// Defines `Scratch`, the [`Region`]s of one thread, `with`, which lends them, and `bytes`, what all threads hold.
macro_rules! scratch {
    ($($(#[$doc:meta])* $region:ident),* $(,)?) => {
        static HELD: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

        /// Bytes held by all threads of the process.
        pub fn bytes() -> usize {
            HELD.load(std::sync::atomic::Ordering::Relaxed)
        }

        #[derive(Debug)]
        pub(super) struct Scratch {
            $($(#[$doc])* pub(super) $region: $crate::cpu::scratch::Region,)*
        }

        impl Scratch {
            fn new() -> Self {
                Scratch { $($region: $crate::cpu::scratch::Region::new(&HELD),)* }
            }

            #[cfg(test)]
            pub(super) fn bytes(&self) -> usize {
                [$(self.$region.bytes()),*].into_iter().sum()
            }
        }

        thread_local! {
            static SCRATCH: std::cell::RefCell<Scratch> = std::cell::RefCell::new(Scratch::new());
        }

        /// Lends this thread's scratch.
        pub(super) fn with<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
            SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
                Ok(mut scratch) => work(&mut scratch),
                // A product inside a product.
                Err(_) => work(&mut Scratch::new()),
            })
        }
    };
}
pub(super) use scratch;
