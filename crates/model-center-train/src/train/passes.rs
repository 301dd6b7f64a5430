//! [`StepPasses`]: the micro-batches of a training step as its [objective](super::objective::Objective) runs them.
//!
//! [`StepPasses::each`] is the usual loop over them. An objective with another one loads the
//! [micro-batches of this rank](StepPasses::own_micro_batches) with [`StepPasses::batch`], in their order, and gives
//! the loss of each to [`StepPasses::backward`] once.

use super::batches::Batches;
use super::objective::{Objective, ObjectiveLoss, Pass};
use super::run_ranks::RunRanks;
use super::step_runner::{self, StepShare};
use super::trainer::{LocalMetrics, Trainer};
use crate::{Error, Result};
use bmtrain_core::autograd::{Observer, Randomness};
use bmtrain_core::{Ctx, Device, Tensor};
use bmtrain_dist::OptimManager;
use bmtrain_dist::inspect::{TensorInspector, format_summary, inspect_model, rows_of_stages};
use bmtrain_dist::pipeline::Pipeline;
use model_center_base::batch::{Batch, Position};
use model_center_data::Split;
use model_center_models::TextModel;
use std::rc::Rc;
use std::time::Instant;

/// The micro-batches of a training step on this rank, and what their passes need.
pub struct StepPasses<'a> {
    pub(super) model: &'a dyn TextModel,
    pub(super) device: &'a Device,
    pub(super) ranks: &'a RunRanks,
    /// Where the model is on several pipeline stages.
    pub(super) pipeline: Option<&'a Pipeline>,
    pub(super) batches: &'a mut Batches,
    pub(super) optim: &'a mut OptimManager,
    /// The position of the first micro-batch.
    pub(super) first: Position,
    /// The address of the random numbers of the first micro-batch.
    pub(super) randomness: Randomness,
    /// Weight of each micro-batch's mean loss in the loss of the step: its share of the step's targets.
    pub(super) weights: Vec<f32>,
    /// What looks at the hidden states of each model chunk of this rank; empty if nothing does.
    pub(super) inspectors: &'a [Rc<TensorInspector>],
    pub(super) local: LocalMetrics,
}

impl Trainer {
    /// Inspectors of the hidden states of each model chunk of this rank in the present step; empty if nothing is
    /// inspected.
    pub(super) fn inspectors(&self) -> Vec<Rc<TensorInspector>> {
        let is_due = self.inspect_every.is_some_and(|every| (self.progress.step + 1).is_multiple_of(every));
        let chunks = self.pipeline.as_ref().map_or(1, |pipeline| pipeline.schedule().chunks());
        (0..if is_due { chunks } else { 0 }).map(|_| Rc::new(TensorInspector::new())).collect()
    }

    /// Tables of hidden states and parameters with their gradients, before the optimizer uses these. On all ranks.
    pub(super) fn inspect(&self, inspectors: &[Rc<TensorInspector>]) -> Result<String> {
        let (step, scale) = (self.progress.step + 1, self.optim.loss_scale());
        let of_chunk =
            |inspector: &Rc<TensorInspector>| inspector.summary(self.ranks.data_ranks(), &self.device, scale);
        let of_chunks = inspectors.iter().map(of_chunk).collect::<bmtrain_dist::Result<Vec<_>>>()?;
        let hidden = match &self.pipeline {
            Some(pipeline) => rows_of_stages(pipeline, &of_chunks)?,
            None => of_chunks.into_iter().flatten().collect(),
        };
        let parameters = inspect_model(self.model.parameters(), "*", scale)?;
        let [hidden, parameters] = [&hidden, &parameters].map(|rows| format_summary(rows));
        Ok(format!("hidden states of step {step}\n{hidden}\nparameters before step {step}\n{parameters}"))
    }
}

