//! Sharding of flat storages over data-parallel ranks.
//!
//! [`Sharding`] is the ranks and the ZeRO level; [`layout`] is the arithmetic of shards; `collectives` gathers values
//! and reduces gradients, and `tree` sums the gradients of several micro-batches in an order of its own.

pub(crate) mod collectives;
pub(crate) mod host;
pub mod layout;
mod tree;

pub use layout::{ShardLayout, Span};

use bmtrain_core::comm::{Communicator, Solo};
use std::sync::Arc;

/// Part of the training state that is sharded over data-parallel ranks (Rajbhandari et al., 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZeroLevel {
    /// Nothing: every rank stores and updates everything.
    Zero,
    /// Optimizer state.
    One,
    /// Optimizer state and gradients; parameters too between the backward pass and the next forward pass.
    Two,
    /// Parameters as well: a block is gathered only while it computes.
    Three,
}

impl ZeroLevel {
    /// From its number.
    pub fn from_number(level: u64) -> Option<Self> {
        [ZeroLevel::Zero, ZeroLevel::One, ZeroLevel::Two, ZeroLevel::Three]
            .into_iter()
            .nth(usize::try_from(level).ok()?)
    }

    /// Its number.
    pub fn number(self) -> u64 {
        self as u64
    }
}

/// The order in which the gradients of micro-batches are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GradientSum {
    /// Over the ranks in one reduction, then over the accumulation steps. Least memory and communication; the bits
    /// depend on the number of ranks that share the batch.
    Fast,
    /// In one binary tree over the micro-batches of the global batch, whichever rank computed them: the bits depend on
    /// the batch alone. Up to `1 + ceil(log2(micro-batches))` gradient shards instead of one.
    Elastic,
}

/// Sharding of parameters, gradients and optimizer state over the data-parallel ranks.
#[derive(Debug, Clone)]
pub struct Sharding {
    /// The data-parallel ranks.
    pub ranks: Arc<dyn Communicator>,
    /// Level of sharding.
    pub level: ZeroLevel,
    /// Order in which gradients are summed.
    pub sum: GradientSum,
    /// Gather the next block while this one computes.
    pub prefetch: bool,
}

impl Sharding {
    /// One rank, which stores everything.
    pub fn solo() -> Self {
        Sharding { ranks: Arc::new(Solo), level: ZeroLevel::Zero, sum: GradientSum::Fast, prefetch: true }
    }

    /// Whether there are other ranks.
    pub fn is_shared(&self) -> bool {
        self.ranks.size() > 1
    }

    /// Whether values are sharded at rest.
    pub fn shards_values(&self) -> bool {
        self.is_shared() && self.level >= ZeroLevel::Two
    }

    /// Whether optimizer state is sharded.
    pub fn shards_state(&self) -> bool {
        self.is_shared() && self.level >= ZeroLevel::One
    }

    /// Whether gradients of several contributions are summed after the backward pass.
    pub fn is_reduced(&self) -> bool {
        self.is_shared() || self.sum == GradientSum::Elastic
    }

    /// Whether gradients are reduced after every micro-batch rather than once a step.
    pub fn reduces_each_batch(&self) -> bool {
        self.sum == GradientSum::Elastic || self.shards_values()
    }
}

impl Default for Sharding {
    fn default() -> Self {
        Sharding::solo()
    }
}
