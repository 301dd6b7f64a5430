//! The finetune program's own steps where nothing is allocated: what a rank's pool will hold.
//!
//! [`count`] opens the model without its values, makes a trainer as a run does, and lets it evaluate, step twice, evaluate and
//! pass its parameters on, all on data in which every sample is as long as the longest.

use crate::finetune::evaluate::Judge;
use crate::finetune::setup::{Job, open_options, sharding};
use crate::finetune::train::Trainer;
use bmtrain_core::comm::Communicator;
use bmtrain_core::{Device, Segment};
use bmtrain_dist::Team;
use bmtrain_dist::param::WholeReader;
use bmtrain_dist::plan::{Needs, Stand};
use bmtrain_dist::shard::GradientSum;
use model_center::Result;
use model_center::data::Dataset;
use model_center::model::{OpenOptions, Registry, TextModel};
use model_center::recipe::Resolved;
use model_center::run::{ProgressMode, StopConditions, StopFlag};
use std::sync::Arc;

/// Steps that show the peak: the first makes the optimizer's state, the second has it from its beginning.
const STEPS: usize = 2;

/// Micro-batches of one rank that are counted where each is like the others. (In the elastic order the number of sums depends
/// on how many there are.)
const MOST_ALIKE: u64 = 64;

/// What counting found.
#[derive(Debug, Clone)]
pub struct Counted {
    /// Memory and work of the first rank; the others' are the same.
    pub needs: Needs,
    /// The largest batches that the data can bring.
    pub batches: Batches,
    /// The model's parameters.
    pub parameters: Sizes,
}

/// Sizes of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batches {
    /// Of a micro-batch.
    pub train: Rows,
    /// Micro-batches of one rank in one step.
    pub micro_batches: usize,
    /// Of an evaluation batch.
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

impl Rows {
    /// Of so many samples, where those are the longest.
    fn of(data: &Dataset, samples: usize) -> Self {
        let all = 0..data.len();
        Rows {
            count: samples.min(data.len()) * data.inputs(0).count(),
            length: all
                .clone()
                .flat_map(|sample| data.inputs(sample))
                .map(|row| row.input_ids.len())
                .max()
                .unwrap_or(0),
            target: all.filter_map(|sample| data.target(sample)).map(|row| row.input_ids.len()).max(),
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
    /// Number of parameters.
    pub tensors: u64,
    /// Values of all.
    pub values: u64,
    /// Values of the trained ones.
    pub trained: u64,
    /// Values of the largest.
    pub largest: u64,
}

/// Count a run of these settings on so many ranks.
///
/// # Errors
/// Whatever opening the model or a step refuses.
pub fn count(job: &Job, resolved: &Resolved, registry: Registry<'_>, ranks: usize) -> Result<Counted> {
    let batches = batches(job, resolved, ranks);
    let (needs, parameters) = bmtrain_dist::plan::count(Stand::first_of(ranks), |device, communicator| {
        rehearse(job, resolved, registry, (device, communicator))
    })?;
    Ok(Counted { needs, batches, parameters })
}

/// As a run goes, but for what needs no memory of the pool: see `run_rank` of the finetune program.
fn rehearse(
    job: &Job,
    resolved: &Resolved,
    registry: Registry<'_>,
    (device, ranks): (&Device, Arc<dyn Communicator>),
) -> Result<Sizes> {
    let size = ranks.size();
    let worst = longest_of_all(job, resolved, size);
    let options = open_options(resolved, worst.train.labels(), device, sharding(resolved, Arc::clone(&ranks)));
    let options = OpenOptions { leave_values: true, ..options };
    let opened = registry.open(&job.folder, &options)?;
    let team = Team::new(ranks, device);
    // Without the file by which a run is stopped: what is asked of the run is not for us to take away.
    let stop = StopConditions::new(&resolved.train, worst.steps_per_epoch, StopFlag::default());
    let mut trainer = Trainer::new(&worst, resolved, stop, device, opened.model, ProgressMode::Quiet, team)?;
    if resolved.train.gradient_sum == GradientSum::Fast {
        trainer.micro_batches = trainer.micro_batches.min(MOST_ALIKE * size as u64);
    }
    judge(&mut trainer, device)?;
    for _ in 0..STEPS {
        trainer.step()?;
    }
    judge(&mut trainer, device)?;
    // Saving reads whole parameters, one storage at a time. (The fingerprint at the end of a run gathers moments of a storage,
    // which take no more than the gradients of its backward pass did.)
    let mut reader = WholeReader::default();
    trainer.model.parameters().iter().try_for_each(|param| reader.pass(param))?;
    drop(reader);
    Ok(sizes(&*trainer.model))
}

fn judge(trainer: &mut Trainer, device: &Device) -> Result<()> {
    let Some(loader) = &mut trainer.eval else { return Ok(()) };
    // All scores are zeros here, so what they amount to is nothing to look at.
    let judge = Judge {
        model: &*trainer.model,
        wanted: &trainer.metrics,
        written: trainer.written.as_ref(),
        device,
        team: &trainer.team,
        is_stopped: &|| false,
    };
    judge.evaluate(loader).map(drop)
}

/// The job on data whose every sample is the longest: one step, and one evaluation batch for each rank.
fn longest_of_all(job: &Job, resolved: &Resolved, ranks: usize) -> Job {
    let eval = |eval: &Arc<Dataset>| {
        let round = resolved.eval.batch_size.saturating_mul(ranks);
        Arc::new(eval.of_longest(round.min(eval.len())))
    };
    Job {
        train: Arc::new(job.train.of_longest(resolved.train.batch_size)),
        eval: job.eval.as_ref().map(eval),
        steps_per_epoch: 1,
        schedule: job.schedule,
        folder: job.folder.clone(),
        family: job.family,
        parameters: job.parameters,
        drawn: Vec::new(),
        unused: Vec::new(),
        left: Vec::new(),
        notes: Vec::new(),
        written: job.written.clone(),
        class_weights: job.class_weights.clone(),
    }
}

fn batches(job: &Job, resolved: &Resolved, ranks: usize) -> Batches {
    let micro_batch = resolved.micro_batch_on(ranks);
    Batches {
        train: Rows::of(&job.train, micro_batch),
        micro_batches: resolved.train.batch_size / micro_batch.max(1) / ranks,
        eval: job.eval.as_ref().map(|eval| Rows::of(eval, resolved.eval.batch_size)),
    }
}

fn sizes(model: &dyn TextModel) -> Sizes {
    let mut sizes = Sizes { tensors: 0, values: 0, trained: 0, largest: 0 };
    for param in model.parameters() {
        let values = param.spec().shape.elements() as u64;
        sizes.tensors += 1;
        sizes.values += values;
        sizes.trained += if param.is_trainable() { values } else { 0 };
        sizes.largest = sizes.largest.max(values);
    }
    sizes
}

impl Counted {
    /// What the pool holds of a segment when it is fullest, bytes. What is kept in the host's memory is none of the pool's
    /// and has its own peak.
    pub fn at_peak(&self, segment: Segment) -> u64 {
        if segment == Segment::Offload {
            let found = self.needs.memory.segments.iter().find(|(known, _)| *known == segment);
            return found.map_or(0, |(_, usage)| usage.peak as u64);
        }
        let found = self.needs.memory.at_peak.iter().find(|(known, _)| *known == segment);
        found.map_or(0, |(_, bytes)| *bytes as u64)
    }
}
