//! Tiny models and a few steps of their training: what two devices have to agree on.

use super::shape::{Family, Shape};
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::host::{HostGroup, HostOptions, HostRank};
use bmtrain_core::comm::{Communicator, Solo};
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::philox::{self, Key};
use bmtrain_core::{DType, Device};
use bmtrain_dist::block::{BlockOptions, InputStore, Recompute};
use bmtrain_dist::checkpoint::{Facts, SaveEvent, Saver, Store, TrainingState, restore};
use bmtrain_dist::control::ControlGroup;
use bmtrain_dist::optim::{Adam, AdamOffload, AdamOptions, Clip, Optimizer, ParamGroup};
use bmtrain_dist::param::{BuilderOptions, TensorGroup};
use bmtrain_dist::pipeline::{MicroBatch, Partition, Schedule, ScheduleKind, StageGroup};
use bmtrain_dist::shard::{GradientSum, Sharding, ZeroLevel};
use bmtrain_dist::{Mesh, OptimManager, RankGroup};
use model_center_base::{Error, Result};
use model_center_models::{Batch, Labels, TextModel};
use model_center_train::StepRunner;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread;

/// Rows of a step, over all ranks.
const ROWS: usize = 4;
/// Micro-batches of a step over pipeline stages, of every data-parallel rank.
const MICRO_BATCHES: usize = 2;
/// Not a multiple of any tile.
const LENGTH: usize = 11;
const VOCABULARY: usize = 50;

/// State in the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// Nothing.
    Nothing,
    /// Optimizer state.
    Optimizer,
    /// Optimizer state, parameters at rest and the inputs of recomputed blocks.
    Everything,
}

/// One training run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    /// GPT-2, with every token a label; otherwise BERT, with a class for each row.
    pub gpt2: bool,
    /// Dtype of the parameters.
    pub dtype: DType,
    /// State that ranks hold shards of.
    pub level: ZeroLevel,
    /// State in the host's memory; everything takes ZeRO-3.
    pub offload: Offload,
    /// Steps.
    pub steps: u32,
    /// How the ranks are divided.
    pub layout: Layout,
}

/// How the ranks of a run are divided; all that is left are data-parallel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Layout {
    /// Tensor-parallel ranks.
    pub tensor: usize,
    /// Whether the tensor-parallel ranks shard the tokens too.
    pub sequence: bool,
    /// Pipeline stages, and their schedule.
    pub stages: Option<(usize, ScheduleKind)>,
}

impl Layout {
    /// Data-parallel ranks alone.
    pub const DATA: Layout = Layout { tensor: 1, sequence: false, stages: None };
}

/// The groups of a rank.
struct Groups {
    mesh: Mesh,
    data: Arc<dyn Communicator>,
    tensor: Arc<dyn Communicator>,
    stages: StageGroup,
}

/// Results of a rank: the loss of every step, and a hash of weights and optimizer state at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Losses of the rank's rows.
    pub losses: Vec<f32>,
    /// As text, for comparison.
    pub state: String,
}

impl Groups {
    fn of(job: Job, ranks: &Arc<dyn Communicator>) -> Result<Self> {
        let (stages, kind) = job.layout.stages.unwrap_or((1, ScheduleKind::GPipe));
        let mesh = Mesh::new(ranks.rank(), ranks.size(), stages, job.layout.tensor)?;
        let group = |kind| -> Result<Arc<dyn Communicator>> {
            let (colour, key) = mesh.colour_and_key(kind);
            Ok(if mesh.group_size(kind) == 1 { Arc::new(Solo) } else { ranks.split(colour, key)? })
        };
        let stages = match job.layout.stages {
            None => StageGroup::default(),
            Some(_) => {
                let schedule = Schedule::new(kind, stages, kind.default_chunks(), MICRO_BATCHES)?;
                let partition = Partition::even(job.layers(), schedule.places())?;
                StageGroup::new(group(RankGroup::Pipe)?, partition, &schedule)?
            }
        };
        Ok(Groups { mesh, data: group(RankGroup::TensorZero)?, tensor: group(RankGroup::Tensor)?, stages })
    }
}

impl Job {
    /// On one rank, with everything on the device.
    pub const fn plain(gpt2: bool, dtype: DType, steps: u32) -> Self {
        Job { gpt2, dtype, level: ZeroLevel::Zero, offload: Offload::Nothing, steps, layout: Layout::DATA }
    }

    /// The model and its dtype, e.g. `tiny GPT-2 bf16`.
    pub fn name(self) -> String {
        format!("tiny {} {}", if self.gpt2 { "GPT-2" } else { "BERT" }, self.dtype)
    }

