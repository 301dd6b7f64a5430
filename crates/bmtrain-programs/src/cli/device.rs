//! The device of a rank: the choice of the command line or the recipe, with the variables of the environment.

use crate::cli::opened::{Form, ModelSource, Stored};
use crate::{Error, Result};
use bmtrain_core::cpu::{CpuOptions, Pinning, Placement, Processors};
use bmtrain_core::device_spec::Opened;
use bmtrain_core::{DeviceChoice, DeviceRequest};
use bmtrain_dist::launch::{cpu_options, cuda_options};
use clap::Args;
use model_center_models::adapter::Adapter;
use model_center_models::{OpenOptions, WeightForm};

/// The maximum of `device.threads` in a recipe.
const MAX_THREADS: usize = 1024;

/// The device of a program that uses a model, and the dtype of the weights there.
#[derive(Debug, Clone, Args)]
pub struct DeviceArguments {
    /// Device: auto, cpu, cuda, or cuda:1 for the second CUDA device.
    #[arg(long, value_name = "DEVICE", default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// Dtype of the weights; by default the stored one.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub dtype: Option<Stored>,
    /// Threads of all ranks together; by default one for each physical core that this process may use.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

impl DeviceArguments {
    /// The number of threads, checked.
    ///
    /// # Errors
    /// A number out of range.
    pub fn threads(&self) -> Result<usize> {
        threads(self.threads)
    }

    /// `open` with the dtype, the files and the adapter of the command line.
    pub fn open_options(&self, source: &ModelSource, adapter: Option<&Adapter>, open: OpenOptions) -> OpenOptions {
        OpenOptions {
            adapter: adapter.cloned(),
            family: source.family.clone(),
            ignored: source.leave.clone(),
            dtype: self.dtype.map_or(open.dtype, Stored::dtype),
            keep_dtype: self.dtype.is_none(),
            ..open
        }
    }
}

/// The form of quantised weights in memory.
#[derive(Debug, Clone, Args)]
pub struct WeightsArgument {
    /// How the matrices of a GGUF file that are stored in quantised blocks are held in memory; by default dequantised.
    #[arg(long, value_enum, value_name = "FORM")]
    pub weights: Option<Form>,
}

impl WeightsArgument {
    /// The option of the library.
    pub fn form(&self) -> WeightForm {
        self.weights.unwrap_or_default().option()
    }

    /// Whether quantised blocks stay as they are stored.
    pub fn are_as_stored(&self) -> bool {
        self.weights == Some(Form::AsStored)
    }

    /// Refuse blocks on a CUDA device.
    ///
    /// # Errors
    /// [`Error::Argument`] for `--weights as-stored` there.
    pub fn check_device(&self, on_cuda: bool) -> Result<()> {
        if on_cuda && self.are_as_stored() {
            let reason = "products with matrices in blocks are computed on the CPU alone";
            return Err(Error::argument("--weights", reason, "add --device cpu, or choose --weights dequantised"));
        }
        Ok(())
    }
}

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
