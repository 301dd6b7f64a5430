//! The command line of gpu-check.

use bmtrain_core::cuda::CudaOptions;
use bmtrain_dist::launch::{cpu_options, cuda_options};
use clap::{Parser, ValueEnum};
use model_center_base::Result;
use std::path::PathBuf;
use std::process::Command;
use std::{env, io};

/// Prove and measure the CUDA backend on this machine's GPU: every kernel against the CPU, tiny models in training,
/// copies overlapped with compute, the speed of kernels and of whole models. Prints a table; the exit status is 0 only
/// if nothing failed.
///
/// Example: gpu-check --only conformance,training --json check.json
#[derive(Debug, Clone, Parser)]
#[command(name = "gpu-check", version)]
pub struct Options {
    /// Only these parts, of: environment, intrinsics, conformance, training, modes, overlap, kernels, models,
    /// warpgroups, variants.
    #[arg(long, value_name = "PART,..", value_delimiter = ',', value_enum)]
    pub only: Vec<Part>,
    /// Print the parts with what each does, and end.
    #[arg(long)]
    pub list: bool,
    /// The number of the CUDA device.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub device: usize,
    /// Of the conformance table only rows whose name contains this, such as softmax.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub rows: String,
    /// Compare the rows of each stem of the table, such as softmax, in a process of its own: a kernel that takes the
    /// device with it, or does not end within --part-limit, costs the rows of its stem alone.
    #[arg(long, requires = "json")]
    pub isolate: bool,
    /// Of the conformance table only the rows of this stem: what a process of --isolate is given.
    #[arg(long, value_name = "NAME", hide = true)]
    pub stem: Option<String>,
    /// The rank of the part modes that this process is.
    #[arg(long, value_name = "NUMBER", hide = true, requires = "meeting")]
    pub rank: Option<usize>,
    /// Where ranks meet, and leave what they saw.
    #[arg(long, value_name = "DIRECTORY", hide = true)]
    pub meeting: Option<PathBuf>,
    /// Seconds for the speed of each kernel.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.3, value_parser = seconds)]
    pub seconds: f64,
    /// Timed steps of each model, after three that are not.
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Turn options of the backend on that are off by default, for all parts: graphs, timed-products,
    /// kernel-epilogues, warpgroup-attention, wide-queries, wide-keys. The environment's switches are not read.
    #[arg(long, value_name = "OPTION,..", value_delimiter = ',', value_enum)]
    pub with: Vec<With>,
    /// Only models whose name contains this, such as GPT-2.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub model: String,
    /// Train the models with this dropout.
    #[arg(long, value_name = "PROBABILITY", value_parser = probability)]
    pub dropout: Option<f32>,
    /// Train the models on sequences of this many tokens; those with a table of positions take no more than it has.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub length: Option<u32>,
    /// Leave the rows of the models' vocabularies as they are, without padding to a multiple of 64.
    #[arg(long)]
    pub plain_vocabulary: bool,
    /// The most rows of a model's micro-batch, so that two programs can be compared at the same; a model that is timed
    /// with fewer stays as it is.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub most_rows: Option<u32>,
    /// Write everything that was found as JSON, after every part: a run that is killed leaves what came before.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Go on with the file of --json: parts that an earlier run ended are not run again, and a part that it did not
    /// survive is a failure, and run again only where --only names it.
    #[arg(long, requires = "json")]
    pub resume: bool,
    /// End the program when a part takes longer than this many seconds; the JSON has the parts before it.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub part_limit: Option<u32>,
    /// A missed target is a failure too.
    #[arg(long)]
    pub targets: bool,
    /// Print the models' speed in the file of --json beside PyTorch's in this file, which scripts/torch_gpu_step.py
    /// wrote, and end. No device is needed. Files of different devices or shapes are refused.
    #[arg(long, value_name = "FILE", requires = "json", conflicts_with_all = ["only", "list", "resume", "measure"])]
    pub compare: Option<PathBuf>,
    /// Run the measuring parts on an emulated device too, at tiny sizes; the figures describe no real device.
    #[arg(long)]
    pub measure: bool,
}

