//! The pipeline stages of a timed model.

use super::Shape;
use bmtrain_core::Device;
use bmtrain_core::comm::Communicator;
use bmtrain_core::wrap::Counting;
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::param::{BuilderOptions, InitMode};
use bmtrain_dist::pipeline::{Partition, PartitionRule, Schedule, StageGroup};
use model_center_base::Result;
use std::sync::Arc;

/// The stages of a model with about the same number of parameters each, one for each of these ranks, as the schedule
/// places its chunks.
///
/// # Errors
/// Fewer blocks than chunks; another number of ranks than of the schedule's stages.
pub fn stages(
    shape: Shape,
    blocks: BlockOptions,
    ranks: Arc<dyn Communicator>,
    schedule: &Schedule,
) -> Result<StageGroup> {
    if schedule.stages() == 1 {
        return Ok(StageGroup::default());
    }
    let nowhere = Device::new(Arc::new(Counting::new(1 << 20)));
    let sketch =
        shape.build(&nowhere, blocks, BuilderOptions { init: InitMode::Deferred, ..BuilderOptions::default() })?;
    let partition = Partition::of_model(&PartitionRule::Parameters, sketch.parameters(), schedule.places())?;
    Ok(StageGroup::new(ranks, partition, schedule)?)
}
