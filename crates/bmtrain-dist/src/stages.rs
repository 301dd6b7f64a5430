//! The parts of a model that this rank's pipeline stage holds.
//!
//! A model declares of each parameter in which [`ModelPart`] it is used; [`StageGroup`] is the ranks of a pipeline and
//! what each of them holds. The [`Builder`](crate::Builder) asks it where parameters get storage, the
//! [`OptimManager`](crate::OptimManager) for the ranks, a [`Pipeline`](crate::pipeline::Pipeline) for what each place
//! runs.

use super::schedule::{Partition, Schedule, ScheduleKind, Work};
use crate::error::{Error, Result};
use bmtrain_core::comm::{Communicator, Solo};
use std::sync::Arc;

/// Part of a model in which a parameter is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModelPart {
    /// Before the first block: at the first place.
    Embed,
    /// Before the first block and in the head, such as a tied embedding: at the first and at the last place. The two
    /// uses have a gradient each, which are added once a step: the one in the head goes through
    /// [`Param::tied`](crate::Param::tied).
    Tied,
    /// With the block of this number, counted through all stacks: in it, or in what runs together with it, such as the
    /// norm after a stack's last block.
    Block(usize),
    /// After the last block: at the last place.
    Head,
}

/// The ranks of a pipeline, one of each stage, and the places that each stage holds.
///
/// The default is one stage, which holds everything.
#[derive(Debug, Clone)]
pub struct StageGroup {
    ranks: Arc<dyn Communicator>,
    /// These ranks, for messages with gradients: a transport that runs the messages of a group one after the other must
    /// not let activations wait for gradients that come after them.
    gradients: Arc<dyn Communicator>,
    layout: Option<StageLayout>,
    /// The stages of the first and of the last place, in this order, where they are two.
    ends: Option<Arc<dyn Communicator>>,
}

#[derive(Debug, Clone)]
struct StageLayout {
    partition: Partition,
    /// The stage of each place.
    holders: Vec<usize>,
    kind: ScheduleKind,
    chunks: usize,
}

impl Default for StageGroup {
    fn default() -> Self {
        StageGroup { ranks: Arc::new(Solo), gradients: Arc::new(Solo), layout: None, ends: None }
    }
}

impl StageGroup {
    /// The stages `ranks` of a schedule, with the blocks of a partition. Collective over these ranks, which it prepares
    /// for messages ([`Communicator::connect_messages`]).
    ///
    /// # Errors
    /// A schedule of another number of stages, a partition of another number of places; a failure of the ranks.
    pub fn new(ranks: Arc<dyn Communicator>, partition: Partition, schedule: &Schedule) -> Result<Self> {
        if schedule.stages() != ranks.size() || schedule.places() != partition.places() {
            let reason = format!(
                "the schedule has {} stages and {} places, the partition {} places, and there are {} ranks; make all \
                 three for the same stages and chunks",
                schedule.stages(),
                schedule.places(),
                partition.places(),
                ranks.size()
            );
            return Err(Error::setting("pipeline", reason));
        }
        let holders: Vec<usize> = (0..schedule.places()).map(|place| schedule.holder(place).0).collect();
        let is_end = |stage: usize| holders.first() == Some(&stage) || holders.last() == Some(&stage);
        let ends = match holders.first() == holders.last() {
            true => None,
            false => {
                let of = |rank: usize| (usize::from(!is_end(rank)), usize::from(holders.first() != Some(&rank)));
                let group = ranks.split_by(&of)?;
                is_end(ranks.rank()).then_some(group)
            }
        };
        let gradients = if ranks.size() > 1 { ranks.split_by(&|rank| (0, rank))? } else { Arc::clone(&ranks) };
        ranks.connect_messages()?;
        gradients.connect_messages()?;
        let layout = StageLayout { partition, holders, kind: schedule.kind(), chunks: schedule.chunks() };
        Ok(StageGroup { ranks, gradients, layout: Some(layout), ends })
    }

    /// One rank of each stage.
    pub fn ranks(&self) -> &Arc<dyn Communicator> {
        &self.ranks
    }

    /// The ranks over which a chunk's work sends its result.
    pub(super) fn ranks_for(&self, work: Work) -> &Arc<dyn Communicator> {
        if work == Work::Forward { &self.ranks } else { &self.gradients }
    }

    /// Number of stages, P.
    pub fn stages(&self) -> usize {
        self.ranks.size()
    }

    /// The partition; none for one stage that holds everything.
    pub fn partition(&self) -> Option<&Partition> {
        self.layout.as_ref().map(|layout| &layout.partition)
    }

    /// The schedule that these stages were made for, with this number of micro-batches in a step.
    ///
    /// # Errors
    /// A number of micro-batches that the kind of schedule refuses.
    pub fn schedule(&self, micro_batches: usize) -> Result<Schedule> {
        let (kind, chunks) =
            self.layout.as_ref().map_or((ScheduleKind::GPipe, 1), |layout| (layout.kind, layout.chunks));
        Schedule::new(kind, self.stages(), chunks, micro_batches)
    }

    /// The stage of each place, in the order of the forward pass.
    pub fn holders(&self) -> &[usize] {
        self.layout.as_ref().map_or(&[0], |layout| &layout.holders)
    }

    /// The place at which a part is used first.
    pub fn place_of(&self, part: ModelPart) -> usize {
        match (&self.layout, part) {
            (None, _) | (_, ModelPart::Embed | ModelPart::Tied) => 0,
            (Some(layout), ModelPart::Block(block)) => layout.partition.place_of(block),
            (Some(layout), ModelPart::Head) => layout.holders.len().saturating_sub(1),
        }
    }

    /// The stage that uses a part first.
    pub fn stage_of(&self, part: ModelPart) -> usize {
        self.holders().get(self.place_of(part)).copied().unwrap_or(0)
    }

    /// Whether this rank's stage uses a part, so that it holds its parameters.
    pub fn holds(&self, part: ModelPart) -> bool {
        let own = self.ranks.rank();
        self.stage_of(part) == own || part == ModelPart::Tied && self.holders().last() == Some(&own)
    }

    /// The two stages that hold a tied parameter, first and last place in this order, where they are two and this rank
    /// is one of them.
    pub(crate) fn ends(&self) -> Option<&Arc<dyn Communicator>> {
        self.ends.as_ref()
    }
}
