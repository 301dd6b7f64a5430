//! Streams, and what is queued on them.
#![allow(unsafe_code)]

use super::graphs::{CapturedGraph, Command, Given, Queue, Recorder};
use super::{Context, Event, Function, GraphCounts, LibraryCall, Pinned, answer, failure, owned, warn_of};
use crate::error::Result;
use bytemuck::NoUninit;
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard};

owned! {
    Stream(sys::CUstream) { graphs: Option<Graphs> }, "cuStreamDestroy", stream_destroy
}

/// Maker of graphs from the launches that a stream repeats.
#[derive(Debug)]
struct Graphs {
    recorder: Mutex<Recorder<CapturedGraph>>,
    /// Stream that is captured.
    capturing: Box<Stream>,
}

impl Graphs {
    fn recorder(&self) -> MutexGuard<'_, Recorder<CapturedGraph>> {
        self.recorder.lock().unwrap_or_else(|poisoned| {
            let mut recorder = poisoned.into_inner();
            recorder.fail(failure("replay", "another thread panicked while launches were held back"));
            recorder
        })
    }
}

/// A stream is shared by threads.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Recorder<CapturedGraph>>();
};

impl Stream {
    /// A stream that is ordered against others by events alone, not by the driver's default stream.
    pub(in crate::cuda) fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let (mut handle, flags) = (ptr::null_mut(), sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32);
        // SAFETY: one handle is written.
        answer("cuStreamCreate", unsafe { (context.driver.stream_create)(&mut handle, flags) })?;
        Ok(Stream { handle, context: Arc::clone(context), graphs: None })
    }

    /// A stream on which launches that it repeats are replayed as graphs: see [`super::graphs`].
    pub(in crate::cuda) fn with_graphs(context: &Arc<Context>) -> Result<Self> {
        let mut stream = Stream::new(context)?;
        let capturing = Box::new(Stream::new(context)?);
        stream.graphs = Some(Graphs { recorder: Mutex::default(), capturing });
        Ok(stream)
    }

    /// Counts of graphs; `None` on a stream without them.
    pub(in crate::cuda) fn graph_counts(&self) -> Option<GraphCounts> {
        self.graphs.as_ref().map(|graphs| graphs.recorder().counts())
    }

    /// Make the context current, for something else than commands: these come first.
    pub(super) fn settle(&self) -> Result<()> {
        self.context.bind()?;
        self.graphs.as_ref().map_or(Ok(()), |graphs| graphs.recorder().settle(self))
    }

    /// Queue a command, now or with those that follow; false if a library refuses it.
    ///
    /// # Safety
    /// As [`Queue::queue`], and until the stream was given something else than commands.
    unsafe fn give(&self, given: Given<'_>) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: promised by the caller.
        unsafe {
            match &self.graphs {
                Some(graphs) => graphs.recorder().give(self, &given),
                None => self.queue(&given),
            }
        }
    }

    /// The driver's handle, for a library that queues work of its own; the context is current on this thread from here
    /// on.
    pub(in crate::cuda) fn handle(&self) -> Result<*mut c_void> {
        self.settle()?;
        Ok(self.handle.cast())
    }

    /// Queue a call of a library that does nothing but to queue work; false if it refuses it.
    ///
    /// # Safety
    /// What the call reads and writes is valid until the stream has run it, and large enough.
    pub(in crate::cuda) unsafe fn call(&self, call: &dyn LibraryCall) -> Result<bool> {
        // SAFETY: promised by the caller. Memory stays valid until the stream has run what was given to it before it is
        // returned, and every way to wait for that settles the stream.
        unsafe { self.give(Given::Library(call)) }
    }

    /// Let the host wait until the stream is idle; reports failures of queued work. A failure of launches that were
    /// held back is reported here for the last time.
    pub(in crate::cuda) fn synchronize(&self) -> Result<()> {
        let idle = self.wait_until_idle();
        let Some(graphs) = &self.graphs else { return idle };
        let lost = graphs.recorder().take_failure();
        lost.map_or(idle, Err)?;
        if graphs.recorder().has_due() {
            // Making graphs may wait for the device, and comes after all lanes for what `drain` states.
            self.context.drain()?;
            graphs.recorder().capture(self);
        }
        Ok(())
    }

    /// As [`Stream::synchronize`], for a caller that does not report what was lost.
    pub(super) fn wait_until_idle(&self) -> Result<()> {
        self.settle()?;
        // SAFETY: the stream lives.
        answer("cuStreamSynchronize", unsafe { (self.context.driver.stream_synchronize)(self.handle) })
    }

    /// Return the memory of graphs to the driver, which has no other left; false if there are none.
    pub(super) fn drop_graphs(&self) -> bool {
        let Some(graphs) = &self.graphs else { return false };
        // A failure of what is held back is reported where the stream is waited for.
        self.context.bind().and_then(|()| graphs.recorder().drop_graphs(self)).unwrap_or(false)
    }

    /// Let the stream wait for the latest recording of an event.
    pub(in crate::cuda) fn wait(&self, event: &Event) -> Result<()> {
        self.settle()?;
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
        self.settle()?;
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
        self.settle()?;
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
        self.settle()?;
        let to = std::ptr::with_exposed_provenance_mut(to);
        // SAFETY: the pointer is only handed on; the rest is promised by the caller.
        answer("cuMemcpyDtoHAsync", unsafe { (self.context.driver.download)(to, from, bytes, self.handle) })
    }

    /// Let the stream write a number to page-locked memory when it gets here; what it did before is seen first.
    ///
    /// # Safety
    /// The device address is of four bytes of such memory, which lives until then.
    pub(in crate::cuda) unsafe fn write_number(&self, address: u64, number: u32) -> Result<()> {
        self.settle()?;
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
        self.settle()?;
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
        self.settle()?;
        // SAFETY: promised by the caller.
        let status = unsafe { (self.context.driver.download)(to.as_mut_ptr().cast(), from, to.len(), self.handle) };
        answer("cuMemcpyDtoHAsync", status)
    }

    /// Queue a copy within the device.
    ///
    /// # Safety
    /// Both ranges are valid until the copy has run and do not overlap.
    pub(in crate::cuda) unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: as in `call`.
        unsafe { self.give(Given::Copy { from, to, bytes }) }.map(drop)
    }

    /// Queue `count` times the same pattern.
    ///
    /// # Safety
    /// The range from `to` on is valid until the fill has run, and `to` is aligned to the pattern's size.
    pub(in crate::cuda) unsafe fn fill(&self, to: u64, pattern: Pattern, count: usize) -> Result<()> {
        // SAFETY: as in `call`.
        unsafe { self.give(Given::Fill { to, pattern, count }) }.map(drop)
    }

    /// Queue a kernel.
    ///
    /// # Safety
    /// `arguments` is the structure of the kernel's signature; the memory it points to is valid until the kernel has
    /// run and large enough for this grid.
    pub(in crate::cuda) unsafe fn launch<A: NoUninit>(
        &self,
        function: Function,
        grid: Grid,
        arguments: &A,
    ) -> Result<()> {
        let arguments = bytemuck::bytes_of(arguments);
        // SAFETY: as in `call`.
        unsafe { self.give(Given::Kernel { function, grid, arguments }) }.map(drop)
    }
}