/// A part of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// The device, the driver and the libraries.
    Environment,
    /// Each instruction that the kernels write as inline assembly against the host's arithmetic.
    Intrinsics,
    /// Every row of the conformance table against the CPU, in every dtype.
    Conformance,
    /// A tiny BERT and a tiny GPT-2, 20 steps in f32 and bf16, against the CPU, and again for the same bits.
    Training,
    /// A checkpoint that is resumed from, offload, and two ranks of ZeRO-3 that share the device, with the same models.
    Modes,
    /// From a trace: how much of the time of copies to the device overlaps with products.
    Overlap,
    /// The speed of each kernel, as a share of what a copy and a large product reach.
    Kernels,
    /// Tokens per second of GPT-2, BERT and Llama in training, and where the time of a step goes, kernel by kernel.
    Models,
    /// Attention on products of warpgroups, on compute capability 9.0: against the CPU, and timed at several lengths.
    Warpgroups,
    /// What options of the backend gain that are off by default, and how large chunks of a head should be.
    Variants,
}

/// An option of the backend that is off by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum With {
    /// Launches that repeat are replayed as CUDA graphs.
    Graphs,
    /// The algorithms of products are chosen by time.
    TimedProducts,
    /// Kernels do what cuBLASLt could do beside a product.
    KernelEpilogues,
    /// Attention on products of warpgroups.
    WarpgroupAttention,
    /// Gradients of queries with 32 of them for a warp.
    WideQueries,
    /// Gradients of keys and values with 32 of them for a warp.
    WideKeys,
}

impl With {
    /// The names of several.
    pub(super) fn names(all: &[With]) -> Vec<String> {
        all.iter().map(name_of).collect()
    }

    fn place(self, options: &mut CudaOptions) -> &mut bool {
        match self {
            With::Graphs => &mut options.graphs,
            With::TimedProducts => &mut options.timed_products,
            With::KernelEpilogues => &mut options.kernel_epilogues,
            With::WarpgroupAttention => &mut options.warpgroup_attention,
            With::WideQueries => &mut options.wide_queries,
            With::WideKeys => &mut options.wide_keys,
        }
    }
}

impl Part {
    pub(super) const ALL: &[Part] = &[
        Part::Environment,
        Part::Intrinsics,
        Part::Conformance,
        Part::Training,
        Part::Modes,
        Part::Overlap,
        Part::Kernels,
        Part::Models,
        Part::Warpgroups,
        Part::Variants,
    ];

    /// Whether it is about time.
    pub(super) fn measures(self) -> bool {
        matches!(self, Part::Overlap | Part::Kernels | Part::Models)
    }

    pub(super) fn name(self) -> String {
        name_of(&self)
    }
}

/// A value as the command line has it.
fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Options {
    /// This program for a part alone, with the same device, options of the backend and limit.
    ///
    /// # Errors
    /// The program's own file is not known.
    pub(super) fn process_for(&self, part: Part) -> io::Result<Command> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["--only", &part.name(), "--device", &self.device.to_string()]);
        for option in With::names(&self.with) {
            command.args(["--with", &option]);
        }
        if let Some(limit) = self.part_limit {
            command.args(["--part-limit", &limit.to_string()]);
        }
        Ok(command)
    }
}

fn probability(text: &str) -> Result<f32, String> {
    let number: Option<f32> = text.parse().ok();
    number.filter(|number| (0.0..1.0).contains(number)).ok_or_else(|| "it must be at least 0 and below 1".into())
}

fn seconds(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    number.filter(|number| (0.001..=60.0).contains(number)).ok_or_else(|| "it must be from 0.001 to 60".into())
}

/// The same with all of [`With`] off.
pub(super) fn without_options(options: &CudaOptions) -> CudaOptions {
    let mut options = options.clone();
    With::value_variants().iter().for_each(|option| *option.place(&mut options) = false);
    options
}

/// Backend options that the environment declares, with these options on and the others off.
pub(super) fn backend_options(with: &[With], threads: usize) -> Result<CudaOptions> {
    let mut options = CudaOptions { host: Some(cpu_options(threads)?), ..without_options(&cuda_options()) };
    with.iter().for_each(|option| *option.place(&mut options) = true);
    Ok(options)
}
