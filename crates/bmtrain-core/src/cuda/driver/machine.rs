//! The driver's report of itself and of the devices, without opening one.
#![allow(unsafe_code)]

use super::context::{Properties, count, device, name, properties};
use super::functions::SUCCESS;
use super::{Functions, failure, functions};
use crate::error::Result;
use crate::panics::catch;
use std::ffi::c_int;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cuda) struct Described {
    pub(in crate::cuda) name: String,
    pub(in crate::cuda) properties: Properties,
    /// None where the driver does not report it.
    pub(in crate::cuda) memory_bytes: Option<usize>,
}

/// The version of CUDA that the driver is made for, major and minor. None without a driver.
pub(in crate::cuda) fn cuda_version() -> Option<(u32, u32)> {
    let mut version = 0;
    // SAFETY: writes one number, and may be called before `cuInit`.
    let status = unsafe { (functions().ok()?.driver_version?)(&mut version) };
    let version = u32::try_from(version).ok().filter(|_| status == SUCCESS)?;
    Some((version / 1000, version % 1000 / 10))
}

pub(in crate::cuda) fn devices() -> Result<Vec<Described>> {
    let described = catch(|| {
        let driver = functions()?;
        (0..count(driver)?).map(|number| describe(driver, number)).collect()
    });
    described.unwrap_or_else(|panic| Err(failure("ask the driver", format!("the driver library failed: {panic}"))))
}

fn describe(driver: &Functions, number: c_int) -> Result<Described> {
    let device = device(driver, number)?;
    let mut bytes = 0;
    // SAFETY: writes one number; the device was returned by `device`.
    let memory = driver.device_memory.filter(|total| unsafe { total(&mut bytes, device) } == SUCCESS);
    let memory_bytes = memory.map(|_| bytes);
    Ok(Described { name: name(driver, device)?, properties: properties(driver, device)?, memory_bytes })
}
