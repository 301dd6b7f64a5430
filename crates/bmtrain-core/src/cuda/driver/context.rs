//! A device's context: what every call of the driver needs, and memory of the device.
#![allow(unsafe_code)]

use super::functions::OUT_OF_MEMORY;
use super::{Functions, Stream, answer, failure, functions, warn_of};
use crate::error::{Error, OPEN_DEVICE, OPEN_DRIVER, Result};
use crate::panics::catch;
use cudarc::driver::sys;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A device's primary context, shared with whatever else in the process uses that device.
#[derive(Debug)]
pub(in crate::cuda) struct Context {
    pub(super) driver: &'static Functions,
    device: sys::CUdevice,
    handle: sys::CUcontext,
    name: String,
    pci_bus_id: String,
    properties: Properties,
    /// Streams that [`Context::drain`] waits for.
    streams: Mutex<Vec<Weak<Stream>>>,
}

/// Properties of a device that launches and the compiler need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cuda) struct Properties {
    /// Compute capability, major and minor.
    pub(in crate::cuda) capability: (u32, u32),
    /// Multiprocessors: how many blocks run at once, times a few.
    pub(in crate::cuda) multiprocessors: u32,
    /// Most bytes of shared memory that a block may choose.
    pub(in crate::cuda) shared_bytes: u32,
}

// SAFETY: the driver's interface may be called from any thread; a context is made current on a thread by `bind`.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(in crate::cuda) fn open(ordinal: usize) -> Result<Arc<Self>> {
        let opened = catch(|| Context::retain(functions()?, ordinal));
        opened.unwrap_or_else(|panic| Err(failure(OPEN_DRIVER, format!("the driver library failed: {panic}"))))
    }

    pub(in crate::cuda) fn count() -> Result<usize> {
        let counted = catch(|| {
            let count = count(functions()?)?;
            usize::try_from(count).map_err(|_| failure("cuDeviceGetCount", format!("{count} devices")))
        });
        counted.unwrap_or_else(|panic| Err(failure(OPEN_DRIVER, format!("the driver library failed: {panic}"))))
    }

    fn retain(driver: &'static Functions, ordinal: usize) -> Result<Arc<Self>> {
        let count = count(driver)?;
        let number = i32::try_from(ordinal).ok().filter(|number| *number < count);
        let Some(number) = number else {
            let known = match count {
                1 => "there is one, number 0".into(),
                _ => format!("there are {count}, counted from 0"),
            };
            return Err(failure(OPEN_DEVICE, format!("no device has the number {ordinal}; {known}")));
        };
        let device = device(driver, number)?;
        let (name, properties) = (name(driver, device)?, properties(driver, device)?);
        // SAFETY: the device was returned by `device`; at most that number of bytes is written.
        let pci_bus_id =
            text("cuDeviceGetPCIBusId", |place, length| unsafe { (driver.device_pci_bus_id)(place, length, device) })?;
        let mut handle = ptr::null_mut();
        // SAFETY: the device was returned by `device`; one handle is written.
        answer("cuDevicePrimaryCtxRetain", unsafe { (driver.context_retain)(&mut handle, device) })?;
        // Dropping it releases the context; nothing that can fail comes before that.
        let streams = Mutex::default();
        let context = Arc::new(Context { driver, device, handle, name, pci_bus_id, properties, streams });
        context.bind()?;
        Ok(context)
    }

    pub(in crate::cuda) fn name(&self) -> &str {
        &self.name
    }

    /// PCI address of the device in this host, e.g. `0000:17:00.0`.
    pub(in crate::cuda) fn pci_bus_id(&self) -> &str {
        &self.pci_bus_id
    }

    pub(in crate::cuda) fn properties(&self) -> Properties {
        self.properties
    }

    /// Make the context current on this thread. Every other call needs it, and any code may have changed it.
    pub(in crate::cuda) fn bind(&self) -> Result<()> {
        let mut current = ptr::null_mut();
        // SAFETY: one handle is written.
        answer("cuCtxGetCurrent", unsafe { (self.driver.context_current)(&mut current) })?;
        if current == self.handle {
            return Ok(());
        }
        // SAFETY: the context is retained until `self` is dropped.
        answer("cuCtxSetCurrent", unsafe { (self.driver.context_set)(self.handle) })
    }

    /// Let [`Context::drain`] wait for these streams, as long as they live, and for no others.
    pub(in crate::cuda) fn drains(&self, streams: &[Arc<Stream>]) {
        *self.streams() = streams.iter().map(Arc::downgrade).collect();
    }

    /// Let the host wait until all lanes are idle, while no lock of the driver is held. Whatever makes the driver wait
    /// for the device comes after this: taking and returning page-locked memory, returning memory, loading kernels. A
    /// collective on a lane waits for other ranks, and where these are threads of one process, the driver would hold up
    /// their calls for as long as it waits.
    ///
    /// # Errors
    /// What failed on the device since it was last waited for.
    pub(in crate::cuda) fn drain(&self) -> Result<()> {
        self.bind()?;
        self.live_streams().iter().try_for_each(|stream| stream.wait_until_idle())
    }

    fn live_streams(&self) -> Vec<Arc<Stream>> {
        self.streams().iter().filter_map(Weak::upgrade).collect()
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Weak<Stream>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take device memory; its content is unspecified.
    pub(in crate::cuda) fn allocate(&self, bytes: usize) -> Result<u64> {
        self.bind()?;
        let mut address = 0;
        // SAFETY: one address is written.
        let mut ask = || unsafe { (self.driver.memory_allocate)(&mut address, bytes) };
        let mut status = ask();
        // Graphs are worth less than what is asked for, and can be made again.
        if status == OUT_OF_MEMORY {
            let dropped = self.live_streams().iter().filter(|stream| stream.drop_graphs()).count();
            status = if dropped > 0 { ask() } else { status };
        }
        match status {
            OUT_OF_MEMORY => Err(Error::no_memory(self.name(), bytes)),
            status => answer("cuMemAlloc", status).map(|()| address),
        }
    }

    /// Return device memory.
    ///
    /// # Safety
    /// `address` came from [`Context::allocate`] of this context, is not returned twice, and no queued work uses it.
    pub(in crate::cuda) unsafe fn release(&self, address: u64) -> Result<()> {
        let drained = self.drain();
        // SAFETY: promised by the caller.
        answer("cuMemFree", unsafe { (self.driver.memory_free)(address) }).and(drained)
    }
}

