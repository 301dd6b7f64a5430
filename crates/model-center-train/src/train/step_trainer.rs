//! Training by a program's own loop: batches go in, the outcome of a step comes out.
//!
//! Defines [`StepTraining`], the settings of it for a model, and [`StepTrainer`]. The step is the one of
//! [`finetune`](super::finetune()): the same optimizer, schedule, clipping, loss scale and dropout, by the same keys.

use super::batches::Batches;
use super::divergence::DivergenceGuard;
use super::given::GivenBatches;
use super::objective::{Objective, Supervised};
use super::run_ranks::RunRanks;
use super::setup;
use super::trainer::{self, ProcessShare, StepSchedule, Trainer, TrainingClock, TrainingProgress};
use crate::train::stop::StopConditions;
use crate::{Error, Result};
use bmtrain_core::comm::Solo;
use bmtrain_core::{DType, Device};
use bmtrain_dist::optim::OptimManager;
use bmtrain_dist::{Param, RankGroups};
use model_center_base::batch::Batch;
use model_center_base::stop_flag::StopFlag;
use model_center_models::TextModel;
use model_center_recipe::TrainSettings;
use std::sync::Arc;

/// What training a model by steps takes: an optimizer over its parameters, and the objective.
pub struct StepTraining {
    device: Device,
    ranks: RunRanks,
    optim: OptimManager,
    objective: Box<dyn Objective>,
    label_smoothing: f32,
    seed: u64,
    stop: StopConditions,
    divergence: Option<DivergenceGuard>,
    /// A parameter of the model, which tells it from others.
    first: Option<Param>,
}

/// A model that a program trains step by step.
///
/// ```no_run
/// use bmtrain_core::Device;
/// use model_center_base::{Result, batch::Batch};
/// use model_center_models::{OpenOptions, Registry};
/// use model_center_recipe::TrainSettings;
/// use model_center_train::StepTraining;
///
/// # fn main() -> Result<()> {
/// let device = Device::cpu(2)?;
/// let opened = Registry::default().open("gpt2".as_ref(), &OpenOptions::new(&device))?;
/// let settings = TrainSettings { steps: Some(100), lr: 1e-4, ..TrainSettings::default() };
/// let mut trainer = StepTraining::new(&*opened.model, &device, &settings)?.of(opened.model)?;
/// let batch = Batch::next_tokens(4, vec![3, 1, 4, 1, 5, 9, 2, 6], None);
/// println!("{}", trainer.step(vec![batch])?.loss);
/// # Ok(())
/// # }
/// ```
pub struct StepTrainer {
    trainer: Trainer,
}

impl std::fmt::Debug for StepTrainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepTrainer").field("steps", &self.trainer.steps()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for StepTraining {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepTraining").finish_non_exhaustive()
    }
}

/// What a step did.
#[derive(Debug, Clone, PartialEq)]
pub struct StepOutcome {
    /// Its number, from 1.
    pub step: u64,
    /// The mean loss of its batches, before the update.
    pub loss: f32,
    /// Norm of the gradients before clipping.
    pub grad_norm: f32,
    /// The learning rate.
    pub lr: f64,
    /// What the loss was multiplied by for the backward pass.
    pub loss_scale: f32,
    /// Whether gradients were not finite, so that nothing was updated.
    pub skipped: bool,
    /// Samples of its batches.
    pub samples: u64,
    /// Tokens of its batches, without padding.
    pub tokens: u64,
    /// Metrics of the objective, with their names.
    pub metrics: Vec<(&'static str, f64)>,
    /// How long it took.
    pub seconds: f64,
}

impl StepTraining {
    /// Settings for a model on one rank. `steps` of them is what the learning-rate schedule is made for; further steps
    /// keep its last rate.
    ///
    /// # Errors
    /// [`Error::Argument`] for settings that are not of a step; numbers of the schedule, the optimizer, clipping, loss
    /// scale and label smoothing out of range; patterns of parameter groups that match no parameter; a model without a
    /// parameter to train.
    pub fn new(model: &dyn TextModel, device: &Device, train: &TrainSettings) -> Result<Self> {
        train.check_of_step()?;
        let groups = RankGroups::split(Arc::new(Solo), 1, 1)?;
        let schedule = setup::schedule(train, 1, "train.warmup").map_err(of_argument)?;
        Ok(StepTraining {
            device: device.clone(),
            ranks: RunRanks::new(&groups, device),
            optim: trainer::optimizer(train, dtype_of(model), schedule, device, model).map_err(of_argument)?,
            objective: Box::new(Supervised { label_smoothing: train.label_smoothing, ..Supervised::default() }),
            label_smoothing: train.label_smoothing,
            seed: train.seed,
            stop: StopConditions::new(train, 1, StopFlag::default()),
            divergence: train.divergence.map(DivergenceGuard::new),
            first: model.parameters().declared().first().cloned(),
        })
    }

