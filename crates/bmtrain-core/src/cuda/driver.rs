//! The driver's objects with owners: context, stream, event, page-locked memory, module, function.
//!
//! The one place that calls the driver, a thin layer over the result-returning bindings of `cudarc`. Its safe layer is not
//! used: that one tracks the use of each allocation by events of its own, and order is what lanes and marks are for here.
//! What is made here is destroyed on drop, in the context it belongs to.
#![allow(unsafe_code)]

use super::library;
use crate::error::{Error, Result};
use cudarc::driver::{DriverError, result, sys};
use std::ffi::{CStr, c_void};
use std::panic::catch_unwind;
use std::ptr::NonNull;
use std::sync::Arc;

/// What errors of this backend are headed by.
const BACKEND: &str = "cuda";

/// An error of this backend: the call, and the reason in words.
pub(super) fn failure(call: &'static str, reason: impl Into<String>) -> Error {
    Error::Device { backend: BACKEND.into(), call, reason: reason.into() }
}

/// The driver's answer as a result of this crate.
fn answer<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T> {
    result.map_err(|error| {
        let words = |text: Result<&CStr, DriverError>| text.ok().map(|text| text.to_string_lossy().into_owned());
        // A driver that cannot even name its error is known by the number's name in the bindings.
        let name = words(error.error_name()).unwrap_or_else(|| format!("{:?}", error.0));
        failure(call, words(error.error_string()).map_or_else(|| name.clone(), |text| format!("{name}: {text}")))
    })
}

/// On drop nobody is there to take an error.
fn warn_of<T>(result: Result<T>) {
    if let Err(error) = result {
        tracing::warn!(%error, "a driver object could not be returned");
    }
}

/// A device's primary context, shared with whatever else in the process uses that device.
#[derive(Debug)]
pub(super) struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
    name: String,
}

// SAFETY: the driver's interface may be called from any thread; a context is made current on a thread by `bind`.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Open a device by its number.
    ///
    /// # Errors
    /// No driver, an incomplete one, no such device, one that does not answer.
    pub(super) fn open(ordinal: usize) -> Result<Arc<Self>> {
        let opened = catch_unwind(|| {
            library::require()?;
            Context::retain(ordinal)
        });
        opened.unwrap_or_else(|_| Err(failure("open the driver", "the driver library could not be used")))
    }

    fn retain(ordinal: usize) -> Result<Arc<Self>> {
        answer("cuInit", result::init())?;
        let count = answer("cuDeviceGetCount", result::device::get_count())?;
        let number = i32::try_from(ordinal).ok().filter(|number| *number < count);
        let Some(number) = number else {
            let known = match count {
                1 => "there is one, number 0".into(),
                _ => format!("there are {count}, counted from 0"),
            };
            return Err(failure("open a device", format!("no device has the number {ordinal}; {known}")));
        };
        let device = answer("cuDeviceGet", result::device::get(number))?;
        let name = answer("cuDeviceGetName", result::device::get_name(device))?;
        // SAFETY: the device was returned by `get`.
        let handle = answer("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        let context = Arc::new(Context { device, handle, name });
        context.bind()?;
        Ok(context)
    }

    /// What the driver calls the device.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Make the context current on this thread. Every other call needs it, and any code may have changed it.
    pub(super) fn bind(&self) -> Result<()> {
        if answer("cuCtxGetCurrent", result::ctx::get_current())? == Some(self.handle) {
            return Ok(());
        }
        // SAFETY: the context is retained until `self` is dropped.
        answer("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.handle) })
    }

    /// Take device memory; its content is unspecified.
    pub(super) fn allocate(&self, bytes: usize) -> Result<u64> {
        self.bind()?;
        // SAFETY: device memory may hold any bytes; it is read by kernels and copies, for which every pattern is a value.
        answer("cuMemAlloc", unsafe { result::malloc_sync(bytes) })
    }

    /// Return device memory.
    ///
    /// # Safety
    /// `address` came from [`Context::allocate`] of this context, is not returned twice, and no queued work uses it.
    pub(super) unsafe fn release(&self, address: u64) -> Result<()> {
        self.bind()?;
        // SAFETY: promised by the caller.
        answer("cuMemFree", unsafe { result::free_sync(address) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `retain`; whatever was made in the context holds it, so nothing of that is left.
        warn_of(answer("cuDevicePrimaryCtxRelease", unsafe { result::primary_ctx::release(self.device) }));
    }
}

/// A driver object that lives in a context.
macro_rules! owned {
    ($(#[$doc:meta])* $name:ident($handle:ty), $call:literal, $destroy:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name {
            handle: $handle,
            context: Arc<Context>,
        }

        // SAFETY: the driver's interface may be called from any thread, with the context bound; it guards its objects itself.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                let destroy = || {
                    self.context.bind()?;
                    // SAFETY: made by this type's constructor and destroyed only here.
                    answer($call, unsafe { $destroy(self.handle) })
                };
                warn_of(destroy());
            }
        }
    };
}

