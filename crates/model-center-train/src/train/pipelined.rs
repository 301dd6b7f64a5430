//! The micro-batches of a training step where the model is on several pipeline stages.

use super::step::LossWeights;
use super::trainer::{LocalMetrics, Trainer};
use crate::{Error, Result};
use bmtrain_core::Var;
use bmtrain_core::autograd::Observer;
use bmtrain_dist::inspect::TensorInspector;
use bmtrain_dist::pipeline::MicroBatch;
use model_center_base::batch::Batch;
use std::rc::Rc;

impl Trainer {
    /// Forward and backward passes of this rank's micro-batches over the stages: every stage reads all of them, and
    /// gets the losses of the last one. `inspectors` look at its chunks, where there are any.
    pub(super) fn run_pipeline(
        &mut self,
        weights: &LossWeights,
        inspectors: &[Rc<TensorInspector>],
        local: &mut LocalMetrics,
    ) -> Result<()> {
        let own: Vec<u64> = self.own_micro_batches().collect();
        let mut batches: Vec<Option<Batch>> = Vec::with_capacity(own.len());
        for micro_batch in &own {
            let mut batch = self.batches.batch(self.position(*micro_batch))?;
            local.count(&batch);
            self.weigh(&mut batch, *micro_batch, weights);
            batches.push(Some(batch));
        }
        let Some(pipeline) = &self.pipeline else { return Ok(()) };
        let mut load = |number: usize| {
            let (Some(micro_batch), Some(batch)) = (own.get(number), batches.get_mut(number).and_then(Option::take))
            else {
                let reason = format!("there is no micro-batch {number} of {} in a step", own.len());
                let fix = "make the schedule for the micro-batches of a data-parallel rank";
                return Err(Error::argument("pipeline", reason, fix));
            };
            let (randomness, weight) = (self.randomness(*micro_batch), weights.micro_batch(*micro_batch));
            Ok(MicroBatch { batch, randomness, weight })
        };
        pipeline.set_observers(inspectors.iter().map(|inspector| Rc::clone(inspector) as Rc<dyn Observer>).collect());
        let losses = self.model.forward_backward(pipeline, &self.optim, &mut load)?; // [micro-batches]
        // Evaluations over the same pipeline are not looked at.
        pipeline.set_observers(Vec::new());
        for number in 0..own.len() {
            local.losses.push(Var::constant(losses.slice(number..number + 1)?)); // [1]
        }
        Ok(())
    }
}
