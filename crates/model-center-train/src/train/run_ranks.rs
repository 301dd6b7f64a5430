//! The ranks of a run, and which of them see the same samples.
//!
//! Defines [`RunRanks`], through which the trainer, evaluation and the log communicate. Votes and settings concern all
//! ranks; samples, losses and metrics the data-parallel ranks, of whose tensor-parallel groups one rank speaks.

use bmtrain_core::Device;
use bmtrain_core::comm::Communicator;
use bmtrain_dist::{ControlGroup, Mesh, RankGroups};
use std::ops::Deref;
use std::sync::Arc;

/// All ranks of a run as a [`ControlGroup`], and this rank's position in their mesh.
#[derive(Debug, Clone)]
pub(crate) struct RunRanks {
    control: ControlGroup,
    mesh: Mesh,
    data: Arc<dyn Communicator>,
}

impl Deref for RunRanks {
    type Target = ControlGroup;

    fn deref(&self) -> &ControlGroup {
        &self.control
    }
}

impl RunRanks {
    /// The ranks of these groups, which send small tensors of this rank's device.
    pub(crate) fn new(groups: &RankGroups, device: &Device) -> Self {
        let control = ControlGroup::new(Arc::clone(groups.world()), device);
        RunRanks { control, mesh: groups.mesh(), data: Arc::clone(groups.data()) }
    }

    /// The ranks that hold the same part of the model as this one and see other samples.
    pub(crate) fn data_ranks(&self) -> &dyn Communicator {
        &*self.data
    }

    /// This rank's number among those that see different samples.
    pub(crate) fn data_rank(&self) -> usize {
        self.mesh.data_rank()
    }

    /// Number of ranks that see different samples.
    pub(crate) fn data_size(&self) -> usize {
        self.mesh.data_size()
    }

    /// Each data-parallel rank's part of what all ranks have gathered, in their order. The ranks of a tensor group have
    /// the same; its first one's is taken.
    pub(crate) fn of_data_ranks<'a, T>(&self, all: &'a [T]) -> impl Iterator<Item = &'a T> + use<'a, T> {
        all.iter().step_by(self.mesh.tensor_size()).take(self.mesh.data_size())
    }
}
