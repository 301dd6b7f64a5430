//! The training step.

use super::agree::StepMetrics;
use super::preference::{PairPart, numbers_of_step};
use super::step_runner::{Pass, no_loss, pass};
use super::trainer::{LocalMetrics, StepResult, Trainer};
use crate::Result;
use bmtrain_core::autograd::{Observer, Randomness};
use bmtrain_core::ops::Distilled;
use bmtrain_core::{Ctx, Var};
use bmtrain_dist::inspect::{TensorInspector, format_summary, inspect_model, rows_of_stages};
use model_center_base::batch::Batch;
use model_center_recipe::run::Phases;
use std::rc::Rc;
use std::time::Instant;

/// The weights of a step's micro-batches.
pub(super) struct LossWeights {
    /// Of each micro-batch's mean loss in the loss of the step: its share of the step's targets.
    micro_batches: Vec<f32>,
    /// Of the mean loss of each micro-batch's prompts in the step's mean; empty where prompts do not count.
    prompts: Vec<f32>,
}

impl LossWeights {
    /// Of a micro-batch's mean loss in the loss of the step.
    pub(super) fn micro_batch(&self, micro_batch: u64) -> f32 {
        self.micro_batches.get(micro_batch as usize).copied().unwrap_or(0.0)
    }
}

impl Trainer {
    /// One optimizer step: for each of this rank's micro-batches load, forward and backward; then clip and update.
    /// `checkpoint_due` is this rank's vote on saving a checkpoint after the step.
    pub(crate) fn step(&mut self, checkpoint_due: bool) -> Result<StepResult> {
        let _step = tracing::debug_span!("step", step = self.progress.step).entered();
        let start = self.start_step();
        let weights = self.loss_weights()?;
        // What prefetching has not done by now, the step waits for.
        let data_seconds = start.elapsed().as_secs_f64();
        let inspectors = self.inspectors();
        let mut local = LocalMetrics::default();
        local.phases.data = data_seconds;
        match self.pipeline {
            Some(_) => {
                let begun = Instant::now();
                self.run_pipeline(&weights, &inspectors, &mut local)?;
                local.phases.pipeline = begun.elapsed().as_secs_f64();
            }
            None => match self.contrastive {
                Some(loss) => self.run_contrastive(loss, inspectors.first(), &mut local)?,
                None => self.run_micro_batches(&weights, inspectors.first(), &mut local)?,
            },
        }
        let inspection = if inspectors.is_empty() { None } else { Some(self.inspect(&inspectors)?) };
        let vote = self.vote(self.progress.step + 1, checkpoint_due);
        let updating = Instant::now();
        let gathered = local.gather_later(vote, &self.team, &self.device)?;
        // The step's one host wait: gradient norm, losses and votes arrive together.
        let (info, gathered) = self.optim.step_and_read(&[&gathered])?;
        let merged = StepMetrics::merge(&gathered, &self.team, local.layout(), &weights.micro_batches);
        let phases = Phases { optimizer: updating.elapsed().as_secs_f64(), ..local.phases };
        let result = self.advance(start, info, merged)?;
        let phases = Phases { step: result.seconds, ..phases };
        Ok(StepResult { inspection, data_seconds, phases, ..result })
    }

    /// What looks at the hidden states of each model chunk of this rank in the present step; empty if nothing is to
    /// look at it.
    fn inspectors(&self) -> Vec<Rc<TensorInspector>> {
        let is_due = self.inspect_every.is_some_and(|every| (self.progress.step + 1).is_multiple_of(every));
        let chunks = self.pipeline.as_ref().map_or(1, |pipeline| pipeline.schedule().chunks());
        (0..if is_due { chunks } else { 0 }).map(|_| Rc::new(TensorInspector::new())).collect()
    }

    /// Tables of hidden states and parameters with their gradients, before the optimizer uses these. On all ranks.
    fn inspect(&self, inspectors: &[Rc<TensorInspector>]) -> Result<String> {
        let (step, scale) = (self.progress.step + 1, self.optim.loss_scale());
        let of_chunk = |inspector: &Rc<TensorInspector>| inspector.summary(self.team.data_ranks(), &self.device, scale);
        let of_chunks = inspectors.iter().map(of_chunk).collect::<bmtrain_dist::Result<Vec<_>>>()?;
        let hidden = match &self.pipeline {
            Some(pipeline) => rows_of_stages(pipeline, &of_chunks)?,
            None => of_chunks.into_iter().flatten().collect(),
        };
        let parameters = inspect_model(self.model.parameters(), "*", scale)?;
        let [hidden, parameters] = [&hidden, &parameters].map(|rows| format_summary(rows));
        Ok(format!("hidden states of step {step}\n{hidden}\nparameters before step {step}\n{parameters}"))
    }

