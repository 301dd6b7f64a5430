//! The training step, in full.

use bmtrain_core::autograd::Randomness;
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::OptimManager;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use model_center::model::{Batch, OpenOptions, OpenedModel, Registry};
use model_center::{Error, Result};
use std::path::Path;

/// Open a directory and train on one batch; the model and the loss of each step.
pub fn train(registry: Registry<'_>, directory: &Path, batch: &Batch, steps: u32) -> Result<(OpenedModel, Vec<f32>)> {
    let device = Device::cpu(2)?;
    let opened = registry.open(directory, &OpenOptions::new(&device))?;
    let groups = ParamGroup::by_decay(opened.model.parameters(), 0.01);
    let mut optim = OptimManager::new(&device, Clip { order: NormOrder::Two, max_norm: 1.0 })?;
    optim.add(Box::new(Adam::new(groups, AdamOptions::default())?), 1e-3);
    let mut losses = Vec::new();
    for step in 0..steps {
        let mut cx = Ctx::training(&device, Randomness { seed: 7, step, micro_batch: 0 });
        let scores = opened.model.forward(batch, None, &mut cx)?;
        let loss = scores.loss.ok_or_else(|| Error::data("batch", "it has no labels", "give one for each row"))?;
        optim.backward(&loss, 1.0, &mut cx)?;
        optim.step()?;
        losses.push(loss.value().item()?);
    }
    Ok((opened, losses))
}
