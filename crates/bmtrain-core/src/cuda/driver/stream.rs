//! Streams, the events between them, and what is queued on them.
#![allow(unsafe_code)]

use super::super::library;
use super::{Context, Function, Pinned, answer, owned, warn_of};
use crate::error::Result;
use cudarc::driver::{DriverError, result, sys};
use std::ffi::c_void;
use std::sync::Arc;

owned! {
    Stream(sys::CUstream), "cuStreamDestroy", result::stream::destroy
}

owned! {
    Event(sys::CUevent), "cuEventDestroy", result::event::destroy
}

impl Stream {
    /// A stream that is ordered against others by events alone, not by the driver's default stream.
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let handle = answer("cuStreamCreate", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        Ok(Stream { handle, context: Arc::clone(context) })
    }

    /// The driver's handle, for a library that queues work of its own; the context is current on this thread from here
    /// on.
    pub(in crate::cuda) fn handle(&self) -> Result<*mut c_void> {
        self.context.bind()?;
        Ok(self.handle.cast())
    }

    /// Let the host wait until the stream is idle; reports failures of queued work.
    pub(in crate::cuda) fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the stream lives.
        answer("cuStreamSynchronize", unsafe { result::stream::synchronize(self.handle) })
    }

    /// Let the stream wait for the latest recording of an event.
    pub(in crate::cuda) fn wait(&self, event: &Event) -> Result<()> {
        self.context.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live. The driver remembers the recording, not the event.
        answer("cuStreamWaitEvent", unsafe { result::stream::wait_event(self.handle, event.handle, flags) })
    }

    /// Queue a copy of the first `bytes` bytes of page-locked memory to the device.
    ///
    /// # Safety
    /// The destination is valid until the copy has run, and `from` is neither written nor dropped until then.
    pub(in crate::cuda) unsafe fn upload(&self, from: &Pinned, bytes: usize, to: u64) -> Result<()> {
        self.context.bind()?;
        let source = &from.bytes()[..bytes];
        // SAFETY: promised by the caller.
        answer("cuMemcpyHtoDAsync", unsafe { result::memcpy_htod_async(to, source, self.handle) })
    }

    /// Queue a copy of `bytes` bytes from an address of page-locked memory that another thread still writes: it
    /// must have finished before the stream gets here.
    ///
    /// # Safety
    /// `from` is such memory, which lives until the copy has run; the rest as in [`Stream::upload`].
    pub(in crate::cuda) unsafe fn upload_later(&self, from: usize, bytes: usize, to: u64) -> Result<()> {
        self.context.bind()?;
        let from = std::ptr::with_exposed_provenance(from);
        // SAFETY: the pointer is only handed on; the rest is promised by the caller.
        let status = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, self.handle) };
        answer("cuMemcpyHtoDAsync", status.result())
    }

    /// Queue a copy of `bytes` bytes from the device to an address of page-locked memory.
    ///
    /// # Safety
    /// `to` is such memory, which lives until the copy has run and is not used until then; the source is valid
    /// until then.
    pub(in crate::cuda) unsafe fn download_later(&self, from: u64, to: usize, bytes: usize) -> Result<()> {
        self.context.bind()?;
        let to = std::ptr::with_exposed_provenance_mut(to);
        // SAFETY: the pointer is only handed on; the rest is promised by the caller.
        let status = unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes, self.handle) };
        answer("cuMemcpyDtoHAsync", status.result())
    }

    /// Let the stream write a number to page-locked memory when it gets here; what it did before is seen first.
    ///
    /// # Safety
    /// The device address is of four bytes of such memory, which lives until then.
    pub(in crate::cuda) unsafe fn write_number(&self, address: u64, number: u32) -> Result<()> {
        self.context.bind()?;
        const WITH_BARRIER: u32 = 0;
        // SAFETY: promised by the caller.
        let status = unsafe { sys::cuStreamWriteValue32_v2(self.handle, address, number, WITH_BARRIER) };
        answer("cuStreamWriteValue32", status.result())
    }

    /// Let the stream wait until a number in page-locked memory is `number` or, counted in a circle, later.
    ///
    /// # Safety
    /// The device address is of four bytes of such memory, which lives until the stream has gone on.
    pub(in crate::cuda) unsafe fn wait_for_number(&self, address: u64, number: u32) -> Result<()> {
        self.context.bind()?;
        const AT_LEAST: u32 = 0;
        // SAFETY: promised by the caller.
        let status = unsafe { sys::cuStreamWaitValue32_v2(self.handle, address, number, AT_LEAST) };
        answer("cuStreamWaitValue32", status.result())
    }

    /// Queue a copy from the device to the host.
    ///
    /// # Safety
    /// The source is valid and `to` is not used until the copy has run.
    pub(in crate::cuda) unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.context.bind()?;
        // SAFETY: promised by the caller.
        answer("cuMemcpyDtoHAsync", unsafe { result::memcpy_dtoh_async(to, from, self.handle) })
    }

    /// Queue a copy within the device.
    ///
    /// # Safety
    /// Both ranges are valid until the copy has run and do not overlap.
    pub(in crate::cuda) unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.context.bind()?;
        // SAFETY: promised by the caller.
        answer("cuMemcpyDtoDAsync", unsafe { result::memcpy_dtod_async(to, from, bytes, self.handle) })
    }

    /// Queue `count` times the same pattern.
    ///
    /// # Safety
    /// The range from `to` on is valid until the fill has run, and `to` is aligned to the pattern's size.
    pub(in crate::cuda) unsafe fn fill(&self, to: u64, pattern: Pattern, count: usize) -> Result<()> {
        self.context.bind()?;
        // SAFETY: promised by the caller.
        let status = unsafe {
            match pattern {
                Pattern::Byte(pattern) => sys::cuMemsetD8Async(to, pattern, count, self.handle),
                Pattern::Half(pattern) => sys::cuMemsetD16Async(to, pattern, count, self.handle),
                Pattern::Word(pattern) => sys::cuMemsetD32Async(to, pattern, count, self.handle),
            }
        };
        answer("cuMemsetAsync", status.result())
    }

    /// Queue a kernel.
    ///
    /// # Safety
    /// `arguments` is the structure of the kernel's signature; the memory it points to is valid until the kernel has
    /// run and large enough for this grid.
    pub(in crate::cuda) unsafe fn launch<A: Copy>(&self, function: Function, grid: Grid, arguments: &A) -> Result<()> {
        self.context.bind()?;
        let mut slots: [*mut c_void; 1] = [std::ptr::from_ref(arguments).cast_mut().cast()];
        let Grid { blocks, threads, shared } = grid;
        let threads = (threads[0], threads[1], threads[2]);
        let blocks = (blocks[0], blocks[1], blocks[2]);
        // SAFETY: the function's module is loaded; the driver copies the arguments before it returns; the rest is
        // promised by the caller.
        let launched =
            unsafe { result::launch_kernel(function.handle, blocks, threads, shared, self.handle, &mut slots) };
        answer("cuLaunchKernel", launched)
    }
}

