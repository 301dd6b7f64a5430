//! Times training steps of a model of known size with random weights and ids: the measurement for the speed and
//! memory claims. Prints the median step, tokens/s, peak memory, the time of the matrix products alone as a floor, and
//! with `--profile` where the time goes. With `--ranks` the batch is shared among ranks of this process, with
//! `--tensor` among groups of them that share the weights, with `--pipeline` among groups that have some of the blocks.

use crate::step::{Extent, Size, Steps, gemm_floor, random_batch, rows_of, stages};
use anyhow::{Context, Result, anyhow, bail};
use bmtrain_core::bench::{Rounds, measure};
use bmtrain_core::comm::host::{HostGroup, HostOptions};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::pool::Usage;
use bmtrain_core::{DType, Device, DeviceChoice, Segment, heap};
use bmtrain_dist::RankGroups;
use bmtrain_dist::block::{BlockOptions, Recompute};
use bmtrain_dist::inspect::process as memory;
use bmtrain_dist::launch::{run_group, threads_per_rank};
use bmtrain_dist::param::{BuilderOptions, TensorGroup};
use bmtrain_dist::pipeline::{Schedule, ScheduleKind};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_programs::profile::TimedDevice;
use clap::{Parser, ValueEnum};
use std::sync::Arc;

/// Steps before anything is timed or counted.
const WARM_UP: usize = 3;

/// Time training steps of a BERT classifier, a GPT-2 language model or a T5 with random weights and ids.
///
/// Example: step_bench --model bert-base --batch 8 --seq 128 --steps 7 --threads 2
#[derive(Debug, Clone, Parser)]
pub struct Options {
    /// Which sizes.
    #[arg(long, value_enum, default_value = "bert-base")]
    pub model: Size,
    /// Sequences of a step, over all ranks.
    #[arg(long, default_value_t = 8)]
    pub batch: usize,
    /// Tokens of a sequence.
    #[arg(long, default_value_t = 128)]
    pub seq: usize,
    /// Tokens of a sequence's target, for a model that has a decoder after an encoder.
    #[arg(long, default_value_t = 32)]
    pub target: usize,
    /// Instead of --seq: lengths that batches have in turn, rows padded to them, e.g. 128,72,104.
    #[arg(long, value_name = "L,L,..", value_delimiter = ',', conflicts_with = "seq")]
    pub lengths: Vec<usize>,
    /// Pack sequences with documents of this number of tokens, which attend to themselves alone.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    pub documents: Option<u64>,
    /// Timed steps, after three that are not.
    #[arg(long, default_value_t = 5)]
    pub steps: usize,
    /// Threads, over all ranks.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Ranks of this process that share every batch.
    #[arg(long, default_value_t = 1, conflicts_with_all = ["check_alloc", "profile"])]
    pub ranks: usize,
    /// Ranks of a tensor-parallel group: they share every layer's weights and work on the same sequences.
    #[arg(long, value_name = "RANKS", default_value_t = 1)]
    pub tensor: usize,
    /// Shard the tokens between the parallel layers over the tensor-parallel ranks.
    #[arg(long, requires = "tensor")]
    pub sequence: bool,
    /// Pipeline stages: each has some of the blocks.
    #[arg(long, value_name = "STAGES", default_value_t = 1)]
    pub pipeline: usize,
    /// In which order a stage runs its micro-batches: gpipe, 1f1b, interleaved, zb-1p or zb-v.
    #[arg(long, value_name = "KIND", default_value = "1f1b", requires = "pipeline")]
    pub schedule: ScheduleKind,
    /// Micro-batches of a data-parallel rank in a step.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub micro_batches: usize,
    /// What ranks hold shards of: optimizer state from 1 on, gradients from 2 on, parameters at 3.
    #[arg(long, value_name = "LEVEL", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3))]
    pub zero: u64,
    /// Where: cpu, cuda, cuda:1, or auto. On a CUDA device the peak of memory that is printed is still the host's.
    #[arg(long, default_value = "cpu")]
    pub device: DeviceChoice,
    /// Dtype of the parameters.
    #[arg(long, value_enum, default_value = "f32")]
    pub dtype: Precision,
    /// Which blocks are recomputed on the backward pass instead of keeping their activations.
    #[arg(long, value_enum, value_name = "WHICH", default_value = "none", default_missing_value = "blocks",
        num_args = 0..=1)]
    pub recompute: Recomputed,
    /// Print the time of each kernel; slows the step a little.
    #[arg(long)]
    pub profile: bool,
    /// Fail if anything large is allocated, or the pool or memory grows, after the third step.
    #[arg(long)]
    pub check_alloc: bool,
    /// Do not time the matrix products alone.
    #[arg(long)]
    pub no_floor: bool,
    /// One line of JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// Which blocks are recomputed.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Recomputed {
    /// None.
    None,
    /// All of them.
    Blocks,
    /// Those whose activations do not fit into the memory that gradients take later.
    Auto,
}

impl Recomputed {
    fn policy(self) -> Recompute {
        match self {
            Recomputed::None => Recompute::Keep,
            Recomputed::Blocks => Recompute::Checkpoint,
            Recomputed::Auto => Recompute::Auto,
        }
    }
}

