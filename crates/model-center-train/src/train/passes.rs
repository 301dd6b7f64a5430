//! [`StepPasses`]: the micro-batches of a training step as its [objective](super::objective::Objective) runs them.

use super::batches::Batches;
use super::objective::{ObjectiveLoss, Part, Pass};
use super::run_ranks::RunRanks;
use super::step_runner;
use super::trainer::{LocalMetrics, Trainer};
use crate::{Error, Result};
use bmtrain_core::autograd::{Observer, Randomness};
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::OptimManager;
use bmtrain_dist::inspect::{TensorInspector, format_summary, inspect_model, rows_of_stages};
use bmtrain_dist::pipeline::Pipeline;
use model_center_base::batch::{Batch, Position};
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
            let pass = Pass { model, batch: &batch, part: Part::Train, micro_batch, most_samples };
            let mut numbers = Vec::new();
            let forward = |cx: &mut Ctx| {
                let _forward = tracing::debug_span!("forward").entered();
                let of_pass = loss(&pass, cx)?;
                numbers = of_pass.numbers;
                Ok(of_pass.loss)
            };
            let share = (self.weight(micro_batch), self.is_last(micro_batch));
            let done = step_runner::pass(self.optim, share, cx, forward)?;
            self.local.phases.forward += done.forward;
            self.local.phases.backward += done.backward;
            self.local.losses.push(done.loss);
            self.local.numbers.push(numbers);
        }
        Ok(())
    }

    /// Micro-batches of the step, of all ranks.
    pub(super) fn count(&self) -> u64 {
        self.weights.len() as u64
    }

    /// Data-parallel rank r of W takes micro-batches r, r + W, r + 2W, …; the ranks of a tensor group and the stages of
    /// a pipeline take the same.
    pub(super) fn own_micro_batches(&self) -> impl Iterator<Item = u64> + use<> {
        (self.ranks.data_rank() as u64..self.count()).step_by(self.ranks.data_size())
    }

    /// The data position of a micro-batch.
    pub(super) fn position(&self, micro_batch: u64) -> Position {
        Position { index: self.first.index + micro_batch, ..self.first }
    }

    /// Loads and counts a micro-batch.
    pub(super) fn batch(&mut self, micro_batch: u64) -> Result<Batch> {
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
    pub(super) fn weight(&self, micro_batch: u64) -> f32 {
        self.weights.get(micro_batch as usize).copied().unwrap_or(0.0)
    }

    /// The address of a micro-batch's random numbers.
    pub(super) fn randomness(&self, micro_batch: u64) -> Randomness {
        Randomness { micro_batch: micro_batch as u32, ..self.randomness }
    }

    /// The context of a micro-batch's passes, which the inspector looks at, if there is one.
    pub(super) fn context(&self, micro_batch: u64) -> Ctx {
        let mut cx = Ctx::training(self.device, self.randomness(micro_batch));
        if let Some(inspector) = self.inspectors.first() {
            cx.set_observer(Rc::clone(inspector) as Rc<dyn Observer>);
        }
        cx
    }

    /// Whether a micro-batch is this rank's last in the step.
    pub(super) fn is_last(&self, micro_batch: u64) -> bool {
        micro_batch + self.ranks.data_size() as u64 >= self.count()
    }
}
