//! Errors that kernels report: an id outside of the table, a target outside of the classes.
//!
//! A device cannot return an error. A kernel that meets such a value leaves it alone, goes on with the rest and reports
//! it in a record of the device's memory; the host reads the records whenever it waits, and the error comes out there.
//!
//! Each lane has a record of its own, which only that lane clears, in its own order: the host cannot clear one between
//! two kernels of another lane and lose what the second of them reports. A wait for one lane tells of the others'
//! records too, but leaves them to the waits for those lanes.
#![allow(unsafe_code)]

use super::driver::{Context, Pattern, Pinned, Stream};
use crate::error::{Error, Result};
use crate::kernel::{
    Arguments, CrossEntropyBackward, CrossEntropyForward, CrossEntropyInPlace, CrossEntropyStatistics,
    EmbeddingBackward, EmbeddingForward, LossTotals, RotaryApply,
};
use crate::lane::Lane;
use std::sync::{Arc, Mutex, PoisonError};

/// Kernels that report, by the numbers their sources use; 0 stands for no report.
const REPORTERS: [&str; 9] = [
    "",
    EmbeddingForward::NAME,
    EmbeddingBackward::NAME,
    CrossEntropyForward::NAME,
    CrossEntropyBackward::NAME,
    CrossEntropyStatistics::NAME,
    LossTotals::NAME,
    RotaryApply::NAME,
    CrossEntropyInPlace::NAME,
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

impl Record {
    /// Whether it can be told by the wait for another lane: it may be read while it is written, and its bound comes
    /// last. Tables without rows, whose bound is 0, are left to the wait for the lane itself.
    fn is_whole(&self) -> bool {
        self.kernel != 0 && self.bound > 0
    }

    fn error(&self) -> Error {
        let op = usize::try_from(self.kernel).ok().and_then(|kernel| REPORTERS.get(kernel).copied());
        let number = |value: i64| usize::try_from(value).unwrap_or(usize::MAX);
        Error::Index {
            op: op.unwrap_or("kernel"),
            position: number(self.position),
            index: self.value,
            bound: number(self.bound),
        }
    }
}

const LANES: usize = Lane::ALL.len();

/// The records of all lanes, concatenated, and for each lane the host memory that its waits read them into.
#[derive(Debug)]
pub(super) struct Faults {
    context: Arc<Context>,
    address: u64,
    seen: [Mutex<Pinned>; LANES],
}

impl Faults {
    pub(super) fn new(context: &Arc<Context>, stream: &Stream) -> Result<Self> {
        let seen = || Ok(Mutex::new(Pinned::new(context, LANES * size_of::<Record>())?));
        let seen = [seen()?, seen()?, seen()?, seen()?, seen()?];
        let address = context.allocate(LANES * size_of::<Record>())?;
        let faults = Faults { context: Arc::clone(context), address, seen };
        Lane::ALL.into_iter().try_for_each(|lane| faults.clear(lane, stream))?;
        stream.synchronize()?;
        Ok(faults)
    }

    pub(super) fn address(&self, lane: Lane) -> u64 {
        self.address + (lane as usize * size_of::<Record>()) as u64
    }

    /// Wait for a lane, whose stream this is. What its kernels reported is the error; else what kernels of another lane
    /// reported.
    pub(super) fn wait(&self, lane: Lane, stream: &Stream) -> Result<()> {
        let mut seen = self.seen[lane as usize].lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the records live as long as `self`; the destination is locked until the stream is idle.
        let queued = unsafe { stream.download(self.address, seen.bytes_mut()) };
        // Also after an error: part of the copy may be on its way.
        stream.synchronize().and(queued)?;
        let records: [Record; LANES] = bytemuck::pod_read_unaligned(seen.bytes());
        let own = records[lane as usize];
        if own.kernel != 0 {
            // The device goes on: the next mistake is reported too. A wait for another lane must not find this one
            // again.
            self.clear(lane, stream)?;
            stream.synchronize()?;
            return Err(own.error());
        }
        records.iter().find(|record| record.is_whole()).map_or(Ok(()), |record| Err(record.error()))
    }

    fn clear(&self, lane: Lane, stream: &Stream) -> Result<()> {
        // SAFETY: the record's own memory, aligned.
        unsafe { stream.fill(self.address(lane), Pattern::Word(0), size_of::<Record>() / size_of::<u32>()) }
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        // SAFETY: taken in `new`, returned once; `cuMemFree` waits for the device.
        if let Err(error) = unsafe { self.context.release(self.address) } {
            tracing::warn!(%error, "the records of faults could not be returned to the device");
        }
    }
}
