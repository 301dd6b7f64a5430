//! [`CudaBackend`] as a [`Backend`]: memory, transfer, order, and work of the host in a lane.
#![allow(unsafe_code)]

use super::CudaBackend;
use super::driver::{Pinned, Stream, failure};
use super::host_work::{DeviceRange, HostWorker, Old};
use super::scratch::Scratch;
use crate::backend::{Backend, HostWork};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::kernel::Activation;
use crate::kernel::elementwise::library_has_derivative;
use crate::lane::{DeviceId, Lane, Mark};
use crate::memory::Memory;
use crate::threads::Threads;
use crate::view::{View, ViewMut};
use std::sync::{Arc, PoisonError};

/// Alignment that the pool relies on.
const ALIGNMENT: u64 = 512;

/// Reads of up to this size in bytes, such as losses and norms, go through page-locked memory.
const SMALL_READ: usize = 4096;

impl Backend for CudaBackend {
    fn name(&self) -> String {
        format!("cuda:{} ({})", self.ordinal, self.context.name())
    }

    fn id(&self) -> DeviceId {
        self.id
    }

    fn allocate(&self, bytes: usize) -> Result<Memory> {
        let bytes = bytes.max(1);
        let address = self.context.allocate(bytes)?;
        if !address.is_multiple_of(ALIGNMENT) {
            // The driver promises 256 bytes and gives 512 or more.
            // SAFETY: just taken, and nothing has used it.
            unsafe { self.context.release(address) }?;
            return Err(failure("allocate", format!("address {address:#x} is not a multiple of {ALIGNMENT}")));
        }
        // SAFETY: taken from this device, so valid for its copies and kernels and for no other user until it is
        // released. What it holds is some bytes, which is what device memory calls initialised.
        Ok(unsafe { Memory::new(address, bytes) })
    }

    fn release(&self, memory: Memory) {
        // SAFETY: made in `allocate`; a `Memory` cannot be copied and is consumed here; the pool has waited for its
        // lanes.
        if let Err(error) = unsafe { self.context.release(memory.address()) } {
            tracing::warn!(%error, bytes = memory.bytes(), "memory could not be returned to the device");
        }
    }

    fn release_waits(&self) -> bool {
        true
    }

    fn fuses_gradients(&self) -> bool {
        true
    }

    fn aligns_products(&self) -> bool {
        true
    }

    fn multiplies_fp8(&self) -> bool {
        self.context.properties().capability >= (8, 9)
    }

    fn fuses_derivative(&self, activation: Activation, dtype: DType) -> bool {
        library_has_derivative(activation, dtype)
    }

    fn slab_bytes(&self) -> usize {
        crate::pool::CUDA_SLAB_BYTES
    }

    fn upload(&self, host: &[u8], to: ViewMut<'_>, on: Lane) -> Result<()> {
        self.check("upload", to.device(), to.lane(), on)?;
        if host.len() != to.bytes() {
            return Err(Error::shape("upload", "bytes", to.bytes(), host.len()));
        }
        let mut staging = self.staging();
        // SAFETY: the view is this device's and as long as the slice; its memory stays valid until the lane has run the
        // copy, because the pool gives it out in lane order and the view was made for this lane.
        let queue = |stream: &Stream| unsafe { staging.upload(&self.context, stream, host, to.address()) };
        self.traced(on, "upload", || self.lanes.give(on, queue))
    }

    fn download(&self, from: View<'_>, host: &mut [u8], on: Lane) -> Result<()> {
        self.check("download", from.device(), from.lane(), on)?;
        if host.len() != from.bytes() {
            return Err(Error::shape("download", "bytes", host.len(), from.bytes()));
        }
        if !host.is_empty() && host.len() <= SMALL_READ {
            // Ordinary memory would make the driver wait inside of the copy.
            let mut small = self.small[on as usize].lock().unwrap_or_else(PoisonError::into_inner);
            let place = match small.take() {
                Some(place) => small.insert(place),
                None => small.insert(Pinned::new(&self.context, SMALL_READ)?),
            };
            let part = &mut place.bytes_mut()[..host.len()];
            // SAFETY: the view is this device's and as long as the part, which is locked until the lane is idle below.
            let queued = self.lanes.give(on, |stream| unsafe { stream.download(from.address(), part) });
            self.wait_for(on).and(queued)?;
            host.copy_from_slice(&place.bytes()[..host.len()]);
            return Ok(());
        }
        if !host.is_empty() {
            // SAFETY: the view is this device's and as long as the slice, which is borrowed until the lane is idle
            // below.
            let queue = |stream: &Stream| unsafe { stream.download(from.address(), host) };
            let queued = self.traced(on, "download", || self.lanes.give(on, queue));
            // Also after an error: part of the copy may be on its way to the slice.
            return self.wait_for(on).and(queued);
        }
        self.wait_for(on)
    }

