//! The position of a rank in the mesh: pipeline x data x tensor, tensor fastest, pipeline slowest.
//!
//! Pure arithmetic, the predecessor's formulas; communication between the ranks of a group is not here. The `Builder`
//! and the layers ask a mesh for this rank's part, and a communicator is split by its colour and key.

use crate::error::{Error, Result};

/// The position of one rank among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mesh {
    rank: usize,
    world: usize,
    pipeline: usize,
    tensor: usize,
}

/// Ranks that belong together for one purpose. Every rank is in exactly one group of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RankGroup {
    /// One rank of each stage, in the order of the stages: what a micro-batch passes through.
    Pipe,
    /// All ranks of a stage: what is replicated over tensor ranks is sharded here.
    Zero,
    /// Ranks of a stage with the same tensor rank: they hold the same part of every split weight and see different
    /// samples. What is split over tensor ranks is sharded here.
    TensorZero,
    /// Neighbours that share one copy of every layer's weights and see the same samples.
    Tensor,
}

impl RankGroup {
    /// Every kind.
    pub const ALL: [RankGroup; 4] = [RankGroup::Pipe, RankGroup::Zero, RankGroup::TensorZero, RankGroup::Tensor];
}

impl Mesh {
    /// The only rank.
    pub const SOLO: Mesh = Mesh { rank: 0, world: 1, pipeline: 1, tensor: 1 };

    /// Rank `rank` of `world` ranks, `pipeline` stages deep and `tensor` ranks wide.
    pub fn new(rank: usize, world: usize, pipeline: usize, tensor: usize) -> Result<Self> {
        let cell = pipeline.checked_mul(tensor).unwrap_or(0);
        if cell == 0 || world == 0 || !world.is_multiple_of(cell) {
            let reason = format!(
                "{world} ranks cannot be divided into {pipeline} pipeline stages x {tensor} tensor ranks; \
                 start a multiple of their product, or change one of the two"
            );
            return Err(Error::setting("mesh", reason));
        }
        if rank >= world {
            return Err(Error::setting("mesh", format!("rank {rank} is outside 0..{world}")));
        }
        Ok(Mesh { rank, world, pipeline, tensor })
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks, W.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Number of pipeline stages, P.
    pub fn pipeline_size(&self) -> usize {
        self.pipeline
    }

    /// Number of this rank's pipeline in its stage.
    pub fn pipeline(&self) -> usize {
        self.rank % self.stage_size()
    }

    /// Ranks of one pipeline stage.
    pub fn stage_size(&self) -> usize {
        self.world / self.pipeline
    }

    /// Pipeline stage of this rank.
    pub fn stage(&self) -> usize {
        self.rank / self.stage_size()
    }

    /// Ranks that share one copy of every layer's weights by columns or rows.
    pub fn tensor_size(&self) -> usize {
        self.tensor
    }

    /// This rank's number among them.
    pub fn tensor_rank(&self) -> usize {
        self.rank % self.tensor
    }

    /// Ranks that see different samples.
    pub fn data_size(&self) -> usize {
        self.stage_size() / self.tensor
    }

    /// This rank's number among them.
    pub fn data_rank(&self) -> usize {
        self.pipeline() / self.tensor
    }

    /// Ranks in each group of a kind.
    pub fn group_size(&self, kind: RankGroup) -> usize {
        match kind {
            RankGroup::Pipe => self.pipeline,
            RankGroup::Zero => self.stage_size(),
            RankGroup::TensorZero => self.data_size(),
            RankGroup::Tensor => self.tensor,
        }
    }

    /// Number of groups of a kind.
    pub fn group_count(&self, kind: RankGroup) -> usize {
        self.world / self.group_size(kind)
    }

    /// The number of this rank's group among the groups of its kind, from 0.
    pub fn group(&self, kind: RankGroup) -> usize {
        match kind {
            RankGroup::Pipe => self.pipeline(),
            RankGroup::Zero => self.stage(),
            RankGroup::TensorZero => self.stage() * self.tensor + self.tensor_rank(),
            RankGroup::Tensor => self.rank / self.tensor,
        }
    }

    /// This rank's number in its group, from 0.
    pub fn group_rank(&self, kind: RankGroup) -> usize {
        match kind {
            RankGroup::Pipe => self.stage(),
            RankGroup::Zero => self.pipeline(),
            RankGroup::TensorZero => self.data_rank(),
            RankGroup::Tensor => self.tensor_rank(),
        }
    }

    /// The ranks of this rank's group by their numbers in the world, in the order of their numbers in the group.
    pub fn group_ranks(&self, kind: RankGroup) -> Vec<usize> {
        let stage_start = self.stage() * self.stage_size();
        let (first, stride) = match kind {
            RankGroup::Pipe => (self.pipeline(), self.stage_size()),
            RankGroup::Zero => (stage_start, 1),
            RankGroup::TensorZero => (stage_start + self.tensor_rank(), self.tensor),
            RankGroup::Tensor => (self.rank - self.tensor_rank(), 1),
        };
        (0..self.group_size(kind)).map(|number| first + number * stride).collect()
    }

    /// Colour and key with which a communicator of the world is split into the groups of a kind: members of a group
    /// give the same colour and are numbered by their keys.
    pub fn colour_and_key(&self, kind: RankGroup) -> (usize, usize) {
        (self.group(kind), self.group_rank(kind))
    }
}