    /// Micro-batches of a data-parallel rank.
    fn micro_batches(self) -> usize {
        if self.layout.stages.is_some() { MICRO_BATCHES } else { 1 }
    }

    /// Blocks of the model: one for each chunk of two stages.
    fn layers(self) -> usize {
        2 * self.layout.stages.map_or(1, |(_, kind)| kind.default_chunks())
    }
}

/// Train on a device, sharing every batch among the data-parallel ranks.
pub fn train(job: Job, device: &Device, ranks: Arc<dyn Communicator>) -> Result<Seen> {
    let mut run = Run::new(job, device, ranks)?;
    let losses = run.steps(0..job.steps)?;
    run.seen(losses)
}

/// Train on several ranks on the CPU, each a thread: what every rank saw.
pub fn train_on_the_cpu(job: Job, ranks: usize) -> Result<Vec<Seen>> {
    if ranks == 1 {
        return Ok(vec![train(job, &Device::cpu(1)?, Arc::new(Solo))?]);
    }
    let group = HostGroup::threads(ranks, HostOptions::default())?;
    let of_rank = |rank: HostRank| train(job, &Device::cpu(1)?, Arc::new(rank));
    thread::scope(|scope| {
        let ranks: Vec<_> = group.into_iter().map(|rank| scope.spawn(move || of_rank(rank))).collect();
        let lost = || Error::data("a rank on the CPU", "its thread panicked", "report this");
        ranks.into_iter().map(|rank| rank.join().map_err(|_| lost())?).collect()
    })
}

/// The same as [`train`] with a checkpoint in `directory` after half of the steps, from which a model that is made anew
/// goes on.
pub fn train_resumed(job: Job, device: &Device, ranks: Arc<dyn Communicator>, directory: &Path) -> Result<Seen> {
    let half = job.steps / 2;
    let store = Store::create(directory)?;
    let mut first = Run::new(job, device, Arc::clone(&ranks))?;
    let mut losses = first.steps(0..half)?;
    let state = TrainingState::of(&first.runner.optim, first.runner.model.parameters())?;
    let mut saver = Saver::new(store.clone(), ControlGroup::new(Arc::clone(&ranks), device), 1)?;
    saver.begin(device, half.into(), Facts::default(), first.runner.model.parameters(), &first.runner.optim)?;
    if let Some(SaveEvent::Failed { error, .. }) = saver.finish()? {
        return Err(error.into());
    }
    drop((saver, first));
    let checkpoint = store.newest_verified()?.checkpoint.ok_or_else(|| {
        Error::data(directory.display().to_string(), "the checkpoint is not there", "look at the messages before")
    })?;
    let mut second = Run::new(job, device, ranks)?;
    restore(&checkpoint, &state, second.runner.model.parameters(), &mut second.runner.optim)?;
    losses.extend(second.steps(half..job.steps)?);
    second.seen(losses)
}

/// A model in training.
struct Run {
    job: Job,
    groups: Groups,
    runner: StepRunner,
}

impl Run {
    fn new(job: Job, device: &Device, ranks: Arc<dyn Communicator>) -> Result<Self> {
        let groups = Groups::of(job, &ranks)?;
        let model = model(job, device, &groups)?;
        let mut optim = OptimManager::new(device, Clip { order: NormOrder::Two, max_norm: 1.0 })?;
        let (params, options) = (ParamGroup::by_decay(model.parameters(), 0.01), AdamOptions::default());
        let adam: Box<dyn Optimizer> = match job.offload {
            Offload::Nothing => Box::new(Adam::new(params, options)?),
            Offload::Optimizer | Offload::Everything => Box::new(AdamOffload::new(params, options)?),
        };
        optim.add(adam, 2e-3);
        let runner = StepRunner::new(device, model, optim, job.micro_batches())?;
        Ok(Run { job, groups, runner })
    }

    /// The losses of steps.
    fn steps(&mut self, steps: Range<u32>) -> Result<Vec<f32>> {
        let Run { job, groups, runner } = self;
        let (data_rank, data_size) = (groups.mesh.data_rank(), groups.mesh.data_size());
        let parts = job.micro_batches() * data_size;
        let mut step = |step: u32| {
            let losses = runner.step(&mut |number| {
                let part = number * data_size + data_rank;
                let (rows, randomness) = (ROWS / parts, Randomness { seed: 3, step, micro_batch: part as u32 });
                let batch = batch(*job, part * rows..(part + 1) * rows);
                Ok(MicroBatch { batch, randomness, weight: 1.0 / parts as f32 })
            })?;
            Ok(losses.iter().sum::<f32>() / losses.len() as f32)
        };
        steps.map(&mut step).collect()
    }