    fn copy(&self, from: View<'_>, to: ViewMut<'_>, on: Lane) -> Result<()> {
        self.check("copy", from.device(), from.lane(), on)?;
        self.check("copy", to.device(), to.lane(), on)?;
        if from.bytes() != to.bytes() {
            return Err(Error::shape("copy", "bytes", to.bytes(), from.bytes()));
        }
        if from.dtype() != to.dtype() {
            let (what, expected) = ("from".into(), to.dtype().name().into());
            return Err(Error::DType { op: "copy", what, expected, got: from.dtype() });
        }
        if from.range.overlaps(&to.range) {
            return Err(Error::argument("copy", "the ranges overlap"));
        }
        if from.is_empty() {
            return Ok(());
        }
        // SAFETY: both views are this device's, of one length, apart from each other; their memory stays valid until
        // the lane has run the copy, as in `upload`.
        let queue = |stream: &Stream| unsafe { stream.copy(from.address(), to.address(), from.bytes()) };
        self.traced(on, "copy", || self.lanes.give(on, queue))
    }

    fn mark(&self, on: Lane) -> Result<Mark> {
        self.lanes.mark(on)
    }

    fn wait(&self, on: Lane, mark: Mark) -> Result<()> {
        self.lanes.wait(on, mark)
    }

    fn has_reached(&self, mark: Mark) -> Option<bool> {
        // A failing device is reported at the next wait.
        self.lanes.has_reached(mark).ok()
    }

    fn sync(&self, on: Lane) -> Result<()> {
        self.wait_for(on)
    }

    fn on_host(&self, read: Option<View<'_>>, write: Option<ViewMut<'_>>, work: HostWork, on: Lane) -> Result<()> {
        self.give_to_host(read, (write, Old::Brought), work, on)
    }

    fn fill_on_host(&self, read: Option<View<'_>>, write: ViewMut<'_>, work: HostWork, on: Lane) -> Result<()> {
        self.give_to_host(read, (Some(write), Old::Left), work, on)
    }

    fn host_threads(&self) -> Option<Arc<Threads>> {
        self.threads.clone()
    }

    fn scratch(&self) -> Vec<(&'static str, usize)> {
        let launches = self.scratch.iter().map(Scratch::bytes).sum();
        let works = self.workers.iter().map(HostWorker::bytes).sum();
        vec![
            ("page-locked staging", self.staging().bytes()),
            ("page-locked memory of host work", works),
            ("scratch of launches", launches),
        ]
    }
}

impl CudaBackend {
    /// Give work of the host to a lane, with or without what is in the range that it writes.
    fn give_to_host(
        &self,
        read: Option<View<'_>>,
        (write, old): (Option<ViewMut<'_>>, Old),
        work: HostWork,
        on: Lane,
    ) -> Result<()> {
        let places =
            [read.map(|view| (view.device(), view.lane())), write.as_ref().map(|view| (view.device(), view.lane()))];
        for (device, lane) in places.into_iter().flatten() {
            self.check("on_host", device, lane, on)?;
        }
        if let (Some(read), Some(write)) = (&read, &write)
            && read.range.overlaps(&write.range)
        {
            return Err(Error::argument("on_host", "the ranges overlap"));
        }
        let read =
            read.map_or(DeviceRange::default(), |view| DeviceRange { address: view.address(), bytes: view.bytes() });
        let write =
            write.map_or(DeviceRange::default(), |view| DeviceRange { address: view.address(), bytes: view.bytes() });
        let worker = &self.workers[on as usize];
        // SAFETY: both views are this device's and apart; their memory stays valid until the lane has run what is
        // queued, because the pool gives it out in lane order.
        self.lanes.give(on, |stream| unsafe { worker.give(stream, read, (write, old), work) })
    }
}
