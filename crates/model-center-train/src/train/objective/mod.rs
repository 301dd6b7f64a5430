//! Objectives: what a training step computes gradients of, and what evaluations compute.
//!
//! Defines [`Objective`] with [`Pass`], a micro-batch that it is asked the loss of, and [`ObjectiveLoss`], its answer.
//! A run has the one that its recipe asks for, [`Supervised`], `Preference`, `Contrastive` or `Distillation`, or its
//! program's, [`OwnObjective`]. The micro-batches of a step are [`StepPasses`](super::passes::StepPasses).

mod contrastive;
mod distillation;
mod own;
mod preference;
mod supervised;

pub use own::OwnObjective;
pub(super) use preference::PairLogProbs;
pub use preference::Reference;
pub use supervised::Supervised;

use super::evaluate::{EvalContext, EvalResult, Evaluation};
use super::passes::StepPasses;
use super::setup::Setup;
use crate::Result;
use bmtrain_core::{Ctx, Device, Tensor, Var};
use bmtrain_dist::RankGroups;
use model_center_base::batch::Batch;
use model_center_data::Split;
use model_center_models::adapter::AdapterPlan;
use model_center_models::{OpenMode, Pooling, Registry, TextModel};
use model_center_recipe::Resolved;
use model_center_recipe::run::Number;
use std::fmt::Debug;

/// What a model is trained for.
///
/// The loss of a step is the mean of the losses of its micro-batches, weighted by their predicted tokens, or by their
/// samples where labels are not tokens.
pub trait Objective: Debug {
    /// The loss of a micro-batch; recorded for the backward pass where `cx` records.
    ///
    /// # Errors
    /// A batch that the model does not take, or without what the loss needs.
    fn loss(&self, pass: &Pass<'_>, cx: &mut Ctx) -> Result<ObjectiveLoss>;

    /// Names of [`ObjectiveLoss::numbers`] in the records of steps, where [`Objective::step_metrics`] is the mean.
    fn metrics(&self) -> &[&'static str] {
        &[]
    }

    /// The metrics of a step, of the numbers of all its micro-batches in their order. By default the means by weight of
    /// the numbers that have a [name](Objective::metrics).
    fn step_metrics(&self, micro_batches: &[PassNumbers<'_>]) -> Vec<(&'static str, Number)> {
        let mean = |(at, name): (usize, &&'static str)| (*name, Number::Single(weighted_mean(micro_batches, at)));
        self.metrics().iter().enumerate().map(mean).collect()
    }

    /// Makes the passes of a step. By default each micro-batch has a forward pass, by [`Objective::loss`], and a
    /// backward pass.
    ///
    /// # Errors
    /// As [`Objective::loss`]; a model on several pipeline stages.
    fn run(&self, step: &mut StepPasses<'_>) -> Result<()> {
        step.each(|pass, cx| self.loss(pass, cx))
    }

    /// The loss of a batch of evaluation data, and then the numbers of its samples that metrics of the task are
    /// computed from; `None` where these are the model's own loss and logits, as by default.
    ///
    /// # Errors
    /// As [`Objective::loss`].
    fn evaluated(&self, _pass: &Pass<'_>, _device: &Device) -> Result<Option<Vec<f32>>> {
        Ok(None)
    }

    /// Evaluates the samples of all sets; `None` where a rank is asked to stop. By default of each batch
    /// [`Objective::evaluated`].
    ///
    /// # Errors
    /// As [`Objective::evaluated`].
    fn evaluate(&self, evaluation: &mut Evaluation, context: EvalContext<'_>) -> Result<Option<EvalResult>> {
        evaluation.by_batch(context)
    }

    /// Log-probabilities under the model that training begins with, where the loss takes these of all samples, which
    /// are pairs. They are computed before the first step and kept for a resume.
    fn reference(&mut self) -> Option<&mut Reference> {
        None
    }
}

/// A micro-batch.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Pass<'a> {
    /// The model.
    pub model: &'a dyn TextModel,
    /// The batch; [`Batch::samples`] are the numbers of its samples in the data, or in a step that a program gives.
    pub batch: &'a Batch,
    /// Which data these are.
    pub split: Split,
    /// Its number in the step, counted over all ranks; 0 in an evaluation.
    pub micro_batch: u64,
    /// The most samples that a micro-batch has.
    pub most_samples: usize,
}

impl<'a> Pass<'a> {
    /// A batch of an evaluation.
    pub(super) fn evaluation(model: &'a dyn TextModel, batch: &'a Batch) -> Self {
        Pass { model, batch, split: Split::Validation, micro_batch: 0, most_samples: batch.samples.len() }
    }
}

/// The loss of a micro-batch, with what is reported beside it.
#[derive(Debug, Clone)]
pub struct ObjectiveLoss {
    /// `[1]`.
    pub loss: Var,
    /// f32, as many elements for every micro-batch of a step.
    pub numbers: Vec<Tensor>,
}

impl From<Var> for ObjectiveLoss {
    fn from(loss: Var) -> Self {
        ObjectiveLoss { loss, numbers: Vec::new() }
    }
}

/// The numbers of a micro-batch of a step.
#[derive(Debug, Clone, Copy)]
pub struct PassNumbers<'a> {
    /// Share of its loss in the loss of the step; 0 without targets.
    pub weight: f32,
    /// The elements of [`ObjectiveLoss::numbers`].
    pub numbers: &'a [f32],
}

/// The mean by weight of the number at a place; not a number where no micro-batch has a target.
fn weighted_mean(micro_batches: &[PassNumbers<'_>], at: usize) -> f32 {
    let counted = micro_batches.iter().filter(|of| of.weight != 0.0);
    let terms = counted.map(|of| of.weight * of.numbers.get(at).copied().unwrap_or(f32::NAN));
    terms.reduce(|sum, term| sum + term).unwrap_or(f32::NAN)
}

/// Where the objective of a run is opened.
#[derive(Clone, Copy)]
pub(crate) struct Opening<'a> {
    pub(crate) registry: Registry<'a>,
    pub(crate) device: &'a Device,
    pub(crate) groups: &'a RankGroups,
    /// The program's objective, if it has one.
    pub(crate) own: Option<&'a OwnObjective>,
    /// How further models are opened.
    pub(crate) mode: OpenMode,
}

/// The objective of a run, whose model has this adapter.
///
/// # Errors
/// A teacher whose weights cannot be read; an adapter or parameters that the objective does not take.
pub(super) fn open(
    setup: &Setup,
    resolved: &Resolved,
    opening: Opening<'_>,
    adapter: Option<&AdapterPlan>,
) -> Result<Box<dyn Objective>> {
    let supervised = Supervised {
        label_smoothing: resolved.train.label_smoothing,
        class_weights: setup.class_weights.clone(),
        prompt_loss: resolved.train.prompt_loss,
    };
    if let Some(own) = opening.own {
        return own.open(setup, resolved);
    }
    if let (Some(teacher), Some(settings)) = (&setup.teacher, &resolved.distill) {
        let teacher = teacher.open(resolved, setup.train.labels(), opening)?;
        return Ok(Box::new(distillation::Distillation { teacher, loss: settings.loss, supervised }));
    }
    if let Some(loss) = resolved.preference {
        return Ok(Box::new(preference::Preference::new(loss, adapter)?));
    }
    if let Some(loss) = resolved.contrastive {
        let pooling = setup.pooling.clone().unwrap_or(Pooling::MEAN);
        let size = pooling.dense.last().map(|last| last.outputs);
        return Ok(Box::new(contrastive::Contrastive { loss, pooling: pooling.mode, size }));
    }
    Ok(Box::new(supervised))
}
