//! The passes of a training step, which runs, plans and benchmarks share: what is counted and timed is what runs.
//!
//! [`pass`] is the forward and backward pass of a micro-batch; the trainer calls it with the forward pass of its
//! objective. [`StepRunner`] is a model with its optimizer for whole steps on the loss of labels, without data, metrics
//! and checkpoints.

use crate::{Error, Result};
use bmtrain_core::{Ctx, Device, Tensor, Var};
use bmtrain_dist::OptimManager;
use bmtrain_dist::pipeline::{MicroBatch, Pipeline};
use model_center_base::batch::Batch;
use model_center_models::{LossSettings, TextModel};
use std::time::Instant;

/// A micro-batch's part of its step.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepShare {
    /// Weight of its loss in the loss of the step.
    pub(super) weight: f32,
    /// Whether it is the rank's last one, with which gradients are reduced.
    pub(super) is_last: bool,
}

/// The loss of a micro-batch after its passes, and their seconds.
pub(super) struct PassDone {
    pub(super) loss: Var,
    pub(super) forward: f64,
    pub(super) backward: f64,
}

/// Forward and backward pass of a micro-batch.
pub(super) fn pass(
    optim: &OptimManager,
    share: StepShare,
    mut cx: Ctx,
    forward: impl FnOnce(&mut Ctx) -> Result<Var>,
) -> Result<PassDone> {
    let begun = Instant::now();
    let loss = forward(&mut cx)?;
    let computed = Instant::now();
    backward(optim, &loss, share, &mut cx)?;
    let (forward, backward) = ((computed - begun).as_secs_f64(), computed.elapsed().as_secs_f64());
    Ok(PassDone { loss, forward, backward })
}

/// The backward pass of a micro-batch's loss with its weight, which gathers and recomputes per block, and reduces
/// gradients with the last micro-batch.
pub(super) fn backward(optim: &OptimManager, loss: &Var, share: StepShare, cx: &mut Ctx) -> Result<()> {
    match share.is_last {
        true => optim.backward_last(loss, share.weight, cx)?,
        false => optim.backward(loss, share.weight, cx)?,
    }
    Ok(())
}

/// The pipeline of a model that was opened on one of several stages; `micro_batches` counts one data-parallel rank's.
pub(super) fn pipeline(model: &dyn TextModel, device: &Device, micro_batches: usize) -> Result<Option<Pipeline>> {
    let stages = model.parameters().stages();
    if stages.stages() == 1 {
        return Ok(None);
    }
    Ok(Some(Pipeline::new(device, stages, stages.schedule(micro_batches)?)?))
}

/// A model and its optimizer on a rank.
pub struct StepRunner {
    /// The model.
    pub model: Box<dyn TextModel>,
    /// Its optimizer.
    pub optim: OptimManager,
    device: Device,
    /// Where the model is on several pipeline stages.
    pipeline: Option<Pipeline>,
    micro_batches: usize,
}

impl StepRunner {
    /// A model on a device, whose steps have this number of micro-batches on the rank.
    ///
    /// # Errors
    /// A number of micro-batches that the schedule of its stages does not run.
    pub fn new(device: &Device, model: Box<dyn TextModel>, optim: OptimManager, micro_batches: usize) -> Result<Self> {
        let pipeline = pipeline(&*model, device, micro_batches)?;
        Ok(StepRunner { model, optim, device: device.clone(), pipeline, micro_batches })
    }

    /// One step: passes of the micro-batches that `load` has by number, then the optimizer. The losses of the
    /// micro-batches.
    ///
    /// # Errors
    /// What `load` fails with; a micro-batch without labels, or with others than the head's; a failing device; a lost
    /// rank. A step that fails leaves no gradients.
    pub fn step(&mut self, load: &mut dyn FnMut(usize) -> Result<MicroBatch<Batch>>) -> Result<Vec<f32>> {
        let done = self.passes_and_update(load);
        if done.is_err() {
            self.optim.zero_grad()?;
        }
        done
    }

    fn passes_and_update(&mut self, load: &mut dyn FnMut(usize) -> Result<MicroBatch<Batch>>) -> Result<Vec<f32>> {
        let losses = match &self.pipeline {
            Some(pipeline) => {
                let load = &mut |number| Ok((load(number)?, LossSettings::default()));
                vec![self.model.forward_backward(pipeline, &self.optim, load)?] // [micro-batches]
            }
            None => (0..self.micro_batches).map(|number| self.pass(load(number)?, number)).collect::<Result<_>>()?,
        };
        let (_, losses) = self.optim.step_and_read(&losses.iter().collect::<Vec<_>>())?;
        Ok(losses)
    }

    fn pass(&self, MicroBatch { batch, randomness, weight }: MicroBatch<Batch>, number: usize) -> Result<Tensor> {
        let cx = Ctx::training(&self.device, randomness);
        let forward = |cx: &mut Ctx| self.model.loss(&batch, cx)?.ok_or_else(no_loss);
        let share = StepShare { weight, is_last: number + 1 == self.micro_batches };
        Ok(pass(&self.optim, share, cx, forward)?.loss.into_value())
    }
}

/// The error of labels that the head has no loss of.
pub(super) fn no_loss() -> Error {
    Error::model("training", "the model made no loss", "open it with a head for these labels")
}
