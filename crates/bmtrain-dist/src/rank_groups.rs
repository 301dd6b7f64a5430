//! The communicators of one rank along the dimensions of its mesh.
//!
//! Defines [`RankGroups`], made by programs once their ranks are connected; opening a model takes its data-parallel and
//! its tensor-parallel ranks, and the stages of its pipeline.

use crate::error::Result;
use crate::mesh::{Mesh, RankGroup};
use bmtrain_core::comm::{Communicator, CountingRank, Solo};
use std::sync::Arc;

/// One rank's membership in the groups of its mesh. A group of one rank communicates nothing.
#[derive(Debug, Clone)]
pub struct RankGroups {
    mesh: Mesh,
    world: Arc<dyn Communicator>,
    tensor: Arc<dyn Communicator>,
    data: Arc<dyn Communicator>,
    pipe: Arc<dyn Communicator>,
}

/// Counts of the sends, by group, of a rank whose peers are not there.
#[derive(Debug)]
pub struct CountedSends {
    tensor: CountingRank,
    data: CountingRank,
    pipe: CountingRank,
}

impl CountedSends {
    /// Bytes sent so far in a group.
    pub fn bytes(&self, kind: RankGroup) -> u64 {
        let CountedSends { tensor, data, pipe } = self;
        let ranks = match kind {
            RankGroup::Tensor => tensor,
            RankGroup::Pipe => pipe,
            RankGroup::Zero | RankGroup::TensorZero => data,
        };
        ranks.sent_bytes()
    }
}

impl RankGroups {
    /// The groups of the rank that `world` is of, with `pipeline` stages and `tensor` tensor-parallel ranks.
    /// Collective: every rank of `world` calls it with the same numbers.
    ///
    /// # Errors
    /// A number of ranks that the two do not divide; a failing rank.
    pub fn split(world: Arc<dyn Communicator>, pipeline: usize, tensor: usize) -> Result<Self> {
        let mesh = Mesh::new(world.rank(), world.size(), pipeline, tensor)?;
        let group = |kind| -> Result<Arc<dyn Communicator>> {
            match mesh.group_size(kind) {
                1 => Ok(Arc::new(Solo)),
                size if size == world.size() => Ok(Arc::clone(&world)),
                _ => {
                    let (color, key) = mesh.colour_and_key(kind);
                    Ok(world.split(color, key)?)
                }
            }
        };
        let (tensor, data, pipe) = (group(RankGroup::Tensor)?, group(RankGroup::TensorZero)?, group(RankGroup::Pipe)?);
        Ok(RankGroups { mesh, tensor, data, pipe, world })
    }

    /// The groups of the only rank.
    pub fn solo() -> Self {
        let alone = || -> Arc<dyn Communicator> { Arc::new(Solo) };
        RankGroups { mesh: Mesh::SOLO, tensor: alone(), data: alone(), pipe: alone(), world: alone() }
    }

    /// The groups of a rank whose peers are not there, for [dry runs](crate::dry_run), and what it sends in them.
    ///
    /// # Errors
    /// None of a mesh that exists.
    pub fn counting(mesh: Mesh) -> Result<(Self, CountedSends)> {
        let of = |kind| CountingRank::new(mesh.group_rank(kind), mesh.group_size(kind));
        let sends = CountedSends {
            tensor: of(RankGroup::Tensor)?,
            data: of(RankGroup::TensorZero)?,
            pipe: of(RankGroup::Pipe)?,
        };
        let group = |ranks: &CountingRank| -> Arc<dyn Communicator> {
            if ranks.size() == 1 { Arc::new(Solo) } else { Arc::new(ranks.clone()) }
        };
        let world = group(&CountingRank::new(mesh.rank(), mesh.world())?);
        let (tensor, data, pipe) = (group(&sends.tensor), group(&sends.data), group(&sends.pipe));
        Ok((RankGroups { mesh, tensor, data, pipe, world }, sends))
    }

    /// The rank's position.
    pub fn mesh(&self) -> Mesh {
        self.mesh
    }

    /// All ranks.
    pub fn world(&self) -> &Arc<dyn Communicator> {
        &self.world
    }

    /// The ranks that share one copy of every layer's weights with this one and see the same samples.
    pub fn tensor(&self) -> &Arc<dyn Communicator> {
        &self.tensor
    }

    /// The ranks that hold the same part of every weight as this one and see other samples.
    pub fn data(&self) -> &Arc<dyn Communicator> {
        &self.data
    }

    /// One rank of each pipeline stage, in the order of the stages: what a micro-batch passes through.
    pub fn pipe(&self) -> &Arc<dyn Communicator> {
        &self.pipe
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use bmtrain_core::comm::host::{HostGroup, HostOptions};

    fn sizes(groups: &RankGroups) -> [(usize, usize); 4] {
        [groups.world(), groups.tensor(), groups.data(), groups.pipe()].map(|group| (group.rank(), group.size()))
    }

    #[test]
    fn ranks_that_are_there_and_ranks_that_are_counted_have_the_same_places() {
        for (ranks, pipeline, tensor) in [(1, 1, 1), (2, 1, 1), (2, 1, 2), (4, 1, 2), (6, 1, 3), (2, 2, 1), (8, 2, 2)] {
            let places = std::thread::scope(|scope| {
                let split = |rank| RankGroups::split(Arc::new(rank), pipeline, tensor).unwrap();
                let ranks = HostGroup::threads(ranks, HostOptions::default()).unwrap();
                let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || sizes(&split(rank)))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            for (rank, place) in places.into_iter().enumerate() {
                let mesh = Mesh::new(rank, ranks, pipeline, tensor).unwrap();
                assert_eq!(place, sizes(&RankGroups::counting(mesh).unwrap().0), "rank {rank} of {ranks}");
                let stage = ranks / pipeline;
                let data = (rank % stage / tensor, stage / tensor);
                assert_eq!(place[1..], [(rank % tensor, tensor), data, (rank / stage, pipeline)]);
            }
        }
    }

    #[test]
    fn ranks_that_cannot_be_divided_are_refused() {
        let error = RankGroups::split(Arc::new(Solo), 1, 2).unwrap_err().to_string();
        assert!(error.contains("1 pipeline stages x 2 tensor ranks"), "{error}");
    }
}
