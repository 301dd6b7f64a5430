//! Gradients on their way from the rank that computed them to the rank that owns their parameters.
//!
//! Everything here is given to the Zero lane, behind what the compute lane has done so far, so that it happens while
//! the next block computes. Called by [`Flat`](crate::param::Flat).

use super::tree::Tree;
use super::{GradientSum, ShardLayout, Sharding};
use crate::error::Result;
use bmtrain_core::comm::{Collective, Reduction};
use bmtrain_core::kernel::AddScaled;
use bmtrain_core::{DType, Device, Lane, Segment, Storage};
use std::ops::Range;

/// Elements that one rank sends to another at a time in the elastic order, where nothing is added on the way: two
/// buffers of this many elements for each rank are all the memory that the exchange takes.
const SLICE: usize = 1 << 16;

/// What has arrived of the gradients of one storage since the last step, for this rank's shard.
#[derive(Debug, Default)]
pub(crate) enum Sums {
    /// Nothing.
    #[default]
    Empty,
    /// Their sum.
    Shard(Storage),
    /// Sums of parts.
    Tree(Tree),
}

/// One storage's gradients and how they are cut.
pub(crate) struct Exchange<'a> {
    pub(crate) device: &'a Device,
    pub(crate) sharding: &'a Sharding,
    pub(crate) layout: &'a ShardLayout,
    pub(crate) dtype: DType,
}

