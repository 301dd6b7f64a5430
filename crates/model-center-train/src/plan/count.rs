//! The steps of [`crate::train`] where nothing is allocated: what a rank's pool will hold.
//!
//! [`count`] opens the model without its values, makes a trainer as a run does, and lets it evaluate, step twice,
//! evaluate and pass its parameters on, all on data in which every sample is as long as the longest. Where the samples
//! differ in length, steps on the data themselves are counted too: the gaps between tensors depend on the order of the
//! lengths.

use crate::Result;
use crate::train::{
    EvalSet, RunData, Setup, evaluate::Evaluation, objective::Opening, open_options, run_ranks::RunRanks,
    save::pass_model, stop::StopConditions, trainer::Trainer,
};
use bmtrain_core::{DType, Device, Segment};
use bmtrain_dist::RankGroups;
use bmtrain_dist::dry_run::{Requirements, SimulatedRank};
use bmtrain_dist::shard::GradientSum;
use model_center_base::batch::LabelSpace;
use model_center_base::stop_flag::StopFlag;
use model_center_data::Dataset;
use model_center_models::{OpenMode, OpenOptions, Registry, TextModel};
use model_center_recipe::Resolved;
use std::sync::Arc;

/// Steps that show the peak: the first makes the optimizer's state, the second has it from its beginning.
const STEPS: usize = 2;

/// Micro-batches of one rank that are counted where each is like the others. (In the elastic order the number of sums
/// depends on how many there are.)
const MAX_ALIKE: u64 = 64;

/// Micro-batches of the data themselves that are counted for the gaps between tensors. More of them find hardly any
/// larger gaps.
const MAX_VARIED: u64 = 48;

/// Result of counting.
#[derive(Debug, Clone)]
pub struct Counted {
    /// Memory and work of the fullest stage's first rank; the other ranks of a stage need the same.
    pub needs: Requirements,
    /// The most of the pool's memory that is ever touched, gaps between tensors included, bytes. It is all that a pool
    /// on the CPU takes, since untouched pages cost nothing.
    pub touched: u64,
    /// Bytes that the pool has taken from the driver in whole slabs. It is what a pool on a CUDA device takes.
    pub taken: u64,
    /// The largest batches that the data can bring.
    pub batches: Batches,
    /// The model's parameters.
    pub parameters: Sizes,
}

/// Sizes of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batches {
    /// Rows of a micro-batch.
    pub train: Rows,
    /// Micro-batches of one rank in one step.
    pub micro_batches: usize,
    /// Rows of an evaluation batch.
    pub eval: Option<Rows>,
}

/// Rows of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Rows that are read.
    pub count: usize,
    /// Tokens of the longest.
    pub length: usize,
    /// Tokens of the longest target, where each row has one.
    pub target: Option<usize>,
}

/// Tokens that are counted instead of the longest sequence of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    /// Length of each sequence that is read.
    pub length: usize,
    /// Length of each target, where samples have one.
    pub target: usize,
}

impl Rows {
    /// Rows of a batch of this number of samples, all as long as the longest of the data, or of these lengths.
    fn of(data: &RunData, samples: usize, lengths: Option<Lengths>) -> Self {
        let (longest, target) = longest(data);
        let rows = data.records().map_or(1, |records| records.inputs(0).count());
        Rows {
            count: samples.min(data.len() as usize) * rows,
            length: lengths.map_or(longest, |lengths| lengths.length),
            target: target.map(|longest| lengths.map_or(longest, |lengths| lengths.target)),
        }
    }

    /// Tokens of all rows and targets, padding included.
    pub fn tokens(&self) -> usize {
        self.count * (self.length + self.target.unwrap_or(0))
    }
}

/// Sizes of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Values of all.
    pub values: u64,
    /// Number of parameters that checkpoints have: all, or those that are trained beside a frozen model.
    pub tensors: u64,
    /// Bytes of these, as they are stored.
    pub bytes: u64,
    /// Values of the trained ones.
    pub trained: u64,
    /// Values of the trained ones of 16 bits, which have f32 masters.
    pub masters: u64,
    /// Values of the largest.
    pub largest: u64,
    /// The most bytes of the host that a parameter takes on its way to a file: its values widened to f32, 16-bit ones
    /// from a copy.
    pub to_file: u64,
}

/// Tokens of the longest sequence that is read and, where samples have targets, of the longest of those.
pub fn longest(data: &RunData) -> (usize, Option<usize>) {
    let records = match data {
        RunData::Records(records) => records,
        RunData::Pretraining { samples, .. } => {
            let length = samples.max_length();
            return (length, (*samples.labels() == LabelSpace::Target).then_some(length));
        }
    };
    let samples = 0..records.len();
    let read = samples.clone().flat_map(|sample| records.inputs(sample)).map(|row| row.input_ids.len());
    let targets = samples.filter_map(|sample| records.target(sample)).map(|row| row.input_ids.len());
    (read.max().unwrap_or(0), targets.max())
}

