//! The blocks of a run's pipeline stages by the times they take on its ranks (`parallel.partition = "time"`).
//!
//! Defines [`by_time`], called by a run before it opens its model, and [`in_force`], the recipe that records what was
//! chosen.

use super::finetune::RunConfig;
use super::preconditions::begun_recipe;
use super::run_ranks::RunRanks;
use super::trainer::batches;
use crate::{Error, Result};
use bmtrain_dist::pipeline::PartitionRule;
use model_center_base::batch::Position;
use model_center_models::{OpenOptions, StageOptions, TextModel, partition_by_time};
use model_center_recipe::run::console;
use model_center_recipe::{Resolved, recorded_partition};
use std::borrow::Cow;

/// The options of the model of a run, whose stages get the blocks that the run was begun with, or else those that
/// measured times choose. Options of other runs stay as they are. Collective: all ranks get the same.
///
/// # Errors
/// Errors of opening the model and of its passes; a failure of the ranks.
pub(super) fn by_time(config: &RunConfig, ranks: &RunRanks, options: OpenOptions) -> Result<OpenOptions> {
    let RunConfig { setup, resolved, registry, .. } = config;
    let Some(stages) = options.stages.clone().filter(|_| resolved.parallel.is_timed()) else {
        return Ok(options);
    };
    let partition = match recorded(config, ranks)? {
        Some(counts) => PartitionRule::Given(counts),
        None => {
            if ranks.is_first() {
                console::note("timing the blocks of the model, to divide them among the pipeline stages");
            }
            // The same micro-batch on all ranks: tensor-parallel ranks compute it together.
            let mut batches = batches(setup, resolved, ranks)?;
            let batch = batches.batch(Position { epoch: 0, index: 0 })?;
            let options = setup.start.with_config(options.clone());
            partition_by_time(*registry, &setup.start.directory, &options, &batch)?
        }
    };
    Ok(OpenOptions { stages: Some(StageOptions { partition, ..stages }), ..options })
}

/// The number of blocks of each model chunk that the run was begun with, if they divide this model, by the directory of
/// the first rank.
fn recorded(config: &RunConfig, ranks: &RunRanks) -> Result<Option<Vec<usize>>> {
    let RunConfig { setup, resolved, options, .. } = config;
    let own = match ranks.is_first() {
        true => begun_recipe(resolved, options)
            .and_then(|recipe| recorded_partition(&recipe, resolved.parallel.chunks()))
            .filter(|counts| counts.iter().sum::<usize>() == setup.blocks),
        false => None,
    };
    let text: Vec<String> = own.unwrap_or_default().iter().map(ToString::to_string).collect();
    let text = ranks.first_text(&text.join(" "))?;
    let counts: Vec<usize> = text
        .split_whitespace()
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()
        .map_err(|_| Error::recipe("parallel.partition", "a rank sent no numbers of blocks", "report this"))?;
    Ok((!counts.is_empty()).then_some(counts))
}

/// The recipe of a run with the partition that was chosen for its opened model, which a resumed run takes from it.
pub(super) fn in_force<'a>(resolved: &'a Resolved, model: &dyn TextModel, ranks: &RunRanks) -> Cow<'a, Resolved> {
    match model.parameters().stages().partition() {
        Some(partition) if resolved.parallel.is_timed() => {
            let counts = partition.counts();
            if ranks.is_first() {
                console::note(&format!("blocks of the pipeline's model chunks by time: {counts:?}"));
            }
            Cow::Owned(resolved.clone().partitioned(counts))
        }
        _ => Cow::Borrowed(resolved),
    }
}
