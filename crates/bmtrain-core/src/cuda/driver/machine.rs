//! What the driver reports of itself and of the devices, without opening one.
#![allow(unsafe_code)]

use super::super::library;
use super::context::{Properties, properties};
use super::{answer, failure};
use crate::error::Result;
use crate::panics::catch;
use cudarc::driver::{result, sys};
use std::ffi::CStr;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cuda) struct Described {
    pub(in crate::cuda) name: String,
    pub(in crate::cuda) properties: Properties,
    /// None where the driver does not report it.
    pub(in crate::cuda) memory_bytes: Option<usize>,
}

/// The version of CUDA that the driver is made for, major and minor. None without a driver.
pub(in crate::cuda) fn cuda_version() -> Option<(u32, u32)> {
    type GetVersion = unsafe extern "C" fn(*mut i32) -> i32;
    library::require().ok()?;
    let mut version = 0;
    // SAFETY: the function has this type, writes one number, and may be called before `cuInit`.
    let status = unsafe { optional::<GetVersion>(c"cuDriverGetVersion")?(&mut version) };
    let version = u32::try_from(version).ok().filter(|_| status == 0)?;
    Some((version / 1000, version % 1000 / 10))
}

pub(in crate::cuda) fn devices() -> Result<Vec<Described>> {
    let described = catch(|| {
        library::require()?;
        answer("cuInit", result::init())?;
        let count = answer("cuDeviceGetCount", result::device::get_count())?;
        (0..count).map(describe).collect()
    });
    described.unwrap_or_else(|panic| Err(failure("ask the driver", format!("the driver library failed: {panic}"))))
}

fn describe(number: i32) -> Result<Described> {
    type TotalMemory = unsafe extern "C" fn(*mut usize, sys::CUdevice) -> i32;
    let device = answer("cuDeviceGet", result::device::get(number))?;
    let name = answer("cuDeviceGetName", result::device::get_name(device))?;
    let mut bytes = 0;
    // SAFETY: the function has this type and writes one number; the device was returned by `get`.
    let memory = unsafe { optional::<TotalMemory>(c"cuDeviceTotalMem_v2") }
        // SAFETY: as above.
        .filter(|total| unsafe { total(&mut bytes, device) } == 0);
    Ok(Described { name, properties: properties(device)?, memory_bytes: memory.map(|_| bytes) })
}

/// A function of the driver that nothing but a description needs.
///
/// # Safety
/// `F` is its type, a pointer. The driver library is there.
unsafe fn optional<F: Copy>(name: &CStr) -> Option<F> {
    // SAFETY: promised by the caller; the library stays open.
    unsafe { sys::culib().get::<F>(name.to_bytes()) }.ok().map(|symbol| *symbol)
}