/// Dtypes of parameters.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Precision {
    /// Single precision.
    F32,
    /// bfloat16.
    Bf16,
}

/// Measure and print.
pub fn run(options: &Options) -> Result<()> {
    let lengths = options.lengths();
    if options.steps == 0 || options.batch == 0 || options.target == 0 || lengths.contains(&0) {
        bail!("--steps, --batch, --seq, --target and --lengths must be above 0");
    }
    options.check_ranks()?;
    let run = match options.ranks {
        1 => measure_steps(options, Arc::new(Solo))?,
        ranks => {
            let group = HostGroup::threads(ranks, HostOptions::default())?;
            let group = group.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Communicator>).collect();
            let runs = run_group(group, |_, rank| {
                let options = options.clone();
                move || measure_steps(&options, rank).map_err(Failure)
            });
            mean_loss(runs.map_err(|failed| anyhow!("rank {}: {:#}", failed.rank, failed.error.0))?)?
        }
    };
    let peak = memory::peak_resident_bytes().context("/proc/self/status cannot be read")?;
    let Run { device, step, tokens, loss, floor, grown, segments } = &run;
    if options.json {
        let line = serde_json::json!({
            "device": device,
            "step_s": step,
            "tokens_per_s": tokens / step,
            "peak_rss_bytes": peak,
            "gemm_floor_s": floor,
            "loss": loss,
            "pool_requests": grown.pool_requests,
            "large_allocations": grown.large_allocations,
            "resident_growth_bytes": grown.resident_bytes,
        });
        println!("{line}");
    } else {
        println!(
            "{:?} {} x {lengths:?}, {} threads, {} ranks, tensor {}{}, pipeline {}, ZeRO-{}: step {step:.3} s, {:.0} \
             tokens/s, peak {:.2} GiB, loss {loss:.4}",
            options.model,
            options.batch,
            options.threads,
            options.ranks,
            options.tensor,
            if options.sequence { " with sequence sharding" } else { "" },
            options.pipeline,
            options.zero,
            tokens / step,
            peak as f64 / (1u64 << 30) as f64
        );
        if let Some(floor) = floor {
            println!("matrix products alone: {floor:.3} s, {:.0} % of the step", 100.0 * floor / step);
        }
        for (segment, usage) in segments {
            println!("{:>12}: peak {:.1} MiB", segment.name(), usage.peak as f64 / (1 << 20) as f64);
        }
        println!("after step {WARM_UP}: {grown:?}");
    }
    if options.check_alloc {
        let Growth { pool_requests, large_allocations, resident_bytes, .. } = grown;
        println!("figure: {pool_requests}/{large_allocations}/{resident_bytes}");
        grown.check()?;
    }
    Ok(())
}

impl Options {
    /// Lengths that batches have in turn.
    fn lengths(&self) -> Vec<usize> {
        if self.lengths.is_empty() { vec![self.seq] } else { self.lengths.clone() }
    }

    /// Whether the ranks can be divided so, and share the sequences evenly.
    fn check_ranks(&self) -> Result<()> {
        let Options { ranks, tensor, pipeline, micro_batches, batch, schedule, .. } = *self;
        let copy = tensor.saturating_mul(pipeline);
        if copy == 0 || ranks == 0 || !ranks.is_multiple_of(copy) {
            bail!(
                "--tensor {tensor} --pipeline {pipeline}: {ranks} ranks cannot be divided into such groups: start a \
                 multiple of both with --ranks"
            );
        }
        let parts = (ranks / copy).saturating_mul(micro_batches);
        if parts == 0 || !batch.is_multiple_of(parts) {
            let groups = ranks / copy;
            bail!(
                "--ranks {ranks}: {batch} sequences cannot be shared evenly by {groups} in {micro_batches} \
                 micro-batches: choose a divisor"
            );
        }
        if schedule == ScheduleKind::ForwardOnly {
            bail!("--schedule {schedule}: a training step needs backward passes: choose another schedule");
        }
        Ok(())
    }

    /// Sizes of a batch of all ranks whose rows have this length.
    fn extent(&self, length: usize) -> Extent {
        let document = self.documents.map(|tokens| tokens as usize);
        Extent { rows: self.batch, length, target: self.target, is_padded: !self.lengths.is_empty(), document }
    }
}

/// Error of a rank, in the form in which ranks tell each other.
struct Failure(anyhow::Error);