    /// The same from texts such as `train.lr=1e-4`, keys of `[train]` with the defaults of a recipe.
    ///
    /// # Errors
    /// As [`StepTraining::new`], and for a key that is unknown or out of range.
    pub fn of_texts(model: &dyn TextModel, device: &Device, texts: &[String]) -> Result<Self> {
        StepTraining::new(model, device, &TrainSettings::of_step(texts, dtype_of(model))?)
    }

    /// The same for another objective than the loss of the labels.
    ///
    /// # Errors
    /// Label smoothing, which is of the loss of the labels.
    pub fn with_objective(self, objective: Box<dyn Objective>) -> Result<Self> {
        if self.label_smoothing != 0.0 {
            let reason = "it is of the loss of the labels, and another objective is given";
            return Err(Error::argument("train.label_smoothing", reason, "leave it out"));
        }
        Ok(StepTraining { objective, ..self })
    }

    /// The trainer of the model that these settings were made for.
    ///
    /// # Errors
    /// Another model, whose parameters the optimizer does not have.
    pub fn of(self, model: Box<dyn TextModel>) -> Result<StepTrainer> {
        let StepTraining { device, ranks, optim, objective, seed, stop, divergence, first, .. } = self;
        let is_same = match (model.parameters().declared().first(), &first) {
            (Some(given), Some(first)) => given.is_same(first),
            _ => false,
        };
        if !is_same {
            let reason = "the optimizer has the parameters of another model";
            return Err(Error::argument("StepTraining::of", reason, "give the model that StepTraining::new was given"));
        }
        Ok(StepTrainer {
            trainer: Trainer {
                device,
                ranks,
                model,
                adapter: None,
                optim,
                pipeline: None,
                batches: Batches::Given(GivenBatches::none()),
                objective,
                seed,
                schedule: StepSchedule::given(0),
                progress: TrainingProgress::default(),
                clock: TrainingClock::default(),
                stop,
                share: ProcessShare::default(),
                guard: divergence,
                inspect_every: None,
            },
        })
    }
}

impl StepTrainer {
    /// One step: a forward and a backward pass for each batch, then one update. The loss is the mean over the samples
    /// of all batches, or over their predicted tokens.
    ///
    /// # Errors
    /// As [`TextModel::loss`]; no batch, batches without labels, or with labels of several kinds; too many steps in a
    /// row whose gradients are not finite. Training goes on after an error as if the batches had not been given, but
    /// that steps with such gradients count.
    pub fn step(&mut self, batches: Vec<Batch>) -> Result<StepOutcome> {
        let batches = GivenBatches::new(batches)?;
        self.trainer.schedule = StepSchedule::given(batches.count());
        self.trainer.batches = Batches::Given(batches);
        let done = match self.trainer.step(false) {
            Ok(done) => done,
            Err(error) => {
                // Micro-batches before the one that failed have left gradients.
                self.trainer.optim.zero_grad()?;
                return Err(error);
            }
        };
        Ok(StepOutcome {
            step: self.trainer.steps(),
            loss: done.metrics.loss,
            grad_norm: done.info.grad_norm,
            lr: done.info.lr,
            loss_scale: done.info.scale,
            skipped: done.info.skipped,
            samples: done.metrics.samples,
            tokens: done.metrics.tokens,
            metrics: done.metrics.values.iter().map(|(name, value)| (*name, f64::from(*value))).collect(),
            seconds: done.seconds,
        })
    }

    /// The model, between steps.
    pub fn model(&self) -> &dyn TextModel {
        &*self.trainer.model
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.trainer.steps()
    }

    /// The model; the optimizer's state is dropped.
    pub fn into_model(self) -> Box<dyn TextModel> {
        self.trainer.model
    }
}

/// The dtype of a model's parameters; some of them may be f32 nevertheless.
fn dtype_of(model: &dyn TextModel) -> DType {
    let mut dtypes = model.parameters().declared().iter().map(|param| param.spec().dtype);
    dtypes.find(|dtype| *dtype != DType::F32).unwrap_or(DType::F32)
}

/// A mistake in settings, where there is no recipe but arguments.
fn of_argument(error: Error) -> Error {
    match error {
        Error::Recipe { place, reason, fix } => Error::Argument { place, reason, fix },
        other => other,
    }
}
