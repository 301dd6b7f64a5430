//! Memory of the CUDA devices of a run: what each rank takes of its device, and what a device has. No device is opened.

use super::count::Counted;
use super::{Machine, RankLayout, gibibytes};
use crate::{Error, Result};
use bmtrain_core::DeviceChoice;
use bmtrain_core::cuda::{device_count, survey, usable};
use bmtrain_dist::launch::cuda_options;
use model_center_recipe::Resolved;

/// Estimate of what a process takes of a device before its first tensor: the driver's context, kernels and libraries.
const CONTEXT_BYTES: u64 = 512 << 20;
/// Scratch of the lanes, the workspace of matrix products (up to 32 MiB, in blocks that double) among it.
const WORKSPACE_BYTES: u64 = 64 << 20;
/// Estimate of NCCL's buffers in a group of several ranks.
const COMMUNICATION_BYTES: u64 = 256 << 20;

/// Memory that the ranks take of one device, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceNeed {
    /// Ranks that share the device.
    pub ranks: usize,
    /// Slabs of a rank's pool; counted.
    pub pool: u64,
    /// Context of a rank; estimated.
    pub context: u64,
    /// Workspace of a rank; estimated.
    pub workspace: u64,
    /// Buffers of NCCL of a rank; estimated.
    pub communication: u64,
}

impl DeviceNeed {
    /// Sum over all ranks that share the device.
    pub fn total(&self) -> u64 {
        self.ranks as u64 * (self.pool + self.context + self.workspace + self.communication)
    }
}

/// Memory that a run takes of each device.
pub fn estimate(resolved: &Resolved, layout: RankLayout, counted: &Counted) -> DeviceNeed {
    let is_shared = matches!(resolved.device.name, DeviceChoice::CudaDevice(_));
    // Ranks that share a device communicate through the host's memory.
    let uses_nccl = layout.ranks > 1 && !(is_shared && layout.local_ranks > 1);
    DeviceNeed {
        ranks: if is_shared { layout.local_ranks } else { 1 },
        pool: counted.taken,
        context: CONTEXT_BYTES,
        workspace: WORKSPACE_BYTES,
        communication: if uses_nccl { COMMUNICATION_BYTES } else { 0 },
    }
}

/// Whether the run is planned for CUDA devices: where they are named, and with `auto` where each rank of this machine
/// would get one, or where `--device-memory` states what they have.
pub fn is_on_cuda(machine: &Machine, resolved: &Resolved, local_ranks: usize) -> Result<bool> {
    match resolved.device.name {
        DeviceChoice::Cpu if machine.device_memory.is_some() => {
            let fix = "remove it, or set device.name = \"cuda\"";
            Err(Error::argument("--device-memory", "the run is on the CPU and uses no memory of a device", fix))
        }
        DeviceChoice::Cpu => Ok(false),
        DeviceChoice::Cuda | DeviceChoice::CudaDevice(_) => Ok(true),
        DeviceChoice::Auto => Ok(machine.device_memory.is_some()
            || device_count().is_ok_and(|count| {
                count >= local_ranks && count > 0 && usable(0..local_ranks, &cuda_options()).is_ok()
            })),
    }
}

/// Memory of the smallest CUDA device of this machine that could be used, bytes; `None` without one.
pub fn smallest_memory() -> Option<u64> {
    let devices = survey(&cuda_options()).devices.ok()?;
    let usable = devices.iter().filter(|device| device.problem().is_none());
    usable.filter_map(|device| device.memory_bytes).min().map(|bytes| bytes as u64)
}

/// Memory of the smallest device that a rank of this machine may use, bytes: of the command line, else of the driver;
/// `None` where neither provides it.
pub fn available(machine: &Machine, resolved: &Resolved, local_ranks: usize) -> Result<Option<u64>> {
    if let Some(gib) = machine.device_memory {
        return gibibytes("--device-memory", gib).map(Some);
    }
    let devices = survey(&cuda_options()).devices.unwrap_or_default();
    let numbers = match resolved.device.name {
        DeviceChoice::CudaDevice(number) => number..number.saturating_add(1),
        _ => 0..local_ranks,
    };
    let memories: Option<Vec<usize>> = numbers.map(|number| devices.get(number)?.memory_bytes).collect();
    Ok(memories.and_then(|all| all.into_iter().min()).map(|bytes| bytes as u64))
}