impl From<bmtrain_dist::Error> for Failure {
    fn from(error: bmtrain_dist::Error) -> Self {
        Failure(error.into())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

/// Measurements of one rank.
struct Run {
    /// Name of the device.
    device: String,
    /// Median seconds of a step.
    step: f64,
    /// Mean number of a step's tokens over all ranks, with padding.
    tokens: f64,
    /// Loss of the rank's rows in the last step.
    loss: f32,
    floor: Option<f64>,
    grown: Growth,
    segments: Vec<(Segment, Usage)>,
}

/// The first rank's run with the loss of all rows.
fn mean_loss(runs: Vec<Run>) -> Result<Run> {
    let loss = runs.iter().map(|run| run.loss).sum::<f32>() / runs.len() as f32;
    let first = runs.into_iter().next().context("there is a rank")?;
    Ok(Run { loss, ..first })
}

/// Time the steps on this rank.
fn measure_steps(options: &Options, ranks: Arc<dyn Communicator>) -> Result<Run> {
    let (shape, lengths) = (options.model.shape(), options.lengths());
    let threads = threads_per_rank(options.threads, ranks.size());
    let timed = TimedDevice::open(options.device, (ranks.rank(), ranks.size()), threads, options.profile)?;
    let device = &timed.device;
    let dtype = match options.dtype {
        Precision::F32 => DType::F32,
        Precision::Bf16 => DType::BF16,
    };
    let blocks = BlockOptions::from(options.recompute.policy());
    let level = ZeroLevel::from_number(options.zero).context("--zero is from 0 to 3")?;
    let groups = RankGroups::split(Arc::clone(&ranks), options.pipeline, options.tensor)?;
    let sharding = Sharding { ranks: Arc::clone(groups.data()), level, sum: GradientSum::Fast, prefetch: true };
    let ranks_of_tensor = Arc::clone(groups.tensor());
    let (sequence, pads_one_rank) = (options.sequence, device.backend().aligns_products());
    let tensor = TensorGroup { ranks: ranks_of_tensor, sequence, pads_one_rank, ..TensorGroup::default() };
    let (kind, micro_batches) = (options.schedule, options.micro_batches);
    let schedule = Schedule::new(kind, options.pipeline, kind.default_chunks(), micro_batches)?;
    let stages = stages(shape, blocks, Arc::clone(groups.pipe()), &schedule)?;
    let builder = BuilderOptions { mesh: groups.mesh(), tensor, stages, dtype, sharding, ..BuilderOptions::default() };
    let mut steps = Steps::new(device, shape, (blocks, micro_batches), builder)?;

    let mut grown = Growth::default();
    let (mut requests, mut resident) = (0, 0);
    let (mut loss, mut tokens, mut step) = (0.0, 0, 0);
    let [seconds] = measure(Rounds::exactly(WARM_UP, options.steps), || {
        if step == WARM_UP {
            requests = device.memory().system_requests;
            resident = memory::resident_bytes().unwrap_or(0);
            timed.reset_profile();
        }
        // A new batch in host memory each time, as a loader makes it.
        let extent = options.extent(lengths[step % lengths.len()]);
        let data = groups.data();
        let batch = rows_of(random_batch(shape, extent, step as u32), data.rank(), data.size());
        let before = (gemm_scratch(device), heap::counts().large);
        let done = steps.run(&batch, step as u32)?;
        loss = done.loss;
        if step >= WARM_UP {
            grown.add_step(gemm_scratch(device).saturating_sub(before.0), heap::counts().large - before.1, threads);
            tokens += extent.tokens(shape.family);
        }
        step += 1;
        Ok::<_, anyhow::Error>([done.seconds])
    })?;
    grown.pool_requests = device.memory().system_requests - requests;
    grown.resident_bytes = memory::resident_bytes().unwrap_or(0).saturating_sub(resident);
    let tokens = tokens as f64 / options.steps as f64;
    timed.print_profile(&seconds);
    let is_alone = ranks.size() == 1 && !options.no_floor;
    let length = lengths.iter().sum::<usize>() / lengths.len();
    let floor = if is_alone { Some(gemm_floor(device, shape, options.extent(length))?) } else { None };
    Ok(Run {
        device: device.backend().name(),
        step: seconds.median(),
        tokens,
        loss,
        floor,
        grown,
        segments: device.memory().segments,
    })
}

/// Growth that a steady state must not have.
#[derive(Debug, Default)]
struct Growth {
    pool_requests: u64,
    /// Outside the GEMM scratch.
    large_allocations: u64,
    /// The scratch grows, up to a bound, when products of another shape come.
    gemm_scratch_bytes: u64,
    resident_bytes: u64,
}

impl Growth {
    /// Count the large allocations of a step in which the scratch grew by so much. The scratch has five regions for
    /// each thread: of a step in which it grew, no more than these are its own.
    fn add_step(&mut self, scratch_bytes: usize, large: u64, threads: usize) {
        let own = if scratch_bytes > 0 { 5 * threads as u64 } else { 0 };
        self.gemm_scratch_bytes += scratch_bytes as u64;
        self.large_allocations += large.saturating_sub(own);
    }

    /// One MiB of resident memory is page granularity of stacks and of the allocator's small bins.
    fn check(&self) -> Result<()> {
        if self.pool_requests > 0 || self.large_allocations > 0 || self.resident_bytes > 1 << 20 {
            bail!("the steady state is not flat: {self:?}");
        }
        Ok(())
    }
}

/// Bytes that matrix products keep to pack their operands.
fn gemm_scratch(device: &Device) -> usize {
    device.backend().scratch().iter().filter(|(name, _)| *name == "GEMM scratch").map(|(_, bytes)| bytes).sum()
}
