//! Buffers of device memory.
//!
//! A [`Buffer`] belongs to one rank's thread. Dropping it returns its memory to the pool in lane order. Tensors and
//! storages are made of buffers, and kernels see them through views.

pub use crate::view::{View, ViewMut};

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::lane::{Lane, Mark};
use crate::pool::{Chunk, Segment};
use crate::view::Range;
use std::cell::Cell;
use std::fmt;

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
        Ok(View::new(self.range(start, len, dtype, on)?))
    }

    /// A writable view. Whether others may see the change is for the caller to know: tensors ask for it only when they
    /// own the buffer alone, storages share their content by design. The lane waits until a message that is sent from
    /// here has left.
    pub(crate) fn view_mut(&self, start: usize, len: usize, dtype: DType, on: Lane) -> Result<ViewMut<'_>> {
        if let Some(mark) = self.read_until.get().filter(|mark| mark.lane != on) {
            self.device.backend().wait(on, mark)?;
        }
        Ok(ViewMut::new(self.range(start, len, dtype, on)?))
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