/// How many blocks and threads, each in three dimensions, and how many bytes of shared memory chosen at launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Grid {
    pub(in crate::cuda) blocks: [u32; 3],
    pub(in crate::cuda) threads: [u32; 3],
    pub(in crate::cuda) shared: u32,
}

impl Grid {
    /// Blocks and threads in one line.
    pub(in crate::cuda) fn line(blocks: u32, threads: u32) -> Self {
        Grid { blocks: [blocks, 1, 1], threads: [threads, 1, 1], shared: 0 }
    }
}

/// What memory is filled with, by the size of its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) enum Pattern {
    Byte(u8),
    Half(u16),
    Word(u32),
}

impl Event {
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self> {
        Event::with(context, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn with(context: &Arc<Context>, flags: sys::CUevent_flags) -> Result<Self> {
        context.bind()?;
        let handle = answer("cuEventCreate", result::event::create(flags))?;
        Ok(Event { handle, context: Arc::clone(context) })
    }

    pub(in crate::cuda) fn timed(context: &Arc<Context>) -> Result<Self> {
        Event::with(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// Seconds from this event to another, both timed and reached. The driver counts in half microseconds or so.
    pub(in crate::cuda) fn seconds_to(&self, later: &Event) -> Result<f64> {
        self.context.bind()?;
        let mut milliseconds = 0.0;
        let elapsed_time = library::elapsed_time()?;
        // SAFETY: both events live; one number is written.
        let status = unsafe { elapsed_time(&raw mut milliseconds, self.handle, later.handle) };
        answer("cuEventElapsedTime", status.result())?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    pub(in crate::cuda) fn record(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both live and belong to the same context.
        answer("cuEventRecord", unsafe { result::event::record(self.handle, stream.handle) })
    }

    pub(in crate::cuda) fn is_reached(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: the event lives.
        match unsafe { result::event::query(self.handle) } {
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            other => answer("cuEventQuery", other).map(|()| true),
        }
    }

    pub(in crate::cuda) fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the event lives.
        answer("cuEventSynchronize", unsafe { result::event::synchronize(self.handle) })
    }
}