    fn seen(&self, losses: Vec<f32>) -> Result<Seen> {
        Ok(Seen { losses, state: format!("{:?}", self.runner.optim.fingerprint()?) })
    }
}

/// How far losses may be apart, relative to the first. In f32 both sides round sums of some hundred terms in another
/// order, about 1e-6 of a loss near one, and in some steps of Adam that grows a little; in bf16 a value that is
/// between two numbers may be rounded to the other one, 4e-3 of itself, but few are.
pub fn tolerance(dtype: DType) -> f32 {
    if dtype == DType::F32 { 1e-5 } else { 5e-3 }
}

/// The distances of two runs' losses, step by step, relative to the first loss: a drift grows slowly, a wrong kernel
/// shows in one step.
pub fn distances(got: &Seen, expected: &Seen) -> Vec<f32> {
    got.losses.iter().zip(&expected.losses).map(|(a, b)| (a - b).abs() / expected.losses[0]).collect()
}

/// The largest of the distances; not a number where one of them is none, infinite where the runs have not the same
/// number of steps.
pub fn distance(got: &Seen, expected: &Seen) -> f32 {
    if got.losses.len() != expected.losses.len() || expected.losses.is_empty() {
        return f32::INFINITY;
    }
    // Unlike `f32::max` this keeps what is not a number.
    let worse = |worst: f32, apart: f32| if worst.is_nan() || apart <= worst { worst } else { apart };
    distances(got, expected).into_iter().fold(0.0, worse)
}

/// Whether the ranks' losses together have fallen by a tenth.
pub fn learns(ranks: &[Seen]) -> bool {
    let of_all = |step: usize| ranks.iter().filter_map(|seen| seen.losses.get(step)).sum::<f32>();
    let steps = ranks.first().map_or(0, |seen| seen.losses.len());
    steps > 1 && of_all(steps - 1) < 0.9 * of_all(0)
}

fn model(job: Job, device: &Device, groups: &Groups) -> Result<Box<dyn TextModel>> {
    let ranks = Arc::clone(&groups.data);
    let sharding = Sharding { ranks, level: job.level, sum: GradientSum::Fast, prefetch: true };
    let tensor = Arc::clone(&groups.tensor);
    let tensor = TensorGroup { ranks: tensor, sequence: job.layout.sequence, ..TensorGroup::default() };
    let stages = groups.stages.clone();
    let (mesh, dtype, offload_parameters) = (groups.mesh, job.dtype, job.offload == Offload::Everything);
    let builder =
        BuilderOptions { mesh, dtype, sharding, tensor, stages, offload_parameters, ..BuilderOptions::default() };
    let inputs = if offload_parameters { InputStore::Host } else { InputStore::Device };
    let blocks = BlockOptions { inputs, ..BlockOptions::from(Recompute::Checkpoint) };
    // Heads of 32, which tensor cores work on in 16-bit types.
    let (num_layers, dim_model, num_heads, dim_ff) = (job.layers(), 64, 2, 96);
    let family = if job.gpt2 { Family::Gpt2 } else { Family::Bert };
    let (num_heads_kv, vocab_size, dropout_p) = (num_heads, VOCABULARY, 0.1);
    Shape { family, num_layers, dim_model, num_heads, num_heads_kv, dim_ff, vocab_size, dropout_p }
        .build(device, blocks, builder)
}

/// Rows of a batch, all but the first padded. Every step has the same tokens: fresh random tokens are nothing
/// that a language model could learn.
fn batch(job: Job, rows: Range<usize>) -> Batch {
    let random =
        |index: usize, bound: usize| philox::block(Key::new(5, "words"), [index as u32, 0, 0, 0])[0] as usize % bound;
    let places = rows.clone().flat_map(|row| (0..LENGTH).map(move |column| (row, column)));
    let ids = places.clone().map(|(row, column)| random(row * LENGTH + column, VOCABULARY) as i64).collect();
    let mask = places.map(|(row, column)| u8::from(column < LENGTH - row)).collect();
    let words = Batch::next_tokens(LENGTH, ids, Some(mask));
    if job.gpt2 {
        return words;
    }
    let classes = rows.map(|row| (row % 2) as i64).collect();
    Batch { labels: Some(Labels::Classes(classes)), ..words }
}
