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

    /// Which pipeline this rank is part of: its number in its stage.
    pub fn pipeline(&self) -> usize {
        self.rank % self.stage_size()
    }

    /// Ranks of one pipeline stage.
    pub fn stage_size(&self) -> usize {
        self.world / self.pipeline
    }

    /// Which pipeline stage this rank works on.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Every mesh of up to 24 ranks, as the places of all its ranks.
    fn meshes() -> Vec<Vec<Mesh>> {
        let mut all = Vec::new();
        for world in 1..=24_usize {
            for pipeline in 1..=world {
                for tensor in 1..=world {
                    if world.is_multiple_of(pipeline * tensor) {
                        let place = |rank| Mesh::new(rank, world, pipeline, tensor).unwrap();
                        all.push((0..world).map(place).collect());
                    }
                }
            }
        }
        assert!(all.len() > 200, "only {} meshes were tried", all.len());
        all
    }

    #[test]
    fn tensor_ranks_are_neighbours_and_stages_are_farthest_apart() {
        let places: Vec<_> = (0..8)
            .map(|rank| Mesh::new(rank, 8, 2, 2).unwrap())
            .map(|mesh| (mesh.stage(), mesh.data_rank(), mesh.tensor_rank()))
            .collect();
        let expected = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)];
        assert_eq!(places, expected);
    }

    #[test]
    fn impossible_meshes_are_refused() {
        assert!(Mesh::new(0, 6, 2, 2).is_err());
        assert!(Mesh::new(4, 4, 1, 1).is_err());
        assert!(Mesh::new(0, 0, 1, 1).is_err());
        assert!(Mesh::new(0, 4, 0, 1).is_err());
        assert!(Mesh::new(0, 4, 1, 0).is_err());
        assert!(Mesh::new(0, 4, usize::MAX, 2).is_err());
        let message = Mesh::new(0, 6, 2, 2).unwrap_err().to_string();
        assert!(message.contains("6 ranks") && message.contains("2 pipeline stages x 2 tensor ranks"), "{message}");
    }

    #[test]
    fn groups_of_each_kind_partition_the_world_into_equal_parts() {
        for ranks in meshes() {
            for kind in RankGroup::ALL {
                let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
                for mesh in &ranks {
                    groups.entry(mesh.group(kind)).or_default().push(mesh.rank());
                }
                let (count, size) = (ranks[0].group_count(kind), ranks[0].group_size(kind));
                assert_eq!(groups.keys().copied().collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
                assert!(groups.values().all(|members| members.len() == size), "{:?} {kind:?}", ranks[0]);
                assert_eq!(count * size, ranks.len());
            }
        }
    }

    #[test]
    fn members_of_a_group_agree_on_its_list_and_their_numbers_in_it() {
        for ranks in meshes() {
            for (mesh, kind) in ranks.iter().flat_map(|mesh| RankGroup::ALL.map(|kind| (mesh, kind))) {
                let members = mesh.group_ranks(kind);
                assert_eq!(members[mesh.group_rank(kind)], mesh.rank());
                assert!(members.is_sorted());
                for &member in &members {
                    assert_eq!(ranks[member].group(kind), mesh.group(kind));
                    assert_eq!(ranks[member].group_ranks(kind), members);
                }
            }
        }
    }

    #[test]
    fn formulas_equal_an_enumerated_table() {
        for ranks in meshes() {
            let (pipeline, tensor) = (ranks[0].pipeline_size(), ranks[0].tensor_size());
            let data = ranks.len() / (pipeline * tensor);
            let sizes = [RankGroup::Zero, RankGroup::TensorZero].map(|kind| ranks[0].group_size(kind));
            assert_eq!(sizes, [ranks.len() / pipeline, data]);
            let mut rank = 0;
            for stage in 0..pipeline {
                for sample in 0..data {
                    for part in 0..tensor {
                        let mesh = &ranks[rank];
                        assert_eq!((mesh.stage(), mesh.data_rank(), mesh.tensor_rank()), (stage, sample, part));
                        let expected = [
                            (RankGroup::Pipe, sample * tensor + part, stage),
                            (RankGroup::Zero, stage, sample * tensor + part),
                            (RankGroup::TensorZero, stage * tensor + part, sample),
                            (RankGroup::Tensor, stage * data + sample, part),
                        ];
                        for (kind, group, number) in expected {
                            assert_eq!(mesh.colour_and_key(kind), (group, number), "{mesh:?} {kind:?}");
                        }
                        rank += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn without_pipeline_and_tensor_ranks_all_data_ranks_are_one_group() {
        let mesh = Mesh::new(3, 8, 1, 1).unwrap();
        for kind in [RankGroup::Zero, RankGroup::TensorZero] {
            assert_eq!(mesh.group_ranks(kind), (0..8).collect::<Vec<_>>());
        }
        for kind in [RankGroup::Pipe, RankGroup::Tensor] {
            assert_eq!(mesh.group_ranks(kind), [3]);
        }
    }
}
