//! Memory that the threads of a stem work in and keep between calls.

use super::vector::LINE;
use crate::memory::{HUGE_PAGE, prefer_huge_pages};
use std::sync::atomic::{AtomicUsize, Ordering};

/// From this size on a region is worth a huge page: its panels are read over and over, and small pages at random
/// physical addresses evict each other from the second-level cache and the TLB.
const LEAST_OF_HUGE_PAGE: usize = 1 << 20;

/// f32 of one use; it grows to the longest call.
#[derive(Debug)]
pub(super) struct Region {
    data: Vec<f32>,
    /// Elements before the first that is used.
    skip: usize,
    /// Elements from there on that may be used; the rest, which alignment leaves over, is never touched.
    used: usize,
    /// Bytes of all regions of the stem.
    held: &'static AtomicUsize,
}

impl Region {
    pub(super) fn new(held: &'static AtomicUsize) -> Self {
        Region { data: Vec::new(), skip: 0, used: 0, held }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.used * size_of::<f32>()
    }

    /// `len` elements of arbitrary content, the first at the start of a cache line: a vector that straddles two lines
    /// costs two loads.
    pub(super) fn take(&mut self, len: usize) -> &mut [f32] {
        self.take_of(len, len)
    }

    /// As [`Region::take`], from a region of at least `most` elements, so that a later call for up to `most` finds it
    /// large enough. Pages that are never touched cost nothing.
    pub(super) fn take_of(&mut self, len: usize, most: usize) -> &mut [f32] {
        let needed = len.max(most);
        if self.used < needed {
            self.grow(needed);
        }
        &mut self.data[self.skip..self.skip + len]
    }

    /// The old content is worthless: dropping it first keeps the peak at the new size.
    fn grow(&mut self, needed: usize) {
        self.release();
        let is_in_huge_pages = needed * size_of::<f32>() >= LEAST_OF_HUGE_PAGE;
        let alignment = if is_in_huge_pages { HUGE_PAGE } else { LINE * size_of::<f32>() };
        let slack = alignment / size_of::<f32>();
        // A huge page is one mapping: it has to be covered in whole.
        let len = if is_in_huge_pages { needed.next_multiple_of(slack) } else { needed };
        self.data = vec![0.0; len + slack];
        self.skip = self.data.as_ptr().align_offset(alignment).min(slack);
        if is_in_huge_pages {
            prefer_huge_pages(&mut self.data[self.skip..][..len]);
        }
        self.used = len;
        self.held.fetch_add(self.used * size_of::<f32>(), Ordering::Relaxed);
    }

    fn release(&mut self) {
        self.held.fetch_sub(self.used * size_of::<f32>(), Ordering::Relaxed);
        (self.data, self.skip, self.used) = (Vec::new(), 0, 0);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.release();
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
