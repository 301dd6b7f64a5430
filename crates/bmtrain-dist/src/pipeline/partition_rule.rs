//! The rules by which an opened model chooses a partition.

use super::BlockCosts;
use crate::error::{Error, Result};
use crate::param::Parameters;
use crate::schedule::Partition;
use crate::stages::ModelPart;

/// Rule that divides blocks among the places of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PartitionRule {
    /// So that the largest place is as small as it can be, by the parameters that a micro-batch is multiplied with:
    /// of blocks and head. Embedding tables are looked up, which takes no time, and do not count.
    #[default]
    Parameters,
    /// Equal numbers of blocks; the first places have one more where they do not divide.
    Count,
    /// The number of blocks of each place.
    Given(Vec<usize>),
    /// So that the slowest place takes as little time as it can, by these times of blocks and head
    /// ([`BlockCosts::measure`]).
    Time(BlockCosts),
}

impl Partition {
    /// The partition of a model by a rule. `parameters` are all of the model, as declared without a pipeline.
    ///
    /// # Errors
    /// Fewer blocks than places; given counts for another number of blocks or places.
    pub fn of_model(rule: &PartitionRule, parameters: &Parameters, places: usize) -> Result<Self> {
        let (mut blocks, mut head) = (Vec::new(), 0);
        for param in parameters.declared() {
            let count = param.spec().shape.elements() as u64;
            match param.part() {
                ModelPart::Block(block) => {
                    if block >= blocks.len() {
                        blocks.resize(block + 1, 0_u64);
                    }
                    blocks[block] += count;
                }
                ModelPart::Head | ModelPart::Tied => head += count,
                ModelPart::Embed => {}
            }
        }
        match rule {
            PartitionRule::Parameters => Partition::balanced(&blocks, head, places),
            PartitionRule::Count => Partition::even(blocks.len(), places),
            PartitionRule::Time(costs) => {
                if costs.blocks.len() != blocks.len() {
                    let (given, blocks) = (costs.blocks.len(), blocks.len());
                    let reason = format!("there are times of {given} blocks, and the model has {blocks}");
                    return Err(Error::setting("pipeline partition", format!("{reason}; measure this model")));
                }
                Partition::balanced(&costs.blocks, costs.head, places)
            }
            PartitionRule::Given(counts) => {
                let partition = Partition::of_counts(counts)?;
                if (partition.blocks(), partition.places()) != (blocks.len(), places) {
                    let reason = format!(
                        "{counts:?} divides {} blocks among {} places; the model has {} blocks and the pipeline \
                         {places} places",
                        partition.blocks(),
                        partition.places(),
                        blocks.len()
                    );
                    return Err(Error::setting("pipeline partition", reason));
                }
                Ok(partition)
            }
        }
    }
}
