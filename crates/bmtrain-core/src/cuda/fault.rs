//! What kernels found outside of a table: an id that is no row, a target that is no class.
//!
//! A device cannot return an error. A kernel that meets such a value leaves it alone, goes on with the rest and reports it in
//! a record of the device's memory; the host reads the record whenever it waits, and the error comes out there.
#![allow(unsafe_code)]

use super::driver::{Context, Pattern, Pinned, Stream};
use crate::error::{Error, Result};
use crate::kernel::{
    Arguments, CrossEntropyBackward, CrossEntropyForward, EmbeddingBackward, EmbeddingForward, LossTotals, RotaryApply,
    VocabularyStatistics,
};
use std::sync::{Arc, Mutex, PoisonError};

/// Kernels that report, by the numbers their sources use; 0 stands for no report.
const REPORTERS: [&str; 8] = [
    "",
    EmbeddingForward::NAME,
    EmbeddingBackward::NAME,
    CrossEntropyForward::NAME,
    CrossEntropyBackward::NAME,
    VocabularyStatistics::NAME,
    LossTotals::NAME,
    RotaryApply::NAME,
];

/// `Fault` of prelude.cuh.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Record {
    kernel: i32,
    unused: i32,
    position: i64,
    value: i64,
    bound: i64,
}

/// The record, and the host memory it is read into.
#[derive(Debug)]
pub(super) struct Faults {
    context: Arc<Context>,
    address: u64,
    seen: Mutex<Pinned>,
}

impl Faults {
    /// An empty record; `stream` clears it.
    pub(super) fn new(context: &Arc<Context>, stream: &Stream) -> Result<Self> {
        let seen = Mutex::new(Pinned::new(context, size_of::<Record>())?);
        let address = context.allocate(size_of::<Record>())?;
        let faults = Faults { context: Arc::clone(context), address, seen };
        faults.clear(stream)?;
        stream.synchronize()?;
        Ok(faults)
    }

    /// Where kernels report to.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Wait for a stream; what its kernels reported is the error.
    pub(super) fn wait(&self, stream: &Stream) -> Result<()> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the record lives as long as `self`; the destination is locked until the stream is idle.
        let queued = unsafe { stream.download(self.address, seen.bytes_mut()) };
        // Also after an error: part of the copy may be on its way.
        stream.synchronize().and(queued)?;
        let record: Record = bytemuck::pod_read_unaligned(seen.bytes_mut());
        if record.kernel == 0 {
            return Ok(());
        }
        // The device goes on: the next mistake is reported too.
        self.clear(stream)?;
        let op = usize::try_from(record.kernel).ok().and_then(|kernel| REPORTERS.get(kernel).copied());
        let number = |value: i64| usize::try_from(value).unwrap_or(usize::MAX);
        Err(Error::Index {
            op: op.unwrap_or("kernel"),
            position: number(record.position),
            index: record.value,
            bound: number(record.bound),
        })
    }

    fn clear(&self, stream: &Stream) -> Result<()> {
        // SAFETY: the record's own memory, aligned.
        unsafe { stream.fill(self.address, Pattern::Word(0), size_of::<Record>() / size_of::<u32>()) }
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        // SAFETY: taken in `new`, returned once; `cuMemFree` waits for the device.
        if let Err(error) = unsafe { self.context.release(self.address) } {
            tracing::warn!(%error, "the record of faults could not be returned to the device");
        }
    }
}
