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

use bmtrain_core::Device;
use bmtrain_core::autograd::Randomness;
use bmtrain_core::comm::Communicator;
use bmtrain_core::kernel::NormOrder;
use bmtrain_dist::OptimManager;
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
use bmtrain_dist::param::BuilderOptions;
use bmtrain_dist::pipeline::MicroBatch;
use model_center_base::Result;
use model_center_models::Batch;
use model_center_train::StepRunner;
use std::sync::Arc;
use std::time::Instant;

/// Training steps of a model, and the ranks that share each batch.
pub struct Steps {
    runner: StepRunner,
    ranks: Arc<dyn Communicator>,
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
        Ok(Steps { runner: StepRunner::new(device, model, optim, micro_batches)?, ranks, micro_batches })
    }

    /// One training step on a rank's rows.
    ///
    /// # Errors
    /// A failing device; a lost rank.
    pub fn run(&mut self, batch: &Batch, step: u32) -> Result<Step> {
        let start = Instant::now();
        let (count, ranks) = (self.micro_batches, &self.ranks);
        let losses = self.runner.step(&mut |number| {
            let micro_batch = (number * ranks.size() + ranks.rank()) as u32;
            Ok(MicroBatch {
                batch: rows_of(batch.clone(), number, count),
                randomness: Randomness { seed: 0, step, micro_batch },
                weight: 1.0 / (count * ranks.size()) as f32,
            })
        })?;
        let loss = losses.iter().sum::<f32>() / count as f32;
        Ok(Step { seconds: start.elapsed().as_secs_f64(), loss })
    }
}
