//! The device of a rank, as people write it: `auto`, `cpu`, `cuda`, `cuda:1`.

use crate::backend::Backend;
use crate::cpu::CpuBackend;
#[cfg(feature = "cuda")]
use crate::cuda::{CudaBackend, CudaOptions, device_count, usable};
use crate::error::{Error, OPEN_DEVICE, OPEN_DRIVER, Result};
use crate::threads::CpuOptions;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A device by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DeviceChoice {
    /// A CUDA device for each rank of the host if there are enough that can be used, otherwise the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device whose number is the rank's local rank.
    Cuda,
    /// The CUDA device of this number, of those that the rank sees: ranks that see the same ones share it.
    CudaDevice(usize),
}

impl DeviceChoice {
    /// Whether it is a CUDA device by name; `auto` is decided when the device is opened.
    pub fn is_cuda(self) -> bool {
        matches!(self, DeviceChoice::Cuda | DeviceChoice::CudaDevice(_))
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Cuda => f.write_str("cuda"),
            DeviceChoice::CudaDevice(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = |text: &str| text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda),
            other => number(other).map(DeviceChoice::CudaDevice).ok_or_else(|| {
                let known = "there are auto, cpu, cuda, and cuda:0 for the first CUDA device";
                Error::argument("device", format!("unknown device {text:?}: {known}"))
            }),
        }
    }
}

/// A rank among those that share its host, and what it brings to a device.
#[derive(Debug, Clone)]
pub struct DeviceRequest {
    /// The local rank: the rank's number on its host, from 0.
    pub local_rank: usize,
    /// Ranks of the host.
    pub local_size: usize,
    /// The CPU backend, and the threads for work of the host beside a CUDA device.
    pub cpu: CpuOptions,
    /// Options of the CUDA backend.
    #[cfg(feature = "cuda")]
    pub cuda: CudaOptions,
}

/// Result of a choice.
#[derive(Debug)]
pub struct Opened {
    /// The device.
    pub backend: Arc<dyn Backend>,
    /// The number of the CUDA device; none on the CPU.
    pub cuda: Option<usize>,
    /// The CUDA device by its own type, for ranks that communicate through NCCL; none on the CPU.
    #[cfg(feature = "cuda")]
    pub device: Option<Arc<CudaBackend>>,
    /// Why it is not the expected device, as text.
    pub note: Option<String>,
}

impl DeviceChoice {
    /// Open the device for a rank, which is the calling thread: it and the threads that it starts from now on are
    /// pinned as [`CpuOptions::placement`] states.
    ///
    /// # Errors
    /// [`Error::NoDevice`] for a CUDA device that was asked for by name and cannot be used, with the reason: no driver,
    /// no such device, fewer devices than ranks, a device that is too old, a library that is missing. With `auto` such
    /// reasons lead to the CPU; only where there is a driver are they noted.
    pub fn open(self, request: &DeviceRequest) -> Result<Opened> {
        request.cpu.placement.pin_rank();
        match self {
            DeviceChoice::Cpu => on_cpu(request, None),
            DeviceChoice::Auto => match cuda_of_rank(request) {
                Ok(opened) => Ok(opened),
                Err(Refused::NoDriver(_)) => on_cpu(request, None),
                Err(Refused::Other(error)) => on_cpu(request, Some(format!("running on the CPU: {error}"))),
            },
            DeviceChoice::Cuda => cuda_of_rank(request).map_err(|refused| self.refused(refused.into_error())),
            DeviceChoice::CudaDevice(number) => open_cuda(number, request).map_err(|error| self.refused(error)),
        }
    }

    /// Why this choice cannot be opened, and what the user can do about it.
    fn refused(self, error: Error) -> Error {
        let (reason, fix) = match error {
            Error::Device { call: OPEN_DRIVER, reason, .. } => {
                (reason, "choose device cpu or auto, or install NVIDIA's driver")
            }
            Error::Device { call: OPEN_DEVICE, reason, .. } => {
                (reason, "choose a device that is there, or cpu or auto")
            }
            Error::Device { call, reason, .. } => (
                format!("{call}: {reason}"),
                "choose device cpu or auto, or see whether NVIDIA's driver works (nvidia-smi)",
            ),
            Error::Argument { op: "device", reason } => (reason, "choose device cpu or auto, or follow the reason"),
            other => return other,
        };
        Error::NoDevice { asked: self.to_string(), reason, fix: fix.into() }
    }
}

enum Refused {
    /// Nothing on this machine speaks of one.
    NoDriver(Error),
    /// There is a driver.
    Other(Error),
}

impl Refused {
    fn into_error(self) -> Error {
        match self {
            Refused::NoDriver(error) | Refused::Other(error) => error,
        }
    }
}

fn on_cpu(request: &DeviceRequest, note: Option<String>) -> Result<Opened> {
    Ok(Opened {
        backend: Arc::new(CpuBackend::with(request.cpu)?),
        cuda: None,
        #[cfg(feature = "cuda")]
        device: None,
        note,
    })
}

#[cfg(feature = "cuda")]
fn cuda_of_rank(request: &DeviceRequest) -> Result<Opened, Refused> {
    let count = device_count().map_err(Refused::NoDriver)?;
    let (rank, ranks) = (request.local_rank, request.local_size);
    if count < ranks {
        let devices = if count == 1 { "one CUDA device".into() } else { format!("{count} CUDA devices") };
        let reason = format!(
            "{devices} for {ranks} ranks of this host; take cuda:0 to let them share the first, or if each of them \
                              sees one of its own"
        );
        return Err(Refused::Other(Error::argument("device", reason)));
    }
    // All devices of the host, so that its ranks come to the same choice.
    usable(0..ranks, &request.cuda).and_then(|()| open_usable(rank, request)).map_err(Refused::Other)
}

#[cfg(feature = "cuda")]
fn open_cuda(number: usize, request: &DeviceRequest) -> Result<Opened> {
    usable(number..number.saturating_add(1), &request.cuda)?;
    open_usable(number, request)
}

#[cfg(feature = "cuda")]
fn open_usable(number: usize, request: &DeviceRequest) -> Result<Opened> {
    let options = CudaOptions { host: Some(request.cpu), ..request.cuda.clone() };
    let backend = Arc::new(CudaBackend::open(number, &options)?);
    Ok(Opened {
        backend: Arc::clone(&backend) as Arc<dyn Backend>,
        cuda: Some(number),
        device: Some(backend),
        note: None,
    })
}

#[cfg(not(feature = "cuda"))]
fn cuda_of_rank(_: &DeviceRequest) -> Result<Opened, Refused> {
    Err(Refused::NoDriver(without_cuda()))
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(_: usize, _: &DeviceRequest) -> Result<Opened> {
    Err(without_cuda())
}

#[cfg(not(feature = "cuda"))]
fn without_cuda() -> Error {
    Error::argument("device", "this program was built without CUDA; build it with the feature cuda")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_alike() {
        for name in ["auto", "cpu", "cuda", "cuda:0", "cuda:15"] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap().to_string(), name);
        }
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:1 ", "CPU"] {
            let error = name.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(error.contains("auto, cpu, cuda"), "{error}");
        }
    }

    #[test]
    fn the_cpu_is_there_always() {
        let request = DeviceRequest {
            local_rank: 0,
            local_size: 1,
            cpu: CpuOptions::new(1),
            #[cfg(feature = "cuda")]
            cuda: CudaOptions::default(),
        };
        let opened = DeviceChoice::Cpu.open(&request).unwrap();
        assert!(opened.cuda.is_none() && opened.note.is_none());
        assert!(opened.backend.name().starts_with("cpu"));
    }
}
