//! The ranges of parameters in a flat storage, and its shards. Pure arithmetic.
//!
//! Every parameter starts at a multiple of [`STATE_BLOCK`] elements; of the storage's blocks of this size each rank
//! owns `ceil(blocks / world)`, without regard to parameter borders, so that one collective per storage gathers
//! everything. Source: the predecessor's rule, which cuts between any two elements; whole blocks let the norm of the
//! gradients have the same bits on any number of ranks ([`bmtrain_core::kernel::NORM_CHUNK`]), and let a block of 8-bit
//! moments and its scale be on one rank.

use bmtrain_core::DType;
use bmtrain_core::kernel::STATE_BLOCK;
use bmtrain_core::pool::ALIGNMENT;
use std::ops::Range;

/// A parameter inside a flat storage, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

impl Span {
    /// As a range.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// The layout of one flat storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardLayout {
    spans: Vec<Span>,
    shard: usize,
    world: usize,
}

impl ShardLayout {
    /// The layout of parameters of these lengths, in this order, for `world` ranks.
    pub fn new(dtype: DType, lengths: &[usize], world: usize) -> Self {
        let boundary = (ALIGNMENT / dtype.size()).max(STATE_BLOCK);
        let mut end = 0usize;
        let spans = lengths
            .iter()
            .map(|&len| {
                let start = end.next_multiple_of(boundary);
                end = start + len;
                Span { start, len }
            })
            .collect();
        let world = world.max(1);
        // One rank needs no shards, and no padding after the last parameter.
        let shard = if world == 1 { end } else { end.div_ceil(boundary).div_ceil(world) * boundary };
        ShardLayout { spans, shard, world }
    }

    /// The parameters, in the order they were given.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Elements of one rank's shard, padding of the last one included.
    pub fn shard_len(&self) -> usize {
        self.shard
    }

    /// Elements of the gathered storage: a whole number of shards.
    pub fn gathered_len(&self) -> usize {
        self.shard * self.world
    }

    /// The range of the gathered storage that a rank owns.
    pub fn owned(&self, rank: usize) -> Range<usize> {
        self.shard * rank..self.shard * (rank + 1)
    }

    /// The part of parameter `index` that a rank owns, in elements of that parameter; empty when it owns none.
    pub fn owned_part(&self, index: usize, rank: usize) -> Range<usize> {
        let Some(span) = self.spans.get(index) else { return 0..0 };
        let owned = self.owned(rank);
        let start = owned.start.clamp(span.start, span.start + span.len) - span.start;
        let end = owned.end.clamp(span.start, span.start + span.len) - span.start;
        start..end
    }
}