    /// Forward and backward passes of this rank's micro-batches, one after the other.
    fn run_micro_batches(
        &mut self,
        weights: &LossWeights,
        inspector: Option<&Rc<TensorInspector>>,
        local: &mut LocalMetrics,
    ) -> Result<()> {
        for micro_batch in self.own_micro_batches() {
            let _micro_batch = tracing::debug_span!("micro_batch", micro_batch).entered();
            let waiting = Instant::now();
            let mut batch = self.batches.batch(self.position(micro_batch))?;
            local.count(&batch);
            self.weigh(&mut batch, micro_batch, weights);
            let loaded = Instant::now();
            local.phases.data += (loaded - waiting).as_secs_f64();
            let mut cx = self.training_context(micro_batch);
            if let Some(inspector) = inspector {
                cx.set_observer(Rc::clone(inspector) as Rc<dyn Observer>);
            }
            let share = (weights.micro_batch(micro_batch), self.is_last(micro_batch));
            let Pass { loss, forward, backward } = pass(&self.optim, share, cx, |cx| self.forward(&batch, local, cx))?;
            local.phases.forward += forward;
            local.phases.backward += backward;
            local.losses.push(loss);
        }
        Ok(())
    }

    /// Data-parallel rank r of W takes micro-batches r, r + W, r + 2W, …; the ranks of a tensor group and the stages of
    /// a pipeline take the same.
    pub(super) fn own_micro_batches(&self) -> impl Iterator<Item = u64> + use<> {
        (self.team.data_rank() as u64..self.micro_batches()).step_by(self.team.data_size())
    }

    pub(super) fn training_context(&self, micro_batch: u64) -> Ctx {
        Ctx::training(&self.device, self.randomness(micro_batch))
    }

    /// The address of a micro-batch's random numbers.
    pub(super) fn randomness(&self, micro_batch: u64) -> Randomness {
        let (seed, step) = (self.objective.seed, self.progress.step as u32);
        Randomness { seed, step, micro_batch: micro_batch as u32 }
    }

    fn loss_weights(&mut self) -> Result<LossWeights> {
        let (first, count) = (self.position(0), self.micro_batches());
        let micro_batches = self.batches.shares(first, count)?;
        let prompt_loss = self.objective.prompt_loss;
        let prompts = match prompt_loss == 0.0 {
            true => Vec::new(),
            false => {
                let shares = self.batches.prompt_shares(first, count)?;
                let equal = 1.0 / count as f32;
                // Relative to the weight of the micro-batch, by which its whole loss is multiplied.
                let relative = |(share, weight): (f32, &f32)| match *weight {
                    weight if weight == equal => prompt_loss * share * count as f32,
                    0.0 => 0.0,
                    weight => prompt_loss * share / weight,
                };
                shares.into_iter().zip(&micro_batches).map(relative).collect()
            }
        };
        Ok(LossWeights { micro_batches, prompts })
    }

    /// Set what weighs the batch's classes and prompts in the loss.
    pub(super) fn weigh(&self, batch: &mut Batch, micro_batch: u64, weights: &LossWeights) {
        batch.label_smoothing = self.objective.label_smoothing;
        batch.class_weights.clone_from(&self.objective.class_weights);
        if let (Some(verbalizer), Some(weight)) = (&mut batch.verbalizer, weights.prompts.get(micro_batch as usize)) {
            verbalizer.prompt_loss = *weight;
        }
    }

    fn forward(&self, batch: &Batch, local: &mut LocalMetrics, cx: &mut Ctx) -> Result<Var> {
        let _forward = tracing::debug_span!("forward").entered();
        if let Some(distiller) = &self.distiller {
            let Distilled { loss, divergence } = distiller.outcome(&*self.model, batch, cx)?;
            local.divergences.push(divergence);
            return Ok(loss);
        }
        let Some(preference) = &self.preference else { return self.model.loss(batch, cx)?.ok_or_else(no_loss) };
        let outcome = preference.outcome(&*self.model, (batch, PairPart::Train), cx)?;
        let most = self.batches.batch_size();
        local.pairs.push(numbers_of_step(&outcome, batch.samples.len(), most, &self.device)?);
        local.are_judged = outcome.judged.is_some();
        Ok(outcome.loss)
    }

    /// Whether a micro-batch is this rank's last in the step.
    pub(super) fn is_last(&self, micro_batch: u64) -> bool {
        micro_batch + self.team.data_size() as u64 >= self.micro_batches()
    }
}