/// Which steps are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// Those on the longest sequences.
    Longest(Option<Lengths>),
    /// The first ones of the run.
    Varied,
}

/// Count a run of these settings on the longest sequences of the data or on `lengths`: the first rank of every stage.
/// The fullest is returned.
pub fn count(
    setup: &Setup,
    resolved: &Resolved,
    registry: Registry<'_>,
    (stand, lengths): (SimulatedRank, Option<Lengths>),
) -> Result<Counted> {
    let mut fullest = count_rank(setup, resolved, registry, (stand, lengths))?;
    let stages = resolved.parallel.pipeline;
    for stage in 1..stages {
        let first = SimulatedRank { rank: stage * (stand.ranks / stages), ..stand };
        let counted = count_rank(setup, resolved, registry, (first, lengths))?;
        if counted.touched > fullest.touched {
            fullest = counted;
        }
    }
    Ok(fullest)
}

fn count_rank(
    setup: &Setup,
    resolved: &Resolved,
    registry: Registry<'_>,
    (stand, lengths): (SimulatedRank, Option<Lengths>),
) -> Result<Counted> {
    let (groups, _) = RankGroups::counting(resolved.parallel.mesh(stand.rank, stand.ranks)?)?;
    let batches = batches(setup, resolved, (groups.mesh().data_size(), lengths));
    let run = |course: Course| {
        bmtrain_dist::dry_run::count(stand, |device, _| -> Result<(Sizes, u64)> {
            rehearse(setup, resolved, registry, (device, &groups, course))
        })
    };
    let (needs, (parameters, mut taken)) = run(Course::Longest(lengths))?;
    let mut touched = needs.memory.touched.peak as u64;
    if lengths.is_none() && is_varied(&setup.train) {
        let (varied, (_, also_taken)) = run(Course::Varied)?;
        (touched, taken) = (touched.max(varied.memory.touched.peak as u64), taken.max(also_taken));
    }
    Ok(Counted { needs, touched, taken, batches, parameters })
}

/// Whether the samples differ in length.
fn is_varied(data: &RunData) -> bool {
    let Some(data) = data.records() else { return false };
    let lengths = |sample: usize| {
        let read = data.inputs(sample).map(|row| row.input_ids.len()).max();
        (read, data.target(sample).map(|row| row.input_ids.len()))
    };
    (1..data.len()).any(|sample| lengths(sample) != lengths(0))
}

/// As a run goes, but for what needs no memory of the pool: see `run_rank` of `crate::train`.
fn rehearse(
    setup: &Setup,
    resolved: &Resolved,
    registry: Registry<'_>,
    (device, groups, course): (&Device, &RankGroups, Course),
) -> Result<(Sizes, u64)> {
    let size = groups.mesh().data_size();
    let lengths = if let Course::Longest(lengths) = course { lengths } else { None };
    let mut worst = longest_of_all(setup, resolved, (size, lengths));
    if course == Course::Varied {
        (worst.train, worst.steps_per_epoch) = (setup.train.clone(), setup.steps_per_epoch);
    }
    let options = open_options(resolved, worst.train.labels(), device, groups)?;
    let options = setup.start.with_config(OpenOptions { mode: OpenMode::WithoutValues, ..options });
    let opened = registry.open(&setup.start.directory, &options)?;
    let ranks = RunRanks::new(groups, device);
    // Without the file by which a run is stopped: what is asked of the run is not for us to take away.
    let stop = StopConditions::new(&resolved.train, worst.steps_per_epoch, StopFlag::default());
    let opening = Opening { registry, device, groups, own: None, mode: OpenMode::WithoutValues };
    let mut trainer = Trainer::new(&worst, resolved, stop, opened, opening, ranks)?;
    let mut evaluation = Evaluation::new(&worst, resolved)?;
    // The schedule of a pipeline runs all of them.
    if resolved.train.gradient_sum == GradientSum::Fast && resolved.parallel.pipeline == 1 {
        trainer.limit_micro_batches(MAX_ALIKE * size as u64);
    }
    evaluate(&mut evaluation, &trainer)?;
    let steps = match course {
        Course::Longest(_) => STEPS,
        Course::Varied => {
            (MAX_VARIED * size as u64 / trainer.schedule().micro_batches.max(1)).max(STEPS as u64) as usize
        }
    };
    for _ in 0..steps {
        trainer.step(false)?;
    }
    evaluate(&mut evaluation, &trainer)?;
    // Saving reads whole parameters, one storage at a time. (The fingerprint at the end of a run gathers moments of a
    // storage, which take no more than the gradients of its backward pass did, and copies stretches of a few megabytes
    // to the host.)
    pass_model(resolved, &trainer)?;
    Ok((sizes(&*trainer.model), device.memory().system_bytes as u64))
}