/// Initialise the driver, and count the devices.
pub(super) fn count(driver: &Functions) -> Result<c_int> {
    const NO_FLAGS: u32 = 0;
    // SAFETY: takes a number.
    answer("cuInit", unsafe { (driver.init)(NO_FLAGS) })?;
    let mut count = 0;
    // SAFETY: one number is written.
    answer("cuDeviceGetCount", unsafe { (driver.device_count)(&mut count) })?;
    Ok(count)
}

pub(super) fn device(driver: &Functions, number: c_int) -> Result<sys::CUdevice> {
    let mut device = 0;
    // SAFETY: one number is written.
    answer("cuDeviceGet", unsafe { (driver.device)(&mut device, number) })?;
    Ok(device)
}

pub(super) fn name(driver: &Functions, device: sys::CUdevice) -> Result<String> {
    // SAFETY: the device was returned by `device`; at most that number of bytes is written.
    text("cuDeviceGetName", |place, length| unsafe { (driver.device_name)(place, length, device) })
}

/// A text that `write` writes to a place of some length.
fn text(call: &'static str, write: impl FnOnce(*mut c_char, c_int) -> c_int) -> Result<String> {
    let mut text = [0u8; 256];
    answer(call, write(text.as_mut_ptr().cast(), text.len() as c_int))?;
    let text = CStr::from_bytes_until_nul(&text).map_err(|_| failure(call, "a text without end"))?;
    Ok(text.to_string_lossy().into_owned())
}

pub(super) fn properties(driver: &Functions, device: sys::CUdevice) -> Result<Properties> {
    use sys::CUdevice_attribute as Attribute;
    let of = |what: Attribute| {
        let mut value = 0;
        // SAFETY: the device was returned by `device`; one number is written.
        answer("cuDeviceGetAttribute", unsafe { (driver.device_attribute)(&mut value, what as c_int, device) })?;
        u32::try_from(value).map_err(|_| failure("cuDeviceGetAttribute", format!("{what:?} is {value}")))
    };
    Ok(Properties {
        capability: (
            of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: of(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_bytes: of(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
    })
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `retain`; whatever was made in the context holds it, so nothing of that is left.
        warn_of(answer("cuDevicePrimaryCtxRelease", unsafe { (self.driver.context_release)(self.device) }));
    }
}
