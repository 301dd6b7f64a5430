//! Values in the host's memory that leave and enter the device in the order of the copy lane: shards of offloaded
//! parameters, and inputs of recomputed blocks.

use crate::error::Result;
use bmtrain_core::backend::HostWork;
use bmtrain_core::buffer::{View, ViewMut};
use bmtrain_core::offload::HostBuffer;
use bmtrain_core::{DType, Device, Error, Lane};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Values of one dtype in the host's memory. Clones are handles of the same ones; they are up to date only after a wait
/// for the copy lane.
#[derive(Debug, Clone)]
pub(crate) struct HostValues {
    device: Device,
    bytes: Arc<Mutex<HostBuffer>>,
    len: usize,
    dtype: DType,
}

impl HostValues {
    /// `len` zeros beside this device.
    pub(crate) fn zeros(device: &Device, len: usize, dtype: DType) -> Result<Self> {
        let bytes = len.checked_mul(dtype.size()).ok_or_else(|| {
            let got = format!("{len} x {dtype}");
            Error::shape("host values", "length", "below 2^64 bytes", got)
        })?;
        let buffer = HostBuffer::zeros(device, bytes.div_ceil(size_of::<f32>()))?;
        Ok(HostValues { device: device.clone(), bytes: Arc::new(Mutex::new(buffer)), len, dtype })
    }

    pub(crate) fn is(&self, len: usize, dtype: DType) -> bool {
        self.len == len && self.dtype == dtype
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// For work of the copy lane.
    pub(crate) fn shared(&self) -> HostShare {
        HostShare { bytes: Arc::clone(&self.bytes), dtype: self.dtype }
    }

    /// Copy a view of the copy lane to the elements from `start` on.
    pub(crate) fn store(&self, from: View<'_>, start: usize) -> Result<()> {
        let (theirs, range) = (Arc::clone(&self.bytes), self.range(start, from.len()));
        let work: HostWork = Box::new(move |read, _| {
            within(&mut lock(&theirs), &range)?.copy_from_slice(read);
            Ok(())
        });
        Ok(self.device.backend().on_host(Some(from), None, work, Lane::Copy)?)
    }

    /// Copy the elements from `start` on to a view of the copy lane.
    pub(crate) fn fetch(&self, start: usize, to: ViewMut<'_>) -> Result<()> {
        let (theirs, range) = (Arc::clone(&self.bytes), self.range(start, to.len()));
        let work: HostWork = Box::new(move |_, written| {
            written.copy_from_slice(within(&mut lock(&theirs), &range)?);
            Ok(())
        });
        Ok(self.device.backend().fill_on_host(None, to, work, Lane::Copy)?)
    }

    /// Let work of the copy lane see these elements, as bytes: `view` is what it reads of the device.
    pub(crate) fn visit(
        &self,
        view: Option<View<'_>>,
        elements: Range<usize>,
        visit: impl FnOnce(&[u8], &mut [u8]) -> bmtrain_core::Result<()> + Send + 'static,
    ) -> Result<()> {
        let (theirs, range) = (Arc::clone(&self.bytes), self.range(elements.start, elements.len()));
        let work: HostWork = Box::new(move |read, _| visit(read, within(&mut lock(&theirs), &range)?));
        Ok(self.device.backend().on_host(view, None, work, Lane::Copy)?)
    }

    fn range(&self, start: usize, len: usize) -> Range<usize> {
        let size = self.dtype.size();
        start * size..(start + len) * size
    }
}

/// These values for the thread of the copy lane.
#[derive(Debug, Clone)]
pub(crate) struct HostShare {
    bytes: Arc<Mutex<HostBuffer>>,
    dtype: DType,
}

impl HostShare {
    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Append the bytes of these elements to a buffer.
    pub(crate) fn append_to(&self, buffer: &mut Vec<u8>, elements: Range<usize>) -> bmtrain_core::Result<()> {
        let size = self.dtype.size();
        buffer.extend_from_slice(within(&mut lock(&self.bytes), &(elements.start * size..elements.end * size))?);
        Ok(())
    }
}

fn lock(buffer: &Mutex<HostBuffer>) -> MutexGuard<'_, HostBuffer> {
    buffer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn within<'b>(buffer: &'b mut HostBuffer, range: &Range<usize>) -> bmtrain_core::Result<&'b mut [u8]> {
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(buffer.as_mut_slice());
    let outside = || Error::argument("host values", format!("bytes {range:?} are outside of what the host keeps"));
    bytes.get_mut(range.clone()).ok_or_else(outside)
}
