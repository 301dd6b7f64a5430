//! A device's context: what every call of the driver needs, and memory of the device.
#![allow(unsafe_code)]

use super::super::library;
use super::{answer, failure, warn_of};
use crate::device_spec::{OPEN_DEVICE, OPEN_DRIVER};
use crate::error::{Error, Result};
use crate::panics::catch;
use cudarc::driver::{DriverError, result, sys};
use std::ffi::{CStr, c_int};
use std::sync::Arc;

/// A device's primary context, shared with whatever else in the process uses that device.
#[derive(Debug)]
pub(in crate::cuda) struct Context {
    device: sys::CUdevice,
    handle: sys::CUcontext,
    name: String,
    pci_bus_id: String,
    properties: Properties,
}

/// What launches and the compiler need to know of a device.
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
        let opened = catch(|| {
            library::require()?;
            Context::retain(ordinal)
        });
        opened.unwrap_or_else(|panic| Err(failure(OPEN_DRIVER, format!("the driver library failed: {panic}"))))
    }

    pub(in crate::cuda) fn count() -> Result<usize> {
        let counted = catch(|| {
            library::require()?;
            answer("cuInit", result::init())?;
            let count = answer("cuDeviceGetCount", result::device::get_count())?;
            usize::try_from(count).map_err(|_| failure("cuDeviceGetCount", format!("{count} devices")))
        });
        counted.unwrap_or_else(|panic| Err(failure(OPEN_DRIVER, format!("the driver library failed: {panic}"))))
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
            return Err(failure(OPEN_DEVICE, format!("no device has the number {ordinal}; {known}")));
        };
        let device = answer("cuDeviceGet", result::device::get(number))?;
        let name = answer("cuDeviceGetName", result::device::get_name(device))?;
        let (pci_bus_id, properties) = (pci_bus_id(device)?, properties(device)?);
        // SAFETY: the device was returned by `get`.
        let handle = answer("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        // Dropping it releases the context; nothing that can fail comes before that.
        let context = Arc::new(Context { device, handle, name, pci_bus_id, properties });
        context.bind()?;
        Ok(context)
    }

    pub(in crate::cuda) fn name(&self) -> &str {
        &self.name
    }

    /// Where the device is in this host, e.g. `0000:17:00.0`.
    pub(in crate::cuda) fn pci_bus_id(&self) -> &str {
        &self.pci_bus_id
    }

    pub(in crate::cuda) fn properties(&self) -> Properties {
        self.properties
    }

    /// Make the context current on this thread. Every other call needs it, and any code may have changed it.
    pub(in crate::cuda) fn bind(&self) -> Result<()> {
        if answer("cuCtxGetCurrent", result::ctx::get_current())? == Some(self.handle) {
            return Ok(());
        }
        // SAFETY: the context is retained until `self` is dropped.
        answer("cuCtxSetCurrent", unsafe { result::ctx::set_current(self.handle) })
    }

    /// Take device memory; its content is unspecified.
    pub(in crate::cuda) fn allocate(&self, bytes: usize) -> Result<u64> {
        self.bind()?;
        // SAFETY: device memory may hold any bytes; it is read by kernels and copies, for which every pattern is a
        // value.
        match unsafe { result::malloc_sync(bytes) } {
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Err(Error::no_memory(self.name(), bytes)),
            other => answer("cuMemAlloc", other),
        }
    }

    /// Return device memory.
    ///
    /// # Safety
    /// `address` came from [`Context::allocate`] of this context, is not returned twice, and no queued work uses it.
    pub(in crate::cuda) unsafe fn release(&self, address: u64) -> Result<()> {
        self.bind()?;
        // SAFETY: promised by the caller.
        answer("cuMemFree", unsafe { result::free_sync(address) })
    }
}

fn pci_bus_id(device: sys::CUdevice) -> Result<String> {
    // Domain, bus, device and function in hexadecimal digits: 13 bytes, or some more where there are many domains.
    let mut text = [0u8; 64];
    // SAFETY: the device was returned by `get`; at most that number of bytes is written.
    let status = unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr().cast(), text.len() as c_int, device) };
    answer("cuDeviceGetPCIBusId", status.result())?;
    let text = CStr::from_bytes_until_nul(&text).map_err(|_| failure("cuDeviceGetPCIBusId", "a text without end"))?;
    Ok(text.to_string_lossy().into_owned())
}

pub(super) fn properties(device: sys::CUdevice) -> Result<Properties> {
    use sys::CUdevice_attribute as Attribute;
    let of = |what| {
        // SAFETY: the device was returned by `get`.
        let value = answer("cuDeviceGetAttribute", unsafe { result::device::get_attribute(device, what) })?;
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
        warn_of(answer("cuDevicePrimaryCtxRelease", unsafe { result::primary_ctx::release(self.device) }));
    }
}
