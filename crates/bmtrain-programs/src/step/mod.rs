//! Training steps of models of known size with random weights and ids, for programs that time them.

mod batch;
mod floor;
pub mod shape;
mod size;
mod stages;

pub use batch::{Extent, random_batch, rows_of};
pub use floor::gemm_floor;
pub use shape::{Family, Shape};
pub use size::{Product, Size};
pub use stages::stages;

use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::kernel::NormOrder;
use bmtrain_core::{Ctx, Device, Tensor};
use bmtrain_dist::OptimManager;
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::BuilderOptions;
use bmtrain_dist::pipeline::{MicroBatch, Pipeline};
use model_center_base::{Error, Result};
use model_center_models::{Batch, TextModel};
use std::sync::Arc;
use std::time::Instant;

/// A model, its optimizer, and the ranks that share each batch.
pub struct Steps {
    device: Device,
    model: Box<dyn TextModel>,
    optim: OptimManager,
    ranks: Arc<dyn Communicator>,
    /// Where the model is on several pipeline stages.
    pipeline: Option<Pipeline>,
    /// Into which a rank divides its rows.
    micro_batches: usize,
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
    /// Make a model with random weights, and Adam with clipping. A rank's rows of a step are `micro_batches`
    /// micro-batches.
    ///
    /// # Errors
    /// Sizes that make no model; no memory for it.
    pub fn new(
        device: &Device,
        shape: Shape,
        (blocks, micro_batches): (BlockOptions, usize),
        builder: BuilderOptions,
    ) -> Result<Self> {
        let ranks = Arc::clone(&builder.sharding.ranks);
        let model = shape.build(device, blocks, builder)?;
        let mut optim = OptimManager::new(device, Clip { order: NormOrder::Two, max_norm: 1.0 })?;
        optim.add(Box::new(Adam::new(ParamGroup::by_decay(model.parameters(), 0.01), AdamOptions::default())?), 1e-5);
        let stages = model.parameters().stages();
        let pipeline = match stages.stages() {
            1 => None,
            _ => Some(Pipeline::new(device, stages, stages.schedule(micro_batches)?)?),
        };
        Ok(Steps { device: device.clone(), model, optim, ranks, pipeline, micro_batches })
    }

    /// One training step, as the finetune program does it, on a rank's rows.
    pub fn run(&mut self, batch: &Batch, step: u32) -> Result<Step> {
        let start = Instant::now();
        let (count, ranks) = (self.micro_batches, self.ranks.size());
        let micro_batch = |number: usize| MicroBatch {
            batch: rows_of(batch.clone(), number, count),
            randomness: Randomness { seed: 0, step, micro_batch: (number * ranks + self.ranks.rank()) as u32 },
            weight: 1.0 / (count * ranks) as f32,
        };
        let losses: Vec<Tensor> = match &self.pipeline {
            Some(pipeline) => {
                let mut load = |number| Ok(micro_batch(number));
                vec![self.model.forward_backward(pipeline, &self.optim, &mut load)?] // [micro-batches]
            }
            None => {
                (0..count).map(|number| self.pass(&micro_batch(number), number + 1 == count)).collect::<Result<_>>()?
            }
        };
        let (_, read) = self.optim.step_and_read(&losses.iter().collect::<Vec<_>>())?;
        let loss = read.iter().sum::<f32>() / count as f32;
        Ok(Step { seconds: start.elapsed().as_secs_f64(), loss })
    }

    /// Forward and backward pass of one micro-batch; its loss.
    fn pass(&self, MicroBatch { batch, randomness, weight }: &MicroBatch<Batch>, is_last: bool) -> Result<Tensor> {
        let mut cx = Ctx::training(&self.device, *randomness);
        let missing = || Error::data("a timed step", "the batch has no labels", "make it with labels");
        let loss = self.model.loss(batch, &mut cx)?.ok_or_else(missing)?;
        match is_last {
            true => self.optim.backward_last(&loss, *weight, &mut cx)?,
            false => self.optim.backward(&loss, *weight, &mut cx)?,
        }
        Ok(loss.value().clone())
    }
}
