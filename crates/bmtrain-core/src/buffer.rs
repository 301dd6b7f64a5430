//! Buffers of device memory and the views through which kernels see them.
//!
//! A [`Buffer`] belongs to one rank's thread. Dropping it returns its memory to the pool in lane order. A [`View`] is a
//! checked range of a buffer with an element type, made for one lane; only a backend turns it into an address, so code
//! without `unsafe` cannot reach memory it should not.

use crate::backend::{DeviceId, Lane, Mark};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::pool::{Chunk, Segment};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;

/// A range of device memory taken from the pool of a [`Device`].
pub struct Buffer {
    device: Device,
    /// Present until drop.
    chunk: Option<Chunk>,
    address: u64,
    bytes: usize,
    /// Lanes that were given work on this buffer since it was taken.
    lanes: Cell<u8>,
    /// Until when a message on another lane reads it.
    read_until: Cell<Option<Mark>>,
}

impl Buffer {
    /// Take `bytes` bytes for `segment`. The content is unspecified but initialised.
    pub fn new(device: &Device, bytes: usize, segment: Segment) -> Result<Self> {
        Buffer::new_on(device, bytes, segment, Lane::Compute)
    }

    /// As [`Buffer::new`], for memory whose first use is on another lane than `Compute`.
    pub fn new_on(device: &Device, bytes: usize, segment: Segment, first_use: Lane) -> Result<Self> {
        let chunk = device.take(bytes, segment, first_use)?;
        let (device, address, chunk) = (device.clone(), chunk.address(), Some(chunk));
        Ok(Buffer { device, chunk, address, bytes, lanes: Cell::new(0), read_until: Cell::new(None) })
    }

    /// The device whose memory this is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Length in bytes, as asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A readable view of `len` elements from element `start` on.
    pub fn view(&self, start: usize, len: usize, dtype: DType, on: Lane) -> Result<View<'_>> {
        Ok(View { range: self.range(start, len, dtype, on)?, life: PhantomData })
    }

    /// A writable view. Whether others may see the change is for the caller to know: tensors ask for it only when they
    /// own the buffer alone, storages share their content by design. The lane waits until a message that is sent from
    /// here has left.
    pub(crate) fn view_mut(&self, start: usize, len: usize, dtype: DType, on: Lane) -> Result<ViewMut<'_>> {
        if let Some(mark) = self.read_until.get().filter(|mark| mark.lane != on) {
            self.device.backend().wait(on, mark)?;
        }
        Ok(ViewMut { range: self.range(start, len, dtype, on)?, life: PhantomData })
    }

    /// Note that a message is read from here until this mark.
    pub(crate) fn reads_until(&self, mark: Mark) {
        self.read_until.set(Some(mark));
    }

    /// The compute lane has waited for this end of a lane's work on this buffer: what comes later on the compute lane
    /// is ordered after it. Nothing changes where later work of another lane reads the buffer.
    pub(crate) fn joined(&self, end: Mark) {
        if self.read_until.get().is_none_or(|mark| mark == end) {
            self.read_until.set(None);
            self.lanes.set(self.lanes.get() & !end.lane.bit() | Lane::Compute.bit());
        }
    }

    /// Whether only the compute lane has been given work on this buffer.
    pub(crate) fn is_of_compute_alone(&self) -> bool {
        self.lanes.get() & !Lane::Compute.bit() == 0
    }

    fn range(&self, start: usize, len: usize, dtype: DType, on: Lane) -> Result<Range> {
        let size = dtype.size();
        let end = start.checked_add(len).and_then(|end| end.checked_mul(size));
        if end.is_none_or(|end| end > self.bytes) {
            let got = format!("{len} x {dtype} from element {start}");
            return Err(Error::shape("view", "range", format!("inside {} bytes", self.bytes), got));
        }
        self.lanes.set(self.lanes.get() | on.bit());
        Ok(Range { device: self.device.id(), address: self.address + (start * size) as u64, len, dtype, lane: on })
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            self.device.release(chunk, self.lanes.get());
        }
    }
}

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

/// A readable range of a buffer: elements of one type, for work on one lane.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub(crate) range: Range,
    life: PhantomData<&'a Buffer>,
}

/// A writable range of a buffer.
#[derive(Debug)]
pub struct ViewMut<'a> {
    pub(crate) range: Range,
    life: PhantomData<&'a Buffer>,
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

            /// The same range for as long as one likes: for backends that run work after the call returned.
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
    /// The same range, read-only.
    pub fn as_view(&self) -> View<'_> {
        View { range: self.range, life: PhantomData }
    }

    /// The same range, writable for a shorter time.
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
