//! Batches of a run's samples at a position: which samples they have is a pure function of the position.
//!
//! Defines [`Batches`], which the trainer and evaluations ask.

use super::given::GivenBatches;
use super::prefetch::{Prefetcher, StepPart};
use super::run_data::RunData;
use crate::{Error, Result};
use model_center_base::batch::{Batch, LabelSpace, Position};
use model_center_data::pretraining::PretrainingSamples;
use model_center_data::{Dataset, Loader, LoaderOptions};
use std::sync::Arc;

/// Forms batches.
#[derive(Debug)]
pub(crate) enum Batches {
    /// Batches of records.
    Records(Loader),
    /// Batches of token files.
    Pretraining(PretrainingBatches),
    /// Batches of a program, for one step.
    Given(GivenBatches),
}

/// Batches of a pretraining objective: batch i has the samples from i times its size on.
#[derive(Debug)]
pub(crate) struct PretrainingBatches {
    pub(super) samples: Arc<dyn PretrainingSamples>,
    count: u64,
    pub(super) size: usize,
    prefetcher: Option<Prefetcher>,
}

impl Batches {
    /// Batches of training. Records are ordered by `options`; the batches of a step are loaded on threads of their own
    /// where `threads` is above 0; `part` has the micro-batches of this rank.
    pub(super) fn training(data: &RunData, options: LoaderOptions, part: StepPart, threads: usize) -> Result<Self> {
        match data {
            RunData::Records(records) => Ok(Batches::Records(Loader::new(Arc::clone(records), options)?)),
            RunData::Pretraining { samples, count } => {
                let batches = PretrainingBatches::new(samples, *count, options.batch_size);
                let prefetcher = (threads > 0).then(|| Prefetcher::new(Arc::clone(samples), options.batch_size, part));
                let prefetcher = prefetcher.map(|prefetcher| prefetcher.with_threads(threads));
                Ok(Batches::Pretraining(PretrainingBatches { prefetcher, ..batches }))
            }
        }
    }

    /// Batches of an evaluation, which has every sample once.
    pub(super) fn evaluation(data: &RunData, batch_size: usize) -> Result<Self> {
        match data {
            RunData::Records(records) => {
                Ok(Batches::Records(Loader::new(Arc::clone(records), LoaderOptions::evaluation(batch_size))?))
            }
            RunData::Pretraining { samples, count } => {
                Ok(Batches::Pretraining(PretrainingBatches::new(samples, *count, batch_size)))
            }
        }
    }

    /// The same, with samples that count in a mean as their class weighs.
    pub(super) fn weighing(self, class_weights: Option<Vec<f32>>) -> Self {
        match self {
            Batches::Records(loader) => Batches::Records(loader.weighing(class_weights)),
            other => other,
        }
    }

    /// The records; `None` of token files.
    pub(super) fn records(&self) -> Option<&Arc<Dataset>> {
        if let Batches::Records(loader) = self { Some(loader.dataset()) } else { None }
    }

    /// Label space.
    pub(super) fn labels(&self) -> &LabelSpace {
        match self {
            Batches::Records(loader) => loader.dataset().labels(),
            Batches::Pretraining(batches) => batches.samples.labels(),
            Batches::Given(batches) => batches.labels(),
        }
    }

    /// Samples of a batch; the last of an epoch may have fewer.
    pub(super) fn batch_size(&self) -> usize {
        match self {
            Batches::Records(loader) => loader.batch_size(),
            Batches::Pretraining(batches) => batches.size,
            Batches::Given(batches) => batches.size(),
        }
    }

    /// Number of batches of an epoch.
    pub(super) fn per_epoch(&self) -> u64 {
        match self {
            Batches::Records(loader) => loader.batches_per_epoch(),
            Batches::Pretraining(batches) => batches.count.div_ceil(batches.size.max(1) as u64),
            Batches::Given(batches) => batches.count(),
        }
    }

    /// The batch at a position.
    ///
    /// # Errors
    /// An index beyond the epoch; what reading token files reports.
    pub(super) fn batch(&mut self, position: Position) -> Result<Batch> {
        match self {
            Batches::Records(loader) => loader.batch(position),
            Batches::Pretraining(batches) => batches.batch(position),
            Batches::Given(batches) => batches.batch(position),
        }
    }