impl Exchange<'_> {
    /// Add the gradients of one micro-batch of every rank, all of them whole, to the sums of this rank's shard.
    pub(crate) fn add_batch(&self, whole: &Storage, sums: &mut Sums) -> Result<()> {
        self.follow_compute()?;
        match self.sharding.sum {
            GradientSum::Fast => {
                let arrived = self.reduce_scatter(whole)?;
                match sums {
                    Sums::Shard(sum) => self.add(&arrived, sum),
                    _ => {
                        *sums = Sums::Shard(arrived);
                        Ok(())
                    }
                }
            }
            GradientSum::Elastic => {
                if !matches!(sums, Sums::Tree(_)) {
                    *sums = Sums::Tree(Tree::default());
                }
                let Sums::Tree(tree) = sums else { return Ok(()) };
                self.insert(whole, tree)
            }
        }
    }

    /// The sum of everything that was added, for this rank's shard.
    pub(crate) fn finish(&self, sums: &mut Sums) -> Result<Option<Storage>> {
        match std::mem::take(sums) {
            Sums::Empty => Ok(None),
            Sums::Shard(sum) => Ok(Some(sum)),
            Sums::Tree(mut tree) => tree.finish(self.device),
        }
    }

    /// Add a term to a sum of the same length, behind what was exchanged before.
    pub(crate) fn add(&self, term: &Storage, sum: &Storage) -> Result<()> {
        let a = term.view_on(0..term.len(), Lane::Zero)?;
        let out = sum.view_mut_on(0..sum.len(), Lane::Zero)?;
        Ok(self.device.launch_on(AddScaled { alpha: 1.0, a, beta: 1.0, b: None, out }, Lane::Zero)?)
    }

    /// The sum of everything that was added so far, to look at: it goes on as before.
    pub(crate) fn look(&self, sums: &Sums) -> Result<Option<Storage>> {
        match sums {
            Sums::Empty => Ok(None),
            Sums::Shard(sum) => Ok(Some(sum.clone())),
            Sums::Tree(tree) => tree.look(self.device),
        }
    }

    /// This rank's shard of the sum over the ranks.
    pub(crate) fn reduce_scatter(&self, whole: &Storage) -> Result<Storage> {
        self.follow_compute()?;
        let shard =
            Storage::empty_on(self.device, self.layout.shard_len(), self.dtype, Segment::Gradients, Lane::Zero)?;
        let send = whole.view_on(0..whole.len(), Lane::Zero)?;
        let recv = shard.view_mut_on(0..shard.len(), Lane::Zero)?;
        let collective = Collective::ReduceScatter { send, recv, by: Reduction::Sum };
        self.sharding.ranks.launch(self.device.backend(), collective, Lane::Zero)?;
        Ok(shard)
    }

    /// The sum over the ranks, in place.
    pub(crate) fn all_reduce(&self, whole: &Storage) -> Result<()> {
        self.follow_compute()?;
        let data = whole.view_mut_on(0..whole.len(), Lane::Zero)?;
        let collective = Collective::AllReduce { data, by: Reduction::Sum };
        Ok(self.sharding.ranks.launch(self.device.backend(), collective, Lane::Zero)?)
    }

    /// All shards of a storage of this layout, one behind the other.
    pub(crate) fn all_gather(&self, shard: &Storage, segment: Segment) -> Result<Storage> {
        let whole = Storage::empty_on(self.device, self.layout.gathered_len(), shard.dtype(), segment, Lane::Zero)?;
        self.all_gather_into(shard, &whole)?;
        Ok(whole)
    }

    /// The same into a storage that is there already.
    pub(crate) fn all_gather_into(&self, shard: &Storage, whole: &Storage) -> Result<()> {
        self.follow_compute()?;
        let send = shard.view_on(0..shard.len(), Lane::Zero)?;
        let recv = whole.view_mut_on(0..whole.len(), Lane::Zero)?;
        let collective = Collective::AllGather { send, recv };
        Ok(self.sharding.ranks.launch(self.device.backend(), collective, Lane::Zero)?)
    }

    /// Send every rank its shard of this rank's gradients and insert what arrives, in the order of the ranks, which is
    /// that of the micro-batches.
    fn insert(&self, whole: &Storage, tree: &mut Tree) -> Result<()> {
        let (ranks, shard) = (self.sharding.ranks.size(), self.layout.shard_len());
        if ranks == 1 {
            let all = std::iter::once(0..shard);
            return tree.insert(self.device, (shard, self.dtype), 1, all, |slice, _| Ok((whole.clone(), slice.start)));
        }
        let slice = SLICE.min(shard);
        let buffer = || Storage::empty_on(self.device, slice * ranks, self.dtype, Segment::Gradients, Lane::Zero);
        let (packed, arrived) = (buffer()?, buffer()?);
        let slices = (0..shard).step_by(slice.max(1)).map(|start| start..(start + slice).min(shard));
        let mut present = None;
        tree.insert(self.device, (shard, self.dtype), ranks, slices, |slice, leaf| {
            if present.as_ref() != Some(slice) {
                self.send_slice(whole, &packed, &arrived, slice)?;
                present = Some(slice.clone());
            }
            Ok((arrived.clone(), leaf * slice.len()))
        })
    }

    /// The same range of every shard goes to its owner.
    fn send_slice(&self, whole: &Storage, packed: &Storage, arrived: &Storage, slice: &Range<usize>) -> Result<()> {
        let (ranks, shard, len) = (self.sharding.ranks.size(), self.layout.shard_len(), slice.len());
        let backend = self.device.backend();
        for rank in 0..ranks {
            let start = rank * shard + slice.start;
            let from = whole.view_on(start..start + len, Lane::Zero)?;
            let to = packed.view_mut_on(rank * len..(rank + 1) * len, Lane::Zero)?;
            backend.copy(from, to, Lane::Zero)?;
        }
        let send = packed.view_on(0..ranks * len, Lane::Zero)?;
        let recv = arrived.view_mut_on(0..ranks * len, Lane::Zero)?;
        Ok(self.sharding.ranks.launch(backend, Collective::AllToAll { send, recv }, Lane::Zero)?)
    }

    fn follow_compute(&self) -> Result<()> {
        let backend = self.device.backend();
        Ok(backend.wait(Lane::Zero, backend.mark(Lane::Compute)?)?)
    }
}
