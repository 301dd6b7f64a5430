//! Flat storages and how they are cut over data-parallel ranks.
//!
//! [`Sharding`] says over which ranks and how far; [`layout`] is the arithmetic of who owns what; [`exchange`] moves
//! gradients to their owners, and [`tree`] adds those of several micro-batches in an order of their own.

pub mod collectives;
pub mod layout;
pub mod tree;

pub use layout::{ShardLayout, Span};

use bmtrain_core::comm::{Communicator, Solo};
use std::sync::Arc;

/// What of the training state each data-parallel rank holds a part of only (Rajbhandari et al., 2020).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZeroLevel {
    /// Nothing: every rank holds and updates everything.
    Zero,
    /// Optimizer state.
    One,
    /// Optimizer state and gradients; parameters too between the backward pass and the next forward pass.
    Two,
    /// Parameters as well: a block's are whole only while it works.
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

/// In which order the gradients of micro-batches are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GradientSum {
    /// As they come: over the ranks in one reduction, then over the steps of accumulation. Least memory and exchange;
    /// the bits depend on how many ranks share the batch.
    Fast,
    /// In one binary tree over the micro-batches of the global batch, whichever rank computed them: the bits depend on
    /// the batch alone. Up to `1 + ceil(log2(micro-batches))` gradient shards instead of one.
    Elastic,
}

/// How parameters and their gradients are shared among the data-parallel ranks.
#[derive(Debug, Clone)]
pub struct Sharding {
    /// The data-parallel ranks.
    pub ranks: Arc<dyn Communicator>,
    /// What is cut.
    pub level: ZeroLevel,
    /// How gradients are added.
    pub sum: GradientSum,
    /// Gather the next block while this one computes.
    pub prefetch: bool,
}

impl Sharding {
    /// One rank, which holds everything.
    pub fn solo() -> Self {
        Sharding { ranks: Arc::new(Solo), level: ZeroLevel::Zero, sum: GradientSum::Fast, prefetch: true }
    }

    /// Whether there are other ranks.
    pub fn is_shared(&self) -> bool {
        self.ranks.size() > 1
    }

    /// Whether values at rest are this rank's shards.
    pub fn shards_values(&self) -> bool {
        self.is_shared() && self.level >= ZeroLevel::Two
    }

    /// Whether optimizer state is that of this rank's shards.
    pub fn shards_state(&self) -> bool {
        self.is_shared() && self.level >= ZeroLevel::One
    }

    /// Whether gradients are added anywhere but where they are made.
    pub fn is_reduced(&self) -> bool {
        self.is_shared() || self.sum == GradientSum::Elastic
    }

    /// Whether every micro-batch's gradients are exchanged, rather than those of the whole step at its end.
    pub fn reduces_each_batch(&self) -> bool {
        self.sum == GradientSum::Elastic || self.shards_values()
    }
}

impl Default for Sharding {
    fn default() -> Self {
        Sharding::solo()
    }
}
