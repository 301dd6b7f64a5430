//! Environment of the check: the device, the driver, the libraries; and what of it is missing.

use super::report::Report;
use bmtrain_core::cpu::Processors;
use bmtrain_core::cuda::{CudaOptions, Installed, Library, Present, Survey, survey};
use serde_json::json;

/// A machine that has all that is needed.
#[derive(Debug)]
pub struct Environment {
    found: Survey,
    device: Installed,
    number: usize,
}

impl Environment {
    /// Look for the device of this number and its libraries; the error names in one line what is missing.
    pub fn find(number: usize, options: &CudaOptions) -> Result<Self, String> {
        let found = survey(options);
        let device = match &found.devices {
            Err(reason) => return Err(format!("no CUDA device: {reason}")),
            Ok(devices) => devices.get(number).cloned().ok_or_else(|| {
                format!("no CUDA device of number {number}: there are {}, counted from 0", devices.len())
            })?,
        };
        for Library { name, state } in &found.libraries {
            // Compiled kernels need no compiler, and one rank no communication.
            let is_needed = *name == "cuBLASLt" || (*name == "NVRTC" && options.compiled.is_none());
            if let Err(reason) = state
                && is_needed
            {
                return Err(format!("{name} is missing: {reason}"));
            }
        }
        Ok(Environment { found, device, number })
    }

    /// Whether the device is emulated.
    pub fn is_emulated(&self) -> bool {
        self.device.name.contains("emulated")
    }

    /// Bytes of the device's memory, where the driver reports it.
    pub fn memory_bytes(&self) -> Option<usize> {
        self.device.memory_bytes
    }

    /// Print it.
    pub fn tell(&self, report: &mut Report) {
        let Installed { name, capability: (major, minor), multiprocessors, memory_bytes } = &self.device;
        let memory = memory_bytes
            .map_or("memory unknown".into(), |bytes| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)));
        report.row(
            format!("cuda:{}", self.number),
            format!("{name}, capability {major}.{minor}, {multiprocessors} multiprocessors, {memory}"),
        );
        let driver = self.found.driver.map_or("unknown".into(), |(major, minor)| format!("for CUDA {major}.{minor}"));
        report.row("driver", driver);
        for Library { name, state } in &self.found.libraries {
            let says = match state {
                Ok(Present { path, version, why, problem }) => {
                    let more: String = why.iter().chain(problem).map(|more| format!("; {more}")).collect();
                    format!("{version} at {}{more}", path.display())
                }
                Err(reason) => format!("missing, not needed here: {reason}"),
            };
            report.row(*name, says);
        }
        let library = |library: &Library| match &library.state {
            Ok(Present { path, version, why, problem }) => {
                json!({ "name": library.name, "path": path, "version": version, "why": why, "problem": problem })
            }
            Err(reason) => json!({ "name": library.name, "missing": reason }),
        };
        let found = json!({
            "device": {
                "number": self.number, "name": name, "capability": [major, minor], "multiprocessors": multiprocessors,
                "memory_bytes": memory_bytes,
            },
            "driver": self.found.driver.map(|(major, minor)| [major, minor]),
            "libraries": self.found.libraries.iter().map(library).collect::<Vec<_>>(),
            "processors": Processors::of_this_process().count(),
        });
        report.part("environment", found);
    }
}