owned! {
    /// An ordered queue of work on the device.
    Stream(sys::CUstream), "cuStreamDestroy", result::stream::destroy
}

owned! {
    /// A point in a stream's work, recorded again and again.
    Event(sys::CUevent), "cuEventDestroy", result::event::destroy
}

owned! {
    /// Compiled kernels in the device's memory.
    Module(sys::CUmodule), "cuModuleUnload", result::module::unload
}

impl Stream {
    /// A stream that is ordered against others by events alone, not by the driver's default stream.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let handle = answer("cuStreamCreate", result::stream::create(result::stream::StreamKind::NonBlocking))?;
        Ok(Stream { handle, context: Arc::clone(context) })
    }

    /// Let the host wait until the stream is idle; reports failures of queued work.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the stream lives.
        answer("cuStreamSynchronize", unsafe { result::stream::synchronize(self.handle) })
    }

    /// Let the stream wait for the latest recording of an event.
    pub(super) fn wait(&self, event: &Event) -> Result<()> {
        self.context.bind()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live. The driver remembers the recording, not the event.
        answer("cuStreamWaitEvent", unsafe { result::stream::wait_event(self.handle, event.handle, flags) })
    }

    /// Queue a copy of the first `bytes` bytes of page-locked memory to the device.
    ///
    /// # Safety
    /// The destination is valid until the copy has run, and `from` is neither written nor dropped until then.
    pub(super) unsafe fn upload(&self, from: &Pinned, bytes: usize, to: u64) -> Result<()> {
        self.context.bind()?;
        let source = &from.bytes()[..bytes];
        // SAFETY: promised by the caller.
        answer("cuMemcpyHtoDAsync", unsafe { result::memcpy_htod_async(to, source, self.handle) })
    }

    /// Queue a copy from the device to the host.
    ///
    /// # Safety
    /// The source is valid and `to` is used by nobody until the copy has run.
    pub(super) unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.context.bind()?;
        // SAFETY: promised by the caller.
        answer("cuMemcpyDtoHAsync", unsafe { result::memcpy_dtoh_async(to, from, self.handle) })
    }

    /// Queue a copy within the device.
    ///
    /// # Safety
    /// Both ranges are valid until the copy has run and do not overlap.
    pub(super) unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.context.bind()?;
        // SAFETY: promised by the caller.
        answer("cuMemcpyDtoDAsync", unsafe { result::memcpy_dtod_async(to, from, bytes, self.handle) })
    }

    /// Queue `count` times the same pattern.
    ///
    /// # Safety
    /// The range from `to` on is valid until the fill has run, and `to` is aligned to the pattern's size.
    pub(super) unsafe fn fill(&self, to: u64, pattern: Pattern, count: usize) -> Result<()> {
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
    /// `arguments` are those of the kernel's signature, in its order; the memory they point to is valid until the kernel has
    /// run and large enough for this grid.
    pub(super) unsafe fn launch(
        &self,
        function: &Function<'_>,
        grid: u32,
        block: u32,
        arguments: &mut Arguments,
    ) -> Result<()> {
        self.context.bind()?;
        let mut slots: Vec<*mut c_void> = arguments.slots.iter_mut().map(|slot| (&raw mut *slot).cast()).collect();
        // SAFETY: the function lives as long as its module; the driver copies the arguments before it returns; the rest is
        // promised by the caller.
        let launched =
            unsafe { result::launch_kernel(function.handle, (grid, 1, 1), (block, 1, 1), 0, self.handle, &mut slots) };
        answer("cuLaunchKernel", launched)
    }
}

/// What memory is filled with, by the size of its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    /// One byte.
    Byte(u8),
    /// Two bytes.
    Half(u16),
    /// Four bytes.
    Word(u32),
}

