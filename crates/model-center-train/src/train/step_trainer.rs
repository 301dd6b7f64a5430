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
use bmtrain_core::{DType, Device, DeviceChoice};
use bmtrain_dist::RankGroups;
use bmtrain_dist::optim::OptimManager;
use model_center_base::batch::Batch;
use model_center_base::stop_flag::StopFlag;
use model_center_models::TextModel;
use model_center_recipe::{Mistake, Recipe, Resolved, as_error, quote};
use std::sync::Arc;

/// Keys of `[train]` that belong to a run or to how a model is opened, with what to do instead.
const NOT_OF_A_STEP: &[(&[&str], &str)] = &[
    (&["epochs", "minutes"], "leave it out: the program's own loop ends training"),
    (
        &["batch_size", "micro_batch_size", "accumulation", "batch_ramp"],
        "leave it out: a step takes the batches that it is given",
    ),
    (
        &[
            "frozen",
            "only",
            "recompute",
            "recompute_inputs",
            "gradient_dtype",
            "offload_parameters",
            "gradient_sum",
            "products",
        ],
        "give it when the model is opened",
    ),
    (&["early_stop", "inspect_every", "prompt_loss", "ema", "average_from"], "leave it out, or train with a recipe"),
];

/// What training a model by steps takes: an optimizer over its parameters, and the objective.
pub struct StepTraining {
    device: Device,
    team: RunRanks,
    optim: OptimManager,
    objective: Box<dyn Objective>,
    seed: u64,
    stop: StopConditions,
    divergence: Option<DivergenceGuard>,
}

/// A model that a program trains step by step.
///
/// ```no_run
/// use bmtrain_core::Device;
/// use model_center_base::{Result, batch::Batch};
/// use model_center_models::{OpenOptions, Registry};
/// use model_center_train::StepTraining;
///
/// # fn main() -> Result<()> {
/// let device = Device::cpu(2)?;
/// let opened = Registry::default().open("gpt2".as_ref(), &OpenOptions::new(&device))?;
/// let settings = ["train.steps=100".to_owned(), "train.lr=1e-4".to_owned()];
/// let mut trainer = StepTraining::new(&*opened.model, &device, &settings)?.of(opened.model);
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
    /// Settings for a model on one rank: keys of `[train]` as `train.lr=1e-4`, with the defaults of a recipe.
    /// `train.steps` is what the learning-rate schedule is made for; further steps keep its last rate.
    ///
    /// # Errors
    /// [`Error::Argument`] for a key that is unknown, out of range or not of a step; patterns of `train.groups` that
    /// match no parameter; a model without a parameter to train.
    pub fn new(model: &dyn TextModel, device: &Device, settings: &[String]) -> Result<Self> {
        let dtype = model.parameters().declared().first().map_or(DType::F32, |param| param.spec().dtype);
        let resolved = resolved(settings, dtype).map_err(of_argument)?;
        let groups = RankGroups::split(Arc::new(Solo), 1, 1)?;
        Ok(StepTraining {
            device: device.clone(),
            team: RunRanks::new(&groups, device),
            optim: trainer::optimizer(&resolved, setup::schedule(&resolved, 1)?, device, model).map_err(of_argument)?,
            objective: Box::new(Supervised {
                label_smoothing: resolved.train.label_smoothing,
                ..Supervised::default()
            }),
            seed: resolved.train.seed,
            stop: StopConditions::new(&resolved.train, 1, StopFlag::default()),
            divergence: resolved.train.divergence.map(DivergenceGuard::new),
        })
    }

    /// The same for another objective than the loss of the labels.
    #[must_use]
    pub fn with_objective(self, objective: Box<dyn Objective>) -> Self {
        StepTraining { objective, ..self }
    }

    /// The trainer of the model that these settings were made for.
    pub fn of(self, model: Box<dyn TextModel>) -> StepTrainer {
        let StepTraining { device, team, optim, objective, seed, stop, divergence } = self;
        StepTrainer {
            trainer: Trainer {
                device,
                team,
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
        }
    }
}

impl StepTrainer {
    /// One step: a forward and a backward pass for each batch, then one update. The loss is the mean over the samples
    /// of all batches, or over their predicted tokens.
    ///
    /// # Errors
    /// As [`TextModel::loss`]; no batch, batches without labels, or with labels of several kinds; too many steps in a
    /// row whose gradients are not finite.
    pub fn step(&mut self, batches: Vec<Batch>) -> Result<StepOutcome> {
        let batches = GivenBatches::new(batches)?;
        self.trainer.schedule = StepSchedule::given(batches.count());
        self.trainer.batches = Batches::Given(batches);
        let done = self.trainer.step(false)?;
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

/// The recipe of these settings. Its model and data have no effect here.
fn resolved(settings: &[String], dtype: DType) -> Result<Resolved> {
    let keys = || settings.iter().map(|setting| setting.split('=').next().unwrap_or_default().trim());
    for key in keys() {
        let Some(name) = key.strip_prefix("train.") else {
            let fix = "give keys of the table [train], such as train.lr=1e-4";
            return Err(Error::argument(key, "it is not a setting of a step", fix));
        };
        let table = name.split('.').next().unwrap_or_default();
        if let Some((_, fix)) = NOT_OF_A_STEP.iter().find(|(names, _)| names.contains(&table)) {
            return Err(Error::argument(key, "it is not a setting of a step", *fix));
        }
    }
    if !keys().any(|key| key == "train.steps") {
        let reason = "it is missing, and the learning-rate schedule is made for it";
        return Err(Error::argument("train.steps", reason, "give the number of steps"));
    }
    recipe_of_settings(settings, dtype, DeviceChoice::Auto)
}

/// The recipe of settings that a program gives for a model of this dtype on this device. The other keys that a recipe
/// needs have values without effect, and its first mistake is the only one that is reported.
pub(super) fn recipe_of_settings(settings: &[String], dtype: DType, device: DeviceChoice) -> Result<Resolved> {
    let base = format!(
        "[model]\npath = \".\"\ndtype = {}\n[data]\ntask = \"classification\"\ntrain = \"records.jsonl\"\n[train]\n\
         steps = 1\n[output]\ndir = \"run\"\n[device]\nname = {}\n",
        quote(dtype.name()),
        quote(&device.to_string())
    );
    let first = |mistakes: Vec<Mistake>| as_error(mistakes.into_iter().take(1).collect());
    Recipe::read_text("", &base, settings).map_err(first)
}

/// A mistake in a recipe, where there is no recipe but arguments.
pub(super) fn of_argument(error: Error) -> Error {
    match error {
        Error::Recipe { place, reason, fix } => Error::Argument { place, reason, fix },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_center_data::OwnData;
    use model_center_recipe::recipe_schema;

    #[test]
    fn what_is_not_of_a_step_are_keys_of_a_recipe() {
        let schema = recipe_schema(OwnData::default());
        let known = schema.pointer("/properties/train/properties").unwrap();
        for name in NOT_OF_A_STEP.iter().flat_map(|(names, _)| *names) {
            assert!(known.get(name).is_some(), "unknown key train.{name}");
        }
    }
}
