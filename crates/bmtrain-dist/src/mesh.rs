//! Where a rank stands: pipeline x data x tensor, tensor fastest.
//!
//! Pure arithmetic, the predecessor's formulas. Communication between the ranks of a group is not here.

use crate::error::{Error, Result};

/// The place of one rank among all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mesh {
    rank: usize,
    world: usize,
    pipeline: usize,
    tensor: usize,
}

impl Mesh {
    /// The only rank.
    pub const SOLO: Mesh = Mesh { rank: 0, world: 1, pipeline: 1, tensor: 1 };

    /// Rank `rank` of `world` ranks, `pipeline` stages deep and `tensor` ranks wide.
    ///
    /// # Errors
    /// A size of 0, a world that is not a multiple of `pipeline * tensor`, a rank outside the world.
    pub fn new(rank: usize, world: usize, pipeline: usize, tensor: usize) -> Result<Self> {
        let cell = pipeline.checked_mul(tensor).unwrap_or(0);
        if cell == 0 || world == 0 || !world.is_multiple_of(cell) {
            let reason = format!("{world} ranks cannot be cut into {pipeline} pipeline stages x {tensor} tensor ranks");
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

    /// Number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Number of pipeline stages, P.
    pub fn pipeline_size(&self) -> usize {
        self.pipeline
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
        self.rank % self.stage_size() / self.tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(Mesh::new(0, 4, usize::MAX, 2).is_err());
    }
}
