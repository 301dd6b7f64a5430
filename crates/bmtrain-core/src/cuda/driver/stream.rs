//! Streams, the events between them, and what is queued on them.
#![allow(unsafe_code)]

use super::functions::NOT_READY;
use super::{Context, Function, Pinned, answer, owned, warn_of};
use crate::error::Result;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

owned! {
    Stream(sys::CUstream), "cuStreamDestroy", stream_destroy
}

owned! {
    Event(sys::CUevent), "cuEventDestroy", event_destroy
}

impl Stream {
    /// A stream that is ordered against others by events alone, not by the driver's default stream.
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let (mut handle, flags) = (ptr::null_mut(), sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32);
        // SAFETY: one handle is written.
        answer("cuStreamCreate", unsafe { (context.driver.stream_create)(&mut handle, flags) })?;
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
        answer("cuStreamSynchronize", unsafe { (self.context.driver.stream_synchronize)(self.handle) })
    }

    /// Let the stream wait for the latest recording of an event.
    pub(in crate::cuda) fn wait(&self, event: &Event) -> Result<()> {
        self.context.bind()?;
        const NO_FLAGS: u32 = 0;
        // SAFETY: both live. The driver remembers the recording, not the event.
        let status = unsafe { (self.context.driver.stream_wait_event)(self.handle, event.handle, NO_FLAGS) };
        answer("cuStreamWaitEvent", status)
    }

    /// Queue a copy of the first `bytes` bytes of page-locked memory to the device.
    ///
    /// # Safety
    /// The destination is valid until the copy has run, and `from` is neither written nor dropped until then.
    pub(in crate::cuda) unsafe fn upload(&self, from: &Pinned, bytes: usize, to: u64) -> Result<()> {
        self.context.bind()?;
        let source = &from.bytes()[..bytes];
        // SAFETY: promised by the caller.
        let status = unsafe { (self.context.driver.upload)(to, source.as_ptr().cast(), bytes, self.handle) };
        answer("cuMemcpyHtoDAsync", status)
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
        answer("cuMemcpyHtoDAsync", unsafe { (self.context.driver.upload)(to, from, bytes, self.handle) })
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
        answer("cuMemcpyDtoHAsync", unsafe { (self.context.driver.download)(to, from, bytes, self.handle) })
    }

    /// Let the stream write a number to page-locked memory when it gets here; what it did before is seen first.
    ///
    /// # Safety
    /// The device address is of four bytes of such memory, which lives until then.
    pub(in crate::cuda) unsafe fn write_number(&self, address: u64, number: u32) -> Result<()> {
        self.context.bind()?;
        const WITH_BARRIER: u32 = 0;
        // SAFETY: promised by the caller.
        let status = unsafe { (self.context.driver.stream_write_value)(self.handle, address, number, WITH_BARRIER) };
        answer("cuStreamWriteValue32", status)
    }

    /// Let the stream wait until a number in page-locked memory is `number` or, counted in a circle, later.
    ///
    /// # Safety
    /// The device address is of four bytes of such memory, which lives until the stream has gone on.
    pub(in crate::cuda) unsafe fn wait_for_number(&self, address: u64, number: u32) -> Result<()> {
        self.context.bind()?;
        const AT_LEAST: u32 = 0;
        // SAFETY: promised by the caller.
        let status = unsafe { (self.context.driver.stream_wait_value)(self.handle, address, number, AT_LEAST) };
        answer("cuStreamWaitValue32", status)
    }

    /// Queue a copy from the device to the host.
    ///
    /// # Safety
    /// The source is valid and `to` is not used until the copy has run.
    pub(in crate::cuda) unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.context.bind()?;
        // SAFETY: promised by the caller.
        let status = unsafe { (self.context.driver.download)(to.as_mut_ptr().cast(), from, to.len(), self.handle) };
        answer("cuMemcpyDtoHAsync", status)
    }

    /// Queue a copy within the device.
    ///
    /// # Safety
    /// Both ranges are valid until the copy has run and do not overlap.
    pub(in crate::cuda) unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.context.bind()?;
        // SAFETY: promised by the caller.
        answer("cuMemcpyDtoDAsync", unsafe { (self.context.driver.copy)(to, from, bytes, self.handle) })
    }

    /// Queue `count` times the same pattern.
    ///
    /// # Safety
    /// The range from `to` on is valid until the fill has run, and `to` is aligned to the pattern's size.
    pub(in crate::cuda) unsafe fn fill(&self, to: u64, pattern: Pattern, count: usize) -> Result<()> {
        self.context.bind()?;
        let driver = self.context.driver;
        // SAFETY: promised by the caller.
        let status = unsafe {
            match pattern {
                Pattern::Byte(pattern) => (driver.fill_8)(to, pattern, count, self.handle),
                Pattern::Half(pattern) => (driver.fill_16)(to, pattern, count, self.handle),
                Pattern::Word(pattern) => (driver.fill_32)(to, pattern, count, self.handle),
            }
        };
        answer("cuMemsetAsync", status)
    }

    /// Queue a kernel.
    ///
    /// # Safety
    /// `arguments` is the structure of the kernel's signature; the memory it points to is valid until the kernel has
    /// run and large enough for this grid.
    pub(in crate::cuda) unsafe fn launch<A: Copy>(&self, function: Function, grid: Grid, arguments: &A) -> Result<()> {
        self.context.bind()?;
        let mut slots: [*mut c_void; 1] = [std::ptr::from_ref(arguments).cast_mut().cast()];
        let Grid { blocks: [x, y, z], threads: [threads_x, threads_y, threads_z], shared } = grid;
        let launch = self.context.driver.launch;
        // SAFETY: the function's module is loaded; the driver copies the arguments before it returns; the rest is
        // promised by the caller.
        let status = unsafe {
            launch(
                function.handle,
                x,
                y,
                z,
                threads_x,
                threads_y,
                threads_z,
                shared,
                self.handle,
                slots.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        answer("cuLaunchKernel", status)
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
        let mut handle = ptr::null_mut();
        // SAFETY: one handle is written.
        answer("cuEventCreate", unsafe { (context.driver.event_create)(&mut handle, flags as u32) })?;
        Ok(Event { handle, context: Arc::clone(context) })
    }

    pub(in crate::cuda) fn timed(context: &Arc<Context>) -> Result<Self> {
        Event::with(context, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    /// Seconds from this event to another, both timed and reached. The driver counts in half microseconds or so.
    pub(in crate::cuda) fn seconds_to(&self, later: &Event) -> Result<f64> {
        self.context.bind()?;
        let mut milliseconds = 0.0;
        // SAFETY: both events live; one number is written.
        let status = unsafe { (self.context.driver.event_elapsed)(&mut milliseconds, self.handle, later.handle) };
        answer("cuEventElapsedTime", status)?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    pub(in crate::cuda) fn record(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both live and belong to the same context.
        answer("cuEventRecord", unsafe { (self.context.driver.event_record)(self.handle, stream.handle) })
    }

    pub(in crate::cuda) fn is_reached(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: the event lives.
        match unsafe { (self.context.driver.event_query)(self.handle) } {
            NOT_READY => Ok(false),
            status => answer("cuEventQuery", status).map(|()| true),
        }
    }

    pub(in crate::cuda) fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the event lives.
        answer("cuEventSynchronize", unsafe { (self.context.driver.event_synchronize)(self.handle) })
    }
}
