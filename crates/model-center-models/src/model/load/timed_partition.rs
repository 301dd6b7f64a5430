//! A partition of a model's blocks by measured time.
//!
//! Defines [`partition_by_time`], which is called on every rank before the model is opened on pipeline stages.

use super::open_options::{OpenMode, OpenOptions, StageOptions};
use super::registry::Registry;
use crate::{Error, Result};
use bmtrain_dist::ControlGroup;
use bmtrain_dist::pipeline::{BlockCosts, PartitionRule};
use model_center_base::batch::Batch;
use std::path::Path;
use std::sync::Arc;

/// Times every block of the model of a directory and its head, each on the stage that holds it when blocks are divided
/// by parameters, and returns the rule for [`StageOptions::partition`] with which the slowest stage is as fast as it
/// can be. All ranks get the same rule: of each block the time of the slowest rank counts.
///
/// The model is initialized from `config.json` for this and dropped afterwards; it takes the memory of its parameters
/// and gradients. `batch` is a micro-batch as training brings them. Measured times differ from run to run: a run that
/// is to be resumed with the same stages records the counts of the partition
/// ([`Partition::counts`](bmtrain_dist::pipeline::Partition::counts)) and resumes with [`PartitionRule::Given`].
/// Results do not depend on the partition.
///
/// # Errors
/// Options without stages; errors of opening the model and of its passes; a failure of the ranks.
pub fn partition_by_time(
    registry: Registry<'_>,
    directory: &Path,
    options: &OpenOptions,
    batch: &Batch,
) -> Result<PartitionRule> {
    let Some(stages) = &options.stages else {
        let fix = "set OpenOptions::stages, or leave the partition out";
        return Err(Error::argument("partition by time", "the model is on one stage", fix));
    };
    let by_parameters = StageOptions { partition: PartitionRule::Parameters, ..stages.clone() };
    let options =
        OpenOptions { stages: Some(by_parameters), from_config: true, mode: OpenMode::Load, ..options.clone() };
    let model = registry.open(directory, &options)?.model;
    let own = model.block_costs(&options.device, batch)?;
    drop(model);
    // Over all three groups these are all ranks.
    let groups = [&options.tensor.ranks, &options.sharding.ranks, &stages.ranks];
    let agreed = groups.into_iter().try_fold(own, |costs: BlockCosts, ranks| {
        costs.agree(&ControlGroup::new(Arc::clone(ranks), &options.device))
    })?;
    Ok(PartitionRule::Time(agreed))
}