impl Event {
    /// An event that keeps order and no time.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let handle = answer("cuEventCreate", result::event::create(flags))?;
        Ok(Event { handle, context: Arc::clone(context) })
    }

    /// Remember the present end of a stream.
    pub(super) fn record(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        // SAFETY: both live and belong to the same context.
        answer("cuEventRecord", unsafe { result::event::record(self.handle, stream.handle) })
    }

    /// Whether the latest recording is reached.
    pub(super) fn is_reached(&self) -> Result<bool> {
        self.context.bind()?;
        // SAFETY: the event lives.
        match unsafe { result::event::query(self.handle) } {
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            other => answer("cuEventQuery", other).map(|()| true),
        }
    }

    /// Let the host wait for the latest recording.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the event lives.
        answer("cuEventSynchronize", unsafe { result::event::synchronize(self.handle) })
    }
}

/// Host memory that the device reads by itself, while the host does something else.
#[derive(Debug)]
pub(super) struct Pinned {
    start: NonNull<u8>,
    bytes: usize,
    context: Arc<Context>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Take page-locked memory, filled with zeros.
    pub(super) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        context.bind()?;
        // SAFETY: the memory is given a value below, before anything reads it.
        let start = answer("cuMemHostAlloc", unsafe { result::malloc_host(bytes, 0) })?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| failure("cuMemHostAlloc", "no address"))?;
        // SAFETY: `bytes` bytes from `start` were just taken.
        unsafe { start.write_bytes(0, bytes) };
        Ok(Pinned { start, bytes, context: Arc::clone(context) })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the range is owned, initialised in `new` and written only through `bytes_mut`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// The memory, for writing. No copy from it may be queued.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let free = || {
            self.context.bind()?;
            // SAFETY: taken in `new`, returned only here.
            answer("cuMemFreeHost", unsafe { result::free_host(self.start.as_ptr().cast()) })
        };
        warn_of(free());
    }
}

impl Module {
    /// Load compiled kernels.
    ///
    /// # Safety
    /// `image` is a whole cubin, fat binary or PTX text: the driver trusts the lengths in it.
    pub(super) unsafe fn load(context: &Arc<Context>, image: &[u8]) -> Result<Self> {
        context.bind()?;
        // PTX is text and ends with a zero byte; other images carry their length and do not mind one.
        let mut ended = image.to_vec();
        ended.push(0);
        // SAFETY: promised by the caller; the driver copies the image.
        let handle = answer("cuModuleLoadData", unsafe { result::module::load_data(ended.as_ptr().cast()) })?;
        Ok(Module { handle, context: Arc::clone(context) })
    }

    /// A kernel by its name.
    pub(super) fn function(&self, name: &CStr) -> Result<Function<'_>> {
        self.context.bind()?;
        // SAFETY: the module is loaded.
        let found = unsafe { result::module::get_function(self.handle, name.to_owned()) };
        let handle = answer("cuModuleGetFunction", found).map_err(|error| match error {
            Error::Device { backend, call, reason } => {
                let reason = format!("{}: {reason}", name.to_string_lossy());
                Error::Device { backend, call, reason }
            }
            other => other,
        })?;
        Ok(Function { handle, module: std::marker::PhantomData })
    }
}

/// A kernel of a module.
#[derive(Debug)]
pub(super) struct Function<'a> {
    handle: sys::CUfunction,
    module: std::marker::PhantomData<&'a Module>,
}

/// Room for one argument of a kernel, aligned for each of them.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(8))]
struct Slot([u8; 8]);

/// The arguments of a kernel in the order of its signature.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    slots: Vec<Slot>,
}

impl Arguments {
    /// A device address; null is 0.
    pub(super) fn address(self, address: u64) -> Self {
        self.push(&address.to_ne_bytes())
    }

    /// An `int`.
    pub(super) fn int(self, value: i32) -> Self {
        self.push(&value.to_ne_bytes())
    }

    /// A `float`.
    pub(super) fn float(self, value: f32) -> Self {
        self.push(&value.to_ne_bytes())
    }

    fn push(mut self, value: &[u8]) -> Self {
        let mut slot = Slot([0; 8]);
        slot.0[..value.len()].copy_from_slice(value);
        self.slots.push(slot);
        self
    }
}
