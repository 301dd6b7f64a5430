//! Devices on the CPU backend, in one call each.

use super::CpuBackend;
use crate::device::Device;
use crate::error::Result;
use crate::threads::CpuOptions;
use std::sync::Arc;

impl Device {
    /// The CPU with this many threads and the fastest instruction set of the processor.
    pub fn cpu(threads: usize) -> Result<Self> {
        Self::cpu_with(CpuOptions::new(threads))
    }

    /// The CPU with these settings.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for no threads and for an instruction set that the processor does not have.
    pub fn cpu_with(options: CpuOptions) -> Result<Self> {
        Ok(Device::new(Arc::new(CpuBackend::with(options)?)))
    }
}