fn evaluate(evaluation: &mut Option<Evaluation>, trainer: &Trainer) -> Result<()> {
    let Some(evaluation) = evaluation else { return Ok(()) };
    // All logits are zeros here, so the metrics mean nothing.
    evaluation.run(trainer.evaluated(&|| false)).map(drop)
}

/// The setup on data whose every sample is the longest, or of these lengths: one step and one evaluation batch a rank.
fn longest_of_all(setup: &Setup, resolved: &Resolved, (data_ranks, lengths): (usize, Option<Lengths>)) -> Setup {
    let longest_records = |data: &Dataset, samples: usize| {
        let longest = data.of_longest(samples);
        Arc::new(lengths.map_or_else(|| longest.clone(), |all| longest.with_lengths(all.length, all.target)))
    };
    let longest = |data: &RunData, most: usize| match data {
        RunData::Records(records) => RunData::Records(longest_records(records, most.min(records.len()))),
        // All of them are of one length.
        RunData::Pretraining { samples, count } => {
            RunData::Pretraining { samples: Arc::clone(samples), count: (*count).min(most as u64) }
        }
    };
    let round = resolved.eval.batch_size.saturating_mul(data_ranks);
    let eval = |set: &EvalSet| EvalSet { name: set.name.clone(), data: longest(&set.data, round) };
    let batch = resolved.train.batch_size;
    let (train, steps_per_epoch) = match setup.train.records() {
        Some(_) => (longest(&setup.train, batch), 1),
        None => (longest(&setup.train, STEPS * batch), STEPS as u64),
    };
    Setup {
        train,
        eval: setup.eval.iter().map(eval).collect(),
        test: setup.test.iter().map(eval).collect(),
        steps_per_epoch,
        schedule: setup.schedule,
        start: setup.start.clone(),
        family: setup.family,
        parameters: setup.parameters,
        adapter: setup.adapter.clone(),
        blocks: setup.blocks,
        initialized: Vec::new(),
        unused: Vec::new(),
        left: Vec::new(),
        notes: Vec::new(),
        answers: setup.answers.clone(),
        texts: None,
        class_weights: setup.class_weights.clone(),
        pooling: setup.pooling.clone(),
        teacher: setup.teacher.clone(),
    }
}

fn batches(setup: &Setup, resolved: &Resolved, (data_ranks, lengths): (usize, Option<Lengths>)) -> Batches {
    let micro_batch = resolved.micro_batch_on(data_ranks);
    Batches {
        train: Rows::of(&setup.train, micro_batch, lengths),
        micro_batches: resolved.train.batch_size / micro_batch.max(1) / data_ranks,
        // The sets of an evaluation have batches of one size.
        eval: setup.eval.first().map(|set| Rows::of(&set.data, resolved.eval.batch_size, lengths)),
    }
}

fn sizes(model: &dyn TextModel) -> Sizes {
    let mut sizes = Sizes { tensors: 0, values: 0, bytes: 0, trained: 0, masters: 0, largest: 0, to_file: 0 };
    for param in model.parameters().declared() {
        let (values, dtype) = (param.spec().shape.elements() as u64, param.spec().dtype);
        let narrow = if dtype == DType::F32 { 0 } else { dtype.size() as u64 };
        sizes.values += values;
        if !model.parameters().is_saved(param) {
            continue;
        }
        sizes.tensors += 1;
        sizes.bytes += values * dtype.size() as u64;
        sizes.trained += if param.is_trainable() { values } else { 0 };
        sizes.masters += if param.is_trainable() && narrow > 0 { values } else { 0 };
        sizes.largest = sizes.largest.max(values);
        sizes.to_file = sizes.to_file.max(values * (4 + narrow));
    }
    sizes
}

impl Counted {
    /// Bytes of a segment that the pool holds when it is fullest. What is kept in the host's memory is none of the
    /// pool's and has its own peak.
    pub fn at_peak(&self, segment: Segment) -> u64 {
        if segment == Segment::Offload {
            let found = self.needs.memory.segments.iter().find(|(known, _)| *known == segment);
            return found.map_or(0, |(_, usage)| usage.peak as u64);
        }
        let found = self.needs.memory.at_peak.iter().find(|(known, _)| *known == segment);
        found.map_or(0, |(_, bytes)| *bytes as u64)
    }
}
