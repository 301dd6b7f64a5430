//! The device of a rank: the choice of the command line or the recipe, with the variables of the environment.

use crate::{Error, Result};
use bmtrain_core::cpu::{CpuOptions, Pinning, Placement, Processors};
use bmtrain_core::device_spec::Opened;
use bmtrain_core::{DeviceChoice, DeviceRequest};
use bmtrain_dist::launch::{cpu_options, cuda_options};

/// The maximum of `device.threads` in a recipe.
const MAX_THREADS: usize = 1024;

/// Open the device of rank `local_rank` of the `local_size` ranks of this process, each with this number of threads,
/// which stay on the NUMA nodes of its cores. The first rank reports a fallback.
///
/// # Errors
/// A CUDA device that was asked for and cannot be used; an instruction set in `BMTRAIN_CPU` that this processor lacks.
pub fn open(
    choice: DeviceChoice,
    (local_rank, local_size): (usize, usize),
    threads: usize,
    notify: bool,
) -> Result<Opened> {
    let placement = Placement { pinning: Pinning::Nodes, index: local_rank, ranks: local_size };
    let cpu = CpuOptions { placement, ..cpu_options(threads)? };
    let opened = choice.open(&DeviceRequest { local_rank, local_size, cpu, cuda: cuda_options() })?;
    if let Some(note) = opened.note.as_ref().filter(|_| notify) {
        crate::cli::terminal::note(note);
    }
    Ok(opened)
}

/// The number of threads: `--threads`, by default one for each physical core of this process.
pub fn threads(asked: Option<usize>) -> Result<usize> {
    match asked {
        None => Ok(Processors::of_this_process().default_threads()),
        Some(count @ 1..=MAX_THREADS) => Ok(count),
        Some(count) => {
            let reason = format!("{count} threads");
            Err(Error::argument("--threads", reason, format!("use a number from 1 to {MAX_THREADS}")))
        }
    }
}
