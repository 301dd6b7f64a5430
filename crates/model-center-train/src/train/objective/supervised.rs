//! The model's own loss of the labels, on one pipeline stage or several.

use super::{Objective, ObjectiveLoss, Pass, StepPasses};
use crate::train::step_runner::no_loss;
use crate::{Error, Result};
use bmtrain_core::autograd::Observer;
use bmtrain_core::{Ctx, Var};
use bmtrain_dist::pipeline::{MicroBatch, Pipeline};
use model_center_base::batch::Batch;
use model_center_models::{ForwardOptions, ForwardOutputs, LossSettings};
use std::rc::Rc;
use std::time::Instant;

/// The loss of labels.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Supervised {
    /// Share of the target probability that is spread over all classes.
    pub label_smoothing: f32,
    /// The weight of each class in the loss; `None`: all samples weigh the same.
    pub class_weights: Option<Vec<f32>>,
    /// The weight of the prompts' tokens beside their answers'.
    pub prompt_loss: f32,
}

impl Supervised {
    /// The settings of a loss in which the prompts of the micro-batch weigh this.
    pub(super) fn settings(&self, prompt_loss: f32) -> LossSettings<'_> {
        let (label_smoothing, class_weights) = (self.label_smoothing, self.class_weights.as_deref());
        LossSettings { label_smoothing, class_weights, prompt_loss }
    }

    fn weighted(&self, pass: &Pass<'_>, prompt_loss: f32, cx: &mut Ctx) -> Result<ObjectiveLoss> {
        let loss = self.settings(prompt_loss);
        let options = ForwardOptions { outputs: ForwardOutputs::Loss, loss, observe: None };
        Ok(pass.model.forward_with(pass.batch, options, cx)?.loss.ok_or_else(no_loss)?.into())
    }

    /// The weight of the mean loss of each micro-batch's prompts in its own loss, relative to the micro-batch's weight
    /// in the step. Empty where prompts do not count.
    fn prompt_weights(&self, step: &mut StepPasses<'_>) -> Result<Vec<f32>> {
        if self.prompt_loss == 0.0 {
            return Ok(Vec::new());
        }
        let shares = step.prompt_shares()?;
        let (count, equal) = (shares.len() as f32, 1.0 / shares.len() as f32);
        let relative = |(share, weight): (f32, &f32)| match *weight {
            weight if weight == equal => self.prompt_loss * share * count,
            0.0 => 0.0,
            weight => self.prompt_loss * share / weight,
        };
        Ok(shares.into_iter().zip(&step.weights).map(relative).collect())
    }

    /// Forward and backward passes of this rank's micro-batches over the stages: every stage reads all of them, and
    /// gets the losses of the last one. The inspectors look at its chunks, where there are any.
    fn run_stages(&self, step: &mut StepPasses<'_>, pipeline: &Pipeline, prompts: &[f32]) -> Result<()> {
        let begun = Instant::now();
        let own: Vec<u64> = step.own_micro_batches().collect();
        let mut batches: Vec<Option<Batch>> = Vec::with_capacity(own.len());
        for micro_batch in &own {
            let batch = step.batches.batch(step.position(*micro_batch))?;
            step.local.count(&batch);
            batches.push(Some(batch));
        }
        let mut load = |number: usize| {
            let (Some(micro_batch), Some(batch)) = (own.get(number), batches.get_mut(number).and_then(Option::take))
            else {
                let reason = format!("there is no micro-batch {number} of {} in a step", own.len());
                let fix = "make the schedule for the micro-batches of a data-parallel rank";
                return Err(Error::argument("pipeline", reason, fix));
            };
            let (randomness, weight) = (step.randomness(*micro_batch), step.weight(*micro_batch));
            let prompt_loss = prompts.get(*micro_batch as usize).copied().unwrap_or(0.0);
            Ok((MicroBatch { batch, randomness, weight }, self.settings(prompt_loss)))
        };
        let observers = step.inspectors.iter().map(|inspector| Rc::clone(inspector) as Rc<dyn Observer>);
        pipeline.set_observers(observers.collect());
        let losses = step.model.forward_backward(pipeline, step.optim, &mut load)?; // [micro-batches]
        // Evaluations over the same pipeline are not looked at.
        pipeline.set_observers(Vec::new());
        for number in 0..own.len() {
            step.local.losses.push(Var::constant(losses.slice(number..number + 1)?)); // [1]
        }
        step.local.phases.pipeline = begun.elapsed().as_secs_f64();
        Ok(())
    }
}

impl Objective for Supervised {
    fn loss(&self, pass: &Pass<'_>, cx: &mut Ctx) -> Result<ObjectiveLoss> {
        self.weighted(pass, self.prompt_loss, cx)
    }

    fn run(&self, step: &mut StepPasses<'_>) -> Result<()> {
        let prompts = self.prompt_weights(step)?;
        match step.pipeline {
            Some(pipeline) => self.run_stages(step, pipeline, &prompts),
            None => step.each(|pass, cx| {
                let prompt_loss = prompts.get(pass.micro_batch as usize).copied().unwrap_or(0.0);
                self.weighted(pass, prompt_loss, cx)
            }),
        }
    }
}
