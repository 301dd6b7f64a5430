//! Views: checked ranges of device memory with an element type, made for one lane.
//!
//! Buffers make them, kernels take them as arguments, and only a backend turns one into an address, so code without
//! `unsafe` cannot reach memory it should not. [`buffer`](crate::buffer) publishes them.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::lane::{DeviceId, Lane};
use std::cell::Cell;
use std::marker::PhantomData;

/// The fields of a view; lifetimes are added by [`View`] and [`ViewMut`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) device: DeviceId,
    pub(crate) address: u64,
    pub(crate) len: usize,
    pub(crate) dtype: DType,
    pub(crate) lane: Lane,
}

impl Range {
    pub(crate) fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    pub(crate) fn overlaps(&self, other: &Range) -> bool {
        let (start, end) = (self.address, self.address + self.bytes() as u64);
        let (other_start, other_end) = (other.address, other.address + other.bytes() as u64);
        self.len > 0 && other.len > 0 && start < other_end && other_start < end
    }
}

/// Lifetime of a view, during which its memory is held; it also keeps a view on its rank's thread, as the buffer does.
type Life<'a> = PhantomData<&'a Cell<u8>>;

/// A readable range of a buffer: elements of one type, for work on one lane.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub(crate) range: Range,
    life: Life<'a>,
}

/// A writable range of a buffer.
#[derive(Debug)]
pub struct ViewMut<'a> {
    pub(crate) range: Range,
    life: Life<'a>,
}

/// A view, whether it is written or not.
pub(crate) trait Ranged {
    fn range(&self) -> &Range;
}

macro_rules! view_facts {
    ($view:ident) => {
        impl Ranged for $view<'_> {
            fn range(&self) -> &Range {
                &self.range
            }
        }

        impl<'a> $view<'a> {
            /// A view of a range that the buffer has checked and holds.
            pub(crate) fn new(range: Range) -> Self {
                $view { range, life: PhantomData }
            }

            /// Number of elements.
            pub fn len(&self) -> usize {
                self.range.len
            }

            /// Whether there is no element.
            pub fn is_empty(&self) -> bool {
                self.range.len == 0
            }

            /// Type of the elements.
            pub fn dtype(&self) -> DType {
                self.range.dtype
            }

            /// Length in bytes.
            pub fn bytes(&self) -> usize {
                self.range.bytes()
            }

            /// The device whose memory this is.
            pub fn device(&self) -> DeviceId {
                self.range.device
            }

            /// The lane this view was made for.
            pub fn lane(&self) -> Lane {
                self.range.lane
            }

            /// The address, for the backend that owns the memory.
            pub fn address(&self) -> u64 {
                self.range.address
            }

            /// This range for as long as one likes: for backends that run work after the call returned.
            ///
            /// # Safety
            /// The caller uses it only before the memory is released by the backend, as for
            /// [`Kernel::detach`](crate::kernel::Kernel::detach).
            #[allow(unsafe_code)]
            pub unsafe fn detach(self) -> $view<'static> {
                $view { range: self.range, life: PhantomData }
            }

            /// The part of `len` elements from element `start` on.
            pub fn part(self, start: usize, len: usize) -> Result<Self> {
                if start.checked_add(len).is_none_or(|end| end > self.range.len) {
                    let got = format!("{len} from {start}");
                    return Err(Error::shape("view", "part", format!("inside {}", self.range.len), got));
                }
                let address = self.range.address + (start * self.range.dtype.size()) as u64;
                Ok($view { range: Range { address, len, ..self.range }, life: PhantomData })
            }
        }
    };
}
view_facts!(View);
view_facts!(ViewMut);

impl<'a> ViewMut<'a> {
    /// This range, read-only.
    pub fn as_view(&self) -> View<'_> {
        View { range: self.range, life: PhantomData }
    }

    /// This range, writable for a shorter time.
    pub fn reborrow(&mut self) -> ViewMut<'_> {
        ViewMut { range: self.range, life: PhantomData }
    }

    /// Split rows of `stride` elements into neighbouring columns, one view for each width, from its first element to
    /// its last. The views interleave in memory: a kernel takes several of them where it knows them as rows.
    pub fn split_columns<const N: usize>(self, stride: usize, widths: [usize; N]) -> Result<[ViewMut<'a>; N]> {
        let whole = widths.iter().try_fold(0usize, |sum, width| sum.checked_add(*width)) == Some(stride);
        if !whole || stride == 0 || !self.range.len.is_multiple_of(stride) {
            let got = format!("{widths:?} of {stride} in {} elements", self.range.len);
            return Err(Error::shape("view", "columns", "widths that make up whole rows", got));
        }
        let mut start = 0;
        Ok(widths.map(|width| {
            let len = (self.range.len + width).saturating_sub(stride);
            let address = self.range.address + (start * self.range.dtype.size()) as u64;
            start += width;
            ViewMut { range: Range { address, len, ..self.range }, life: PhantomData }
        }))
    }
}
