//! Survey of a machine's CUDA, for people: nothing here fails, and what is missing comes with how to get it.

use super::CudaOptions;
use super::blas;
use super::compile::{Nvrtc, Target};
use super::driver::{Described, cuda_version, devices, failure};
use super::libraries::{ALL, CUBLASLT, NVRTC, Opened, Wanted, open};
use super::nccl_version::Version;
use crate::error::{Error, OPEN_DRIVER, Result};
use std::ops::Range;
use std::path::PathBuf;

/// Result of [`survey`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// Major and minor version of CUDA that the driver is made for; none where there is no driver, or it does not
    /// report it.
    pub driver: Option<(u32, u32)>,
    /// The devices by their numbers, or why there are none.
    pub devices: Result<Vec<Installed>, String>,
    /// The libraries beside the driver: compiler, matrix products, communication.
    pub libraries: Vec<Library>,
}

/// A device that the driver knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The driver's name of the device.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of its memory, where the driver reports them.
    pub memory_bytes: Option<usize>,
}

impl Installed {
    /// Why kernels cannot run on it, if they cannot.
    pub fn problem(&self) -> Option<String> {
        Target::check_age(self.capability).err().map(|error| match error {
            Error::Device { reason, .. } => reason,
            other => other.to_string(),
        })
    }
}

/// One of the libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// Name of the library.
    pub name: &'static str,
    /// Path and version, or what is missing and how to get it.
    pub state: Result<Present, String>,
}

/// A library that was found and opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// Its file.
    pub path: PathBuf,
    /// Its version in its own count, e.g. `13.0`.
    pub version: String,
    /// Why it is this one, where another was found before it.
    pub why: Option<String>,
    /// The problem although it is there, and what to do.
    pub problem: Option<String>,
}

/// Look at the driver, its devices, and the libraries that a backend of these options would use. Works on any machine.
pub fn survey(options: &CudaOptions) -> Survey {
    let driver = cuda_version();
    let libraries =
        ALL.map(|wanted| Library { name: wanted.name, state: state(wanted, options, driver).map_err(message) });
    Survey {
        driver,
        devices: devices().map(|all| all.into_iter().map(installed).collect()).map_err(message),
        libraries: libraries.into(),
    }
}

/// Whether backends of these options could compute on the devices of these numbers: the devices are new enough, and the
/// libraries that the first launches would ask for are there and belong to this driver. Opens no device. Numbers that
/// no device has are passed over: [`CudaBackend::open`](super::CudaBackend::open) refuses them.
///
/// # Errors
/// No driver, a device that is too old, a library that is missing or too new, with what to do about it.
pub fn usable(numbers: Range<usize>, options: &CudaOptions) -> Result<()> {
    let devices = devices()?;
    let capabilities = || numbers.clone().filter_map(|number| devices.get(number)).map(|all| all.properties.capability);
    capabilities().try_for_each(Target::check_age)?;
    let driver = cuda_version();
    // Compiled kernels need no compiler.
    let compiler = options.compiled.is_none().then_some(&NVRTC);
    for wanted in compiler.into_iter().chain([&CUBLASLT]) {
        if let Some(problem) = state(wanted, options, driver)?.problem {
            return Err(failure(wanted.call, problem));
        }
    }
    Ok(())
}

fn message(error: Error) -> String {
    match error {
        Error::Device { call: OPEN_DRIVER, reason, .. } => {
            format!("{reason}; install NVIDIA's driver, or run on the CPU")
        }
        Error::Device { call, reason, .. } => format!("{call}: {reason}"),
        other => other.to_string(),
    }
}

fn installed(device: Described) -> Installed {
    let Described { name, properties, memory_bytes } = device;
    Installed { name, capability: properties.capability, multiprocessors: properties.multiprocessors, memory_bytes }
}

fn state(wanted: &'static Wanted, options: &CudaOptions, driver: Option<(u32, u32)>) -> Result<Present> {
    let (path, version, cuda, rather_than) = if *wanted == NVRTC {
        let nvrtc = Nvrtc::open(options)?;
        let (major, minor) = nvrtc.version();
        (nvrtc.path().clone(), format!("{major}.{minor}"), Some(major), nvrtc.library().rather_than().to_vec())
    } else {
        let library = open(wanted, options)?;
        let rather_than = library.rather_than().to_vec();
        if *wanted == CUBLASLT {
            let (path, [major, minor, patch]) = blas::version(&library)?;
            (path, format!("{major}.{minor}.{patch}"), Some(major), rather_than)
        } else {
            let (path, version) = nccl_version(&library)?;
            (path, version.to_string(), None, rather_than)
        }
    };
    let passed_over: Vec<String> = rather_than.iter().map(|path| path.display().to_string()).collect();
    let why = driver.filter(|_| !passed_over.is_empty()).map(|(driver, minor)| {
        let passed_over = passed_over.join(", ");
        format!("taken rather than {passed_over}, because the driver is made for CUDA {driver}.{minor}")
    });
    let problem = match (cuda, driver) {
        (Some(cuda), Some((driver, minor))) if cuda > driver => Some(format!(
            "it belongs to CUDA {cuda}, and the driver is made for {driver}.{minor}: update the driver, or install the \
             library of CUDA {driver}"
        )),
        _ => None,
    };
    Ok(Present { path, version, why, problem })
}

#[allow(unsafe_code)]
fn nccl_version(library: &Opened) -> Result<(PathBuf, Version)> {
    type GetVersion = unsafe extern "C" fn(*mut i32) -> i32;
    // SAFETY: the function has this type.
    let get: GetVersion = unsafe { library.function(c"ncclGetVersion") }?;
    let mut version = 0;
    // SAFETY: one number is written; it works without a driver.
    let status = unsafe { get(&mut version) };
    let version = u32::try_from(version).ok().filter(|_| status == 0).unwrap_or(0);
    Ok((library.path_of(get as usize), Version(version)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::libraries_for_tests;

    #[test]
    fn a_survey_works_on_any_machine_and_says_what_is_missing() {
        let survey = survey(&CudaOptions { libraries: vec!["/nowhere".into()], ..CudaOptions::default() });
        assert_eq!(
            survey.libraries.iter().map(|library| library.name).collect::<Vec<_>>(),
            ["NVRTC", "cuBLASLt", "NCCL"]
        );
        for library in &survey.libraries {
            match &library.state {
                Ok(present) => assert!(!present.version.is_empty() && present.path.is_absolute(), "{present:?}"),
                Err(missing) => assert!(missing.contains("/nowhere") && missing.contains("pip install"), "{missing}"),
            }
        }
        if let Err(reason) = &survey.devices {
            assert!(!reason.is_empty());
        }
    }

    #[test]
    fn what_is_there_is_listed_with_path_and_version() {
        let Some(options) = libraries_for_tests("what_is_there_is_listed_with_path_and_version") else { return };
        let nvrtc = survey(&options).libraries.into_iter().next().unwrap().state.unwrap();
        assert!(nvrtc.path.starts_with(&options.libraries[0]), "{nvrtc:?}");
        assert!(nvrtc.version.starts_with("13.") || nvrtc.version.starts_with("12."), "{nvrtc:?}");
    }
}