    /// The number of samples of the batch at a position, the same on every rank.
    ///
    /// # Errors
    /// As [`Batches::batch`].
    pub(super) fn samples(&mut self, position: Position) -> Result<usize> {
        match self {
            Batches::Records(loader) => Ok(loader.samples(position)?.len()),
            Batches::Pretraining(batches) => Ok(batches.numbers(position)?.len()),
            Batches::Given(batches) => Ok(batches.batch(position)?.samples.len()),
        }
    }

    /// Weight of a batch in the mean of an evaluation.
    pub(super) fn weight_of(&self, batch: &Batch) -> u64 {
        match self {
            Batches::Records(loader) => loader.dataset().weight_of(&batch.samples),
            Batches::Pretraining(batches) => batches.samples.weight(batch),
            Batches::Given(_) => batch.weight(),
        }
    }

    /// The share of each of `count` batches from `first` on in the mean of a step, the same on every rank.
    ///
    /// # Errors
    /// As [`Batches::batch`].
    pub(super) fn shares(&mut self, first: Position, count: u64) -> Result<Vec<f32>> {
        match self {
            Batches::Records(loader) => loader.shares(first, count),
            Batches::Pretraining(batches) => batches.shares(first, count),
            Batches::Given(batches) => Ok(batches.shares()),
        }
    }

    /// The share of each of these batches in their prompt tokens; 0 without prompts.
    ///
    /// # Errors
    /// As [`Batches::batch`].
    pub(super) fn prompt_shares(&mut self, first: Position, count: u64) -> Result<Vec<f32>> {
        match self {
            Batches::Records(loader) => loader.prompt_shares(first, count),
            Batches::Pretraining(_) | Batches::Given(_) => Ok(vec![0.0; count as usize]),
        }
    }
}

impl PretrainingBatches {
    fn new(samples: &Arc<dyn PretrainingSamples>, count: u64, size: usize) -> Self {
        PretrainingBatches { samples: Arc::clone(samples), count, size, prefetcher: None }
    }

    /// The numbers of the samples of a batch.
    fn numbers(&self, position: Position) -> Result<Vec<u64>> {
        let size = self.size as u64;
        let first = position.index.saturating_mul(size);
        if position.epoch > 0 || first >= self.count {
            return Err(Error::data(
                format!("batch {} of epoch {}", position.index, position.epoch),
                format!("there are {} samples for the whole run", self.count),
                "the batch size or the number of steps changed since the position was saved; start the run again",
            ));
        }
        Ok((first..first.saturating_add(size).min(self.count)).collect())
    }

    fn batch(&mut self, position: Position) -> Result<Batch> {
        if let Some(batch) = self.prefetcher.as_mut().and_then(|prefetcher| prefetcher.take(position.index)) {
            let samples = numbered(&self.numbers(position)?);
            return Ok(Batch { position, samples, ..batch });
        }
        let numbers = self.numbers(position)?;
        let samples = numbered(&numbers);
        Ok(Batch { position, samples, ..self.samples.batch(&numbers)? })
    }

    fn shares(&mut self, first: Position, count: u64) -> Result<Vec<f32>> {
        // The last one is there, and so are those before it.
        self.numbers(Position { index: first.index + count.saturating_sub(1), ..first })?;
        let weights = match &mut self.prefetcher {
            Some(prefetcher) => prefetcher.step(first.index, count, self.count)?,
            None => {
                let weight = |index| self.samples.weight_of(&self.numbers(Position { index, ..first })?);
                (first.index..first.index + count).map(weight).collect::<Result<_>>()?
            }
        };
        let all: u64 = weights.iter().sum();
        Ok(weights.into_iter().map(|weight| (weight as f64 / all.max(1) as f64) as f32).collect())
    }
}

/// Numbers of samples as batches have them, which tell the samples of a step apart: 32 bits of them are enough.
fn numbered(samples: &[u64]) -> Vec<u32> {
    samples.iter().map(|sample| *sample as u32).collect()
}