impl Queue for Stream {
    type Graph = CapturedGraph;

    unsafe fn queue(&self, given: &Given<'_>) -> Result<bool> {
        // SAFETY: promised by the caller; the context is current since `settle` or `give`.
        unsafe { queue(&self.context, given, self.handle) }
    }

    fn capture(&self, commands: &[Command]) -> Result<CapturedGraph> {
        let Some(Graphs { capturing, .. }) = &self.graphs else { unreachable!("graphs are this stream's") };
        // SAFETY: nothing runs: the commands become a graph.
        let give = |given: &Given<'_>, stream| unsafe { queue(&self.context, given, stream) };
        CapturedGraph::new(&self.context, capturing.handle, commands, give)
    }

    unsafe fn replay(&self, graph: &CapturedGraph, commands: &[Command]) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { graph.launch(self.handle, commands) }
    }
}

/// Queue a command on a stream of a context that is current; false if a library refuses it.
///
/// # Safety
/// As [`Queue::queue`]; the stream lives.
unsafe fn queue(context: &Context, given: &Given<'_>, stream: sys::CUstream) -> Result<bool> {
    let driver = context.driver;
    // SAFETY: promised by the caller; a kernel's module is loaded, and the driver copies arguments before it returns.
    let (call, status) = unsafe {
        match *given {
            Given::Library(call) => return call.queue(stream.cast()),
            Given::Copy { from, to, bytes } => ("cuMemcpyDtoDAsync", (driver.copy)(to, from, bytes, stream)),
            Given::Fill { to, pattern, count } => {
                let status = match pattern {
                    Pattern::Byte(pattern) => (driver.fill_8)(to, pattern, count, stream),
                    Pattern::Half(pattern) => (driver.fill_16)(to, pattern, count, stream),
                    Pattern::Word(pattern) => (driver.fill_32)(to, pattern, count, stream),
                };
                ("cuMemsetAsync", status)
            }
            Given::Kernel { function, grid, arguments } => {
                let mut slots: [*mut c_void; 1] = [arguments.as_ptr().cast_mut().cast()];
                let Grid { blocks: [x, y, z], threads: [threads_x, threads_y, threads_z], shared } = grid;
                let (slots, none) = (slots.as_mut_ptr(), ptr::null_mut());
                let status = (driver.launch)(
                    function.handle,
                    x,
                    y,
                    z,
                    threads_x,
                    threads_y,
                    threads_z,
                    shared,
                    stream,
                    slots,
                    none,
                );
                ("cuLaunchKernel", status)
            }
        }
    };
    answer(call, status).map(|()| true)
}

/// Numbers of blocks and threads, each in three dimensions, and bytes of shared memory chosen at launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// Fill pattern of memory, by the size of its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) enum Pattern {
    Byte(u8),
    Half(u16),
    Word(u32),
}
