//! Whether the driver's library is there and complete, asked before anything in it is called.
//!
//! The bindings open `libcuda` on the first call and panic where the library or a function of it is missing. So every
//! function that `driver` uses is looked up here, once, and what is missing is an error.
#![allow(unsafe_code)]

use super::driver::failure;
use crate::device_spec::OPEN_DRIVER;
use crate::error::Result;
use cudarc::driver::sys;
use std::sync::OnceLock;

/// Every function that `driver` calls, directly or through the bindings.
const FUNCTIONS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD16Async",
    "cuMemsetD32Async",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuStreamWaitValue32_v2",
    "cuStreamWriteValue32_v2",
];

/// The library is there with all its functions.
///
/// # Errors
/// What is missing. The answer is the same for the life of the process.
pub(super) fn require() -> Result<()> {
    static MISSING: OnceLock<Option<String>> = OnceLock::new();
    match MISSING.get_or_init(missing) {
        None => Ok(()),
        Some(reason) => Err(failure(OPEN_DRIVER, reason.clone())),
    }
}

/// Milliseconds between two events.
pub(super) type ElapsedTime = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// The function of that name. The bindings know only a newer one, which drivers before CUDA 12.8 lack; the signature is
/// the same.
pub(super) fn elapsed_time() -> Result<ElapsedTime> {
    require()?;
    // SAFETY: `require` has opened the library a moment ago; the type is as in the driver's documentation.
    let found = unsafe { sys::culib().get::<ElapsedTime>(b"cuEventElapsedTime") };
    found.map(|function| *function).map_err(|error| failure("cuEventElapsedTime", error.to_string()))
}

/// Offset and size of a parameter of a kernel, by its number.
pub(super) type ParameterInfo = unsafe extern "C" fn(sys::CUfunction, usize, *mut usize, *mut usize) -> sys::CUresult;

/// The function that tells them; drivers before CUDA 12.4 have none.
pub(super) fn parameter_info() -> Result<Option<ParameterInfo>> {
    require()?;
    // SAFETY: `require` has opened the library a moment ago; the type is as in the driver's documentation.
    let found = unsafe { sys::culib().get::<ParameterInfo>(b"cuFuncGetParamInfo") };
    Ok(found.ok().map(|function| *function))
}

fn missing() -> Option<String> {
    // SAFETY: opening a library runs its initialisers; the name is the driver's, on whose good behaviour every later
    // call rests as well.
    if !unsafe { sys::is_culib_present() } {
        return Some("no driver library (libcuda.so.1) where the system looks for libraries".into());
    }
    // SAFETY: as above. The library was found a moment ago; should it be gone by now, the bindings panic, and the
    // caller turns that into an error too.
    let library = unsafe { sys::culib() };
    let absent = FUNCTIONS.iter().find(|name| {
        // SAFETY: only the presence of the function is asked for. It is not called through this type.
        unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err()
    })?;
    Some(format!("the driver library has no function {absent}: it is older than this program needs; update the driver"))
}
