//! The collectives of one flat storage: reduce-scatter of gradients, all-gather of values.
//!
//! All of them run on the Zero lane, after what the compute lane has done so far, so that they overlap with the next
//! block. Called by [`Flat`](crate::param::Flat).

use super::tree::{SumTree, add};
use super::{GradientSum, ShardLayout, Sharding};
use crate::error::Result;
use bmtrain_core::comm::{Collective, Reduction};
use bmtrain_core::{DType, Device, Lane, Segment, Storage};
use std::ops::Range;

/// Elements that one rank sends to another at a time in the elastic order, where no rank adds on behalf of another: the
/// all-to-all needs two buffers of this number of elements for each rank.
const SLICE: usize = 1 << 16;

/// The reduced gradients of one storage since the last step, of this rank's shard.
#[derive(Debug)]
pub(crate) enum Sums {
    /// One sum.
    Shard(Storage),
    /// Sums of groups of micro-batches.
    Tree(SumTree),
}

pub(crate) struct ShardCollectives<'a> {
    pub(crate) device: &'a Device,
    pub(crate) sharding: &'a Sharding,
    pub(crate) layout: &'a ShardLayout,
    pub(crate) dtype: DType,
}

impl ShardCollectives<'_> {
    /// Add the full gradients of one micro-batch of every rank to the sums of this rank's shard.
    pub(crate) fn add_batch(&self, full: &Storage, sums: Option<Sums>) -> Result<Sums> {
        self.follow_compute()?;
        Ok(match (self.sharding.sum, sums) {
            (GradientSum::Fast, Some(Sums::Shard(sum))) => {
                self.add(&self.reduce_scatter(full)?, &sum)?;
                Sums::Shard(sum)
            }
            (GradientSum::Fast, _) => Sums::Shard(self.reduce_scatter(full)?),
            (GradientSum::Elastic, sums) => {
                let mut tree = if let Some(Sums::Tree(tree)) = sums { tree } else { SumTree::default() };
                self.insert(full, &mut tree)?;
                Sums::Tree(tree)
            }
        })
    }

    /// The sum of everything that was added, of this rank's shard.
    pub(crate) fn finish(&self, sums: Sums) -> Result<Option<Storage>> {
        match sums {
            Sums::Shard(sum) => Ok(Some(sum)),
            Sums::Tree(tree) => tree.finish(self.device),
        }
    }

    /// Add a term to a sum of the same length, after the collectives so far.
    pub(crate) fn add(&self, term: &Storage, sum: &Storage) -> Result<()> {
        add(self.device, (term, 0..term.len()), (sum, 0..sum.len()))
    }

    pub(crate) fn peek(&self, sums: &Sums) -> Result<Option<Storage>> {
        match sums {
            Sums::Shard(sum) => Ok(Some(sum.clone())),
            Sums::Tree(tree) => tree.peek(self.device),
        }
    }

    /// This rank's shard of the sum over the ranks.
    pub(crate) fn reduce_scatter(&self, full: &Storage) -> Result<Storage> {
        let _reduce = tracing::debug_span!("reduce").entered();
        self.follow_compute()?;
        let shard =
            Storage::empty_on(self.device, self.layout.shard_len(), self.dtype, Segment::Gradients, Lane::Zero)?;
        let send = full.view_on(0..full.len(), Lane::Zero)?;
        let recv = shard.view_mut_on(0..shard.len(), Lane::Zero)?;
        self.launch(Collective::ReduceScatter { send, recv, by: Reduction::Sum })?;
        Ok(shard)
    }

    pub(crate) fn all_reduce(&self, full: &Storage) -> Result<()> {
        let _reduce = tracing::debug_span!("reduce").entered();
        self.follow_compute()?;
        let data = full.view_mut_on(0..full.len(), Lane::Zero)?;
        self.launch(Collective::AllReduce { data, by: Reduction::Sum })
    }

    /// All shards of a storage that is cut like this layout, in the order of the ranks.
    pub(crate) fn all_gather(&self, shard: &Storage, segment: Segment) -> Result<Storage> {
        let len = shard.len() * self.sharding.ranks.size();
        let full = Storage::empty_on(self.device, len, shard.dtype(), segment, Lane::Zero)?;
        self.all_gather_into(shard, &full)?;
        Ok(full)
    }

    /// All-gather into an existing storage.
    pub(crate) fn all_gather_into(&self, shard: &Storage, full: &Storage) -> Result<()> {
        let _gather = tracing::debug_span!("gather").entered();
        self.follow_compute()?;
        let send = shard.view_on(0..shard.len(), Lane::Zero)?;
        let recv = full.view_mut_on(0..full.len(), Lane::Zero)?;
        self.launch(Collective::AllGather { send, recv })
    }

    /// Send every rank its shard of this rank's gradients and insert what arrives, in the order of the ranks, which is
    /// the order of the micro-batches.
    fn insert(&self, full: &Storage, tree: &mut SumTree) -> Result<()> {
        let _reduce = tracing::debug_span!("reduce").entered();
        let (ranks, shard) = (self.sharding.ranks.size(), self.layout.shard_len());
        if ranks == 1 {
            let all = std::iter::once(0..shard);
            return tree.insert(self.device, (shard, self.dtype), 1, all, |slice, _| Ok((full.clone(), slice.start)));
        }
        let slice = SLICE.min(shard);
        let buffer = || Storage::empty_on(self.device, slice * ranks, self.dtype, Segment::Gradients, Lane::Zero);
        let (packed, arrived) = (buffer()?, buffer()?);
        let slices = (0..shard).step_by(slice.max(1)).map(|start| start..(start + slice).min(shard));
        let mut present = None;
        tree.insert(self.device, (shard, self.dtype), ranks, slices, |slice, leaf| {
            if present.as_ref() != Some(slice) {
                self.send_slice(full, &packed, &arrived, slice)?;
                present = Some(slice.clone());
            }
            Ok((arrived.clone(), leaf * slice.len()))
        })
    }

    /// Sends the same range of every shard to its owner.
    fn send_slice(&self, full: &Storage, packed: &Storage, arrived: &Storage, slice: &Range<usize>) -> Result<()> {
        let (ranks, shard, len) = (self.sharding.ranks.size(), self.layout.shard_len(), slice.len());
        let backend = self.device.backend();
        for rank in 0..ranks {
            let start = rank * shard + slice.start;
            let from = full.view_on(start..start + len, Lane::Zero)?;
            let to = packed.view_mut_on(rank * len..(rank + 1) * len, Lane::Zero)?;
            backend.copy(from, to, Lane::Zero)?;
        }
        let send = packed.view_on(0..ranks * len, Lane::Zero)?;
        let recv = arrived.view_mut_on(0..ranks * len, Lane::Zero)?;
        self.launch(Collective::AllToAll { send, recv })
    }

    fn launch(&self, collective: Collective<'_>) -> Result<()> {
        Ok(self.sharding.ranks.launch(self.device.backend(), collective, Lane::Zero)?)
    }

    /// Let the zero lane wait for what the compute lane has done so far.
    pub(crate) fn follow_compute(&self) -> Result<()> {
        let backend = self.device.backend();
        Ok(backend.wait(Lane::Zero, backend.mark(Lane::Compute)?)?)
    }
}
