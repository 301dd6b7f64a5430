//! How ranks share a model in three dimensions, and the batch that they take.

use super::sizes::TransformerSizes;
use crate::{Error, Result};
use bmtrain_dist::Mesh;
use bmtrain_dist::mesh::RankGroup;
use bmtrain_dist::pipeline::{Schedule, ScheduleKind};
use bmtrain_dist::shard::ZeroLevel;

/// More ranks than any machine room has.
const MAX_RANKS: usize = 1 << 16;
/// More than any batch.
const MAX_TOKENS: usize = 1 << 40;

/// Ranks in three dimensions, the schedule of their pipeline, what is sharded, and the micro-batches of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParallelLayout {
    /// Ranks that share every layer's weights.
    pub tensor: usize,
    /// Stages, P.
    pub pipeline: usize,
    /// Ranks that see different samples.
    pub data: usize,
    /// Training state that the data-parallel ranks shard.
    pub zero: ZeroLevel,
    /// The schedule of the pipeline.
    pub schedule: ScheduleKind,
    /// Chunks of the model on each rank.
    pub chunks: usize,
    /// L, tokens of a sequence.
    pub length: usize,
    /// B, sequences of a micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of each data-parallel rank in a step.
    pub micro_batches: usize,
    /// Whether blocks are computed again in the backward pass.
    pub recompute: bool,
    /// Whether gathers and reductions between data-parallel ranks overlap with computation.
    pub overlap: bool,
    /// Whether all-reduces between tensor-parallel ranks overlap with the products before and after them.
    pub overlap_tensor: bool,
    /// Bytes of a value of parameters and hidden states.
    pub value_bytes: usize,
    /// Bytes of a value of the gradients that ranks reduce.
    pub gradient_bytes: usize,
}

impl ParallelLayout {
    /// All ranks.
    pub fn ranks(&self) -> usize {
        self.tensor.saturating_mul(self.pipeline).saturating_mul(self.data)
    }

    /// Sequences of a step, over all ranks.
    pub fn batch(&self) -> usize {
        self.data.saturating_mul(self.micro_batch).saturating_mul(self.micro_batches)
    }

    /// Tokens of a micro-batch.
    pub fn tokens(&self) -> f64 {
        self.micro_batch as f64 * self.length as f64
    }

    /// Blocks of each chunk of a rank. A model whose blocks do not divide is refused by
    /// [`ParallelLayout::schedule`].
    pub fn blocks_of_chunk(&self, sizes: &TransformerSizes) -> f64 {
        sizes.layers as f64 / (self.pipeline * self.chunks) as f64
    }

    /// Bytes of the hidden states of a micro-batch.
    pub fn hidden_bytes(&self, sizes: &TransformerSizes) -> f64 {
        self.tokens() * sizes.width as f64 * self.value_bytes as f64
    }

    /// Bytes of the hidden states that a rank sends to the next stage for a micro-batch: each of the tensor-parallel
    /// ranks sends a part.
    pub fn message_bytes(&self, sizes: &TransformerSizes) -> f64 {
        self.hidden_bytes(sizes) / self.tensor as f64
    }

    /// The schedule, after a check of all numbers against the model; `place` names their source.
    ///
    /// # Errors
    /// Numbers that are 0 or beyond any machine, heads or widths that the tensor-parallel ranks do not divide, blocks
    /// that the chunks do not divide, and what the schedule refuses.
    pub fn schedule(&self, sizes: &TransformerSizes, place: &str) -> Result<Schedule> {
        let refuse = |name: &str, reason: String, fix: &str| {
            Err(Error::argument(format!("{place}, {name}"), reason, fix.to_owned()))
        };
        let product = [self.tensor, self.pipeline, self.data]
            .iter()
            .try_fold(1_usize, |ranks, &size| ranks.checked_mul(size).filter(|&ranks| ranks > 0));
        if product.is_none_or(|ranks| ranks > MAX_RANKS) {
            let reason = format!(
                "{} tensor x {} pipeline x {} data ranks; expected 1 to {MAX_RANKS} in all",
                self.tensor, self.pipeline, self.data
            );
            return refuse("ranks", reason, "change one of the three");
        }
        let tokens = [self.data, self.micro_batch, self.micro_batches, self.length]
            .iter()
            .try_fold(1_usize, |tokens, &size| tokens.checked_mul(size).filter(|&tokens| tokens > 0));
        if tokens.is_none_or(|tokens| tokens > MAX_TOKENS) {
            let reason = format!(
                "{} micro-batches of {} sequences of {} tokens on {} data ranks; expected 1 to {MAX_TOKENS} tokens",
                self.micro_batches, self.micro_batch, self.length, self.data
            );
            return refuse("batch", reason, "change one of them");
        }
        for (name, size) in [("heads", sizes.heads), ("feed_forward", sizes.feed_forward)] {
            if !size.is_multiple_of(self.tensor) {
                let reason = format!("{size} are not divided by {} tensor-parallel ranks", self.tensor);
                return refuse(name, reason, "give a number of tensor-parallel ranks that divides it");
            }
        }
        let chunks = self.pipeline.saturating_mul(self.chunks);
        if chunks == 0 || !sizes.layers.is_multiple_of(chunks) {
            let reason = format!(
                "{} blocks are not divided by {} stages of {} chunks",
                sizes.layers, self.pipeline, self.chunks
            );
            return refuse("layers", reason, "give stages and chunks whose product divides the blocks");
        }
        Ok(Schedule::new(self.schedule, self.pipeline, self.chunks, self.micro_batches)?)
    }

    /// The position of the first rank of a stage, which has most neighbours on its host.
    ///
    /// # Errors
    /// Numbers that [`ParallelLayout::schedule`] refuses.
    pub fn mesh(&self, stage: usize) -> Result<Mesh> {
        Ok(Mesh::new(stage * self.tensor * self.data, self.ranks(), self.pipeline, self.tensor)?)
    }

    /// Members of the first group of a kind, and how many hosts of `ranks_per_host` ranks they are on.
    ///
    /// # Errors
    /// As [`ParallelLayout::mesh`].
    pub fn spread(&self, kind: RankGroup, ranks_per_host: usize) -> Result<(usize, usize)> {
        let ranks = self.mesh(0)?.group_ranks(kind);
        let mut hosts: Vec<usize> = ranks.iter().map(|rank| rank / ranks_per_host.max(1)).collect();
        hosts.dedup();
        Ok((ranks.len(), hosts.len()))
    }
}
