//! Training steps of models of known size with random weights and ids, for programs that time them.

mod batch;
mod floor;
pub mod shape;
mod size;

pub use batch::{Extent, own_rows, random_batch};
pub use floor::gemm_floor;
pub use shape::{Family, Shape};
pub use size::{Product, Size};

use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::OptimManager;
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::BuilderOptions;
use model_center::model::{Batch, TextModel};
use model_center::{Error, Result};
use std::sync::Arc;
use std::time::Instant;

/// A model, its optimizer, and the ranks that share each batch.
pub struct Steps {
    device: Device,
    model: Box<dyn TextModel>,
    optim: OptimManager,
    ranks: Arc<dyn Communicator>,
}

/// One step as it was.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Seconds from the batch in host memory to the loss in host memory, which comes after the optimizer.
    pub seconds: f64,
    /// Mean loss of the rank's rows.
    pub loss: f32,
}

impl Steps {
    /// Make a model with random weights, and Adam with clipping.
    ///
    /// # Errors
    /// Sizes that make no model; no memory for it.
    pub fn new(device: &Device, shape: Shape, blocks: BlockOptions, builder: BuilderOptions) -> Result<Self> {
        let ranks = Arc::clone(&builder.sharding.ranks);
        let model = shape.build(device, blocks, builder)?;
        let mut optim = OptimManager::new(device, Clip { order: NormOrder::Two, max_norm: 1.0 })?;
        optim.add(Box::new(Adam::new(ParamGroup::by_decay(model.parameters(), 0.01), AdamOptions::default())?), 1e-5);
        Ok(Steps { device: device.clone(), model, optim, ranks })
    }

    /// One training step, as the finetune program does it, each rank with its rows as one micro-batch.
    pub fn run(&mut self, batch: &Batch, step: u32) -> Result<Step> {
        let start = Instant::now();
        let randomness = Randomness { seed: 0, step, micro_batch: self.ranks.rank() as u32 };
        let mut cx = Ctx::training(&self.device, randomness);
        let missing = || Error::data("a timed step", "the batch has no labels", "make it with labels");
        let loss = self.model.loss(batch, &mut cx)?.ok_or_else(missing)?;
        self.optim.backward_last(&loss, 1.0 / self.ranks.size() as f32, &mut cx)?;
        let (_, read) = self.optim.step_and_read(&[loss.value()])?;
        let loss = read.first().copied().ok_or_else(missing)?;
        Ok(Step { seconds: start.elapsed().as_secs_f64(), loss })
    }
}