impl StepPasses<'_> {
    /// Forward and backward passes of this rank's micro-batches, one after the other.
    ///
    /// # Errors
    /// Errors of `loss`; a model on several pipeline stages.
    pub fn each(&mut self, mut loss: impl FnMut(&Pass<'_>, &mut Ctx) -> Result<ObjectiveLoss>) -> Result<()> {
        if self.pipeline.is_some() {
            let reason = "this objective computes its loss on one pipeline stage";
            return Err(Error::argument("parallel.pipeline", reason, "set parallel.pipeline = 1"));
        }
        for micro_batch in self.own_micro_batches() {
            let _micro_batch = tracing::debug_span!("micro_batch", micro_batch).entered();
            let batch = self.batch(micro_batch)?;
            let cx = self.context(micro_batch);
            let (model, most_samples) = (self.model, self.batches.batch_size());
            let pass = Pass { model, batch: &batch, split: Split::Train, micro_batch, most_samples };
            let mut numbers = Vec::new();
            let forward = |cx: &mut Ctx| {
                let _forward = tracing::debug_span!("forward").entered();
                let of_pass = loss(&pass, cx)?;
                numbers = of_pass.numbers;
                Ok(of_pass.loss)
            };
            let share = self.share(micro_batch);
            let done = step_runner::pass(self.optim, share, cx, forward)?;
            self.local.phases.forward += done.forward;
            self.local.phases.backward += done.backward;
            self.local.losses.push(done.loss);
            self.local.numbers.push(numbers);
        }
        Ok(())
    }

    /// The model.
    pub fn model(&self) -> &dyn TextModel {
        self.model
    }

    /// The device of this rank.
    pub fn device(&self) -> &Device {
        self.device
    }

    /// Backward pass of a micro-batch's loss, which weighs what [`StepPasses::weight`] states. `cx` is the
    /// [context](StepPasses::context) that recorded the loss.
    ///
    /// # Errors
    /// A loss that was not recorded; a failing device; a lost rank.
    pub fn backward(&mut self, micro_batch: u64, of_pass: ObjectiveLoss, cx: &mut Ctx) -> Result<()> {
        let begun = Instant::now();
        let share = self.share(micro_batch);
        step_runner::backward(self.optim, &of_pass.loss, share, cx)?;
        self.local.phases.backward += begun.elapsed().as_secs_f64();
        self.local.losses.push(of_pass.loss);
        self.local.numbers.push(of_pass.numbers);
        Ok(())
    }

    /// Refuses what the objective left out: ranks gather as many numbers of each micro-batch.
    pub(super) fn check(&self, objective: &dyn Objective) -> Result<()> {
        let (own, losses) = (self.own_micro_batches().count(), self.local.losses.len());
        if losses != own {
            let reason = format!("Objective::run gave {losses} losses for {own} micro-batches of this rank");
            return Err(Error::argument("objective", reason, "run the backward pass of each once"));
        }
        let elements = |numbers: &Vec<Tensor>| numbers.iter().map(Tensor::elements).sum::<usize>();
        let lengths: Vec<usize> = self.local.numbers.iter().map(elements).collect();
        let (first, names) = (lengths.first().copied().unwrap_or(0), objective.metrics().len());
        let reason = if first < names {
            format!("Objective::metrics has {names} names, and ObjectiveLoss::numbers has {first} elements")
        } else if let Some((at, other)) = lengths.iter().enumerate().find(|(_, length)| **length != first) {
            format!("ObjectiveLoss::numbers has {first} elements of the first micro-batch, and {other} of number {at}")
        } else {
            return Ok(());
        };
        Err(Error::argument("objective", reason, "give as many numbers for each micro-batch, one for each name"))
    }

    /// Micro-batches of the step, of all ranks.
    pub fn count(&self) -> u64 {
        self.weights.len() as u64
    }

    /// Data-parallel rank r of W takes micro-batches r, r + W, r + 2W, …; the ranks of a tensor group and the stages of
    /// a pipeline take the same.
    pub fn own_micro_batches(&self) -> impl Iterator<Item = u64> + use<> {
        (self.ranks.data_rank() as u64..self.count()).step_by(self.ranks.data_size())
    }

    /// The data position of a micro-batch.
    pub(super) fn position(&self, micro_batch: u64) -> Position {
        Position { index: self.first.index + micro_batch, ..self.first }
    }

    /// Loads a micro-batch, and counts its samples and tokens.
    ///
    /// # Errors
    /// Errors of reading the data.
    pub fn batch(&mut self, micro_batch: u64) -> Result<Batch> {
        let waiting = Instant::now();
        let batch = self.batches.batch(self.position(micro_batch))?;
        self.local.count(&batch);
        self.local.phases.data += waiting.elapsed().as_secs_f64();
        Ok(batch)
    }

    /// The share of each micro-batch in the prompt tokens of the step.
    pub(super) fn prompt_shares(&mut self) -> Result<Vec<f32>> {
        self.batches.prompt_shares(self.first, self.count())
    }

    /// Weight of a micro-batch's mean loss in the loss of the step.
    pub fn weight(&self, micro_batch: u64) -> f32 {
        self.weights.get(micro_batch as usize).copied().unwrap_or(0.0)
    }

    /// The address of a micro-batch's random numbers.
    pub(super) fn randomness(&self, micro_batch: u64) -> Randomness {
        Randomness { micro_batch: micro_batch as u32, ..self.randomness }
    }

    /// The context of a micro-batch's passes, which the inspector looks at, if there is one.
    pub fn context(&self, micro_batch: u64) -> Ctx {
        let mut cx = Ctx::training(self.device, self.randomness(micro_batch));
        if let Some(inspector) = self.inspectors.first() {
            cx.set_observer(Rc::clone(inspector) as Rc<dyn Observer>);
        }
        cx
    }

    fn share(&self, micro_batch: u64) -> StepShare {
        StepShare { weight: self.weight(micro_batch), is_last: self.is_last(micro_batch) }
    }

    /// Whether a micro-batch is this rank's last in the step.
    pub fn is_last(&self, micro_batch: u64) -> bool {
        micro_batch + self.ranks.data_size() as u64 >= self.count()
    }
}
