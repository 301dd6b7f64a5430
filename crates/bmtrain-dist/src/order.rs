//! A shuffled order that is computed, not stored.
//!
//! Defines [`Permutation`]: the place of any index in a random order of `n` items, in constant time and memory. It
//! is a Feistel network over the bits of the index, keyed by frozen Philox, with cycle walking for sizes that are no
//! power of two (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). Since the order is a pure function
//! of seed, epoch and index, a run resumes from two integers and no rank stores or sends a permutation.
//! Called by the loader of model-center and by its corpora.

use bmtrain_core::philox::{Key, block};

/// Eight passes over each half. With 10 rounds the neighbours in orders of five items are measurably uneven.
const ROUNDS: u32 = 16;
/// Largest supported number of items: a half index and the round number share one 32-bit word of the counter.
const MAX_ITEMS: u64 = 1 << 48;

/// A bijection of `0..n`, fixed for all versions of this crate by its key and stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permutation {
    key: Key,
    stream: [u32; 3],
    items: u64,
    left_bits: u32,
    right_bits: u32,
}

impl Permutation {
    /// The order number `stream` under `key`, of `items` items (at most 2^48; more are treated as 2^48).
    pub fn new(key: Key, stream: [u32; 3], items: u64) -> Permutation {
        let items = items.min(MAX_ITEMS);
        let bits = u64::BITS - items.saturating_sub(1).leading_zeros();
        Permutation { key, stream, items, left_bits: bits / 2, right_bits: bits - bits / 2 }
    }

    /// Number of items.
    pub fn len(&self) -> u64 {
        self.items
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.items == 0
    }

    /// The item at `index`, `None` beyond the end.
    pub fn at(&self, index: u64) -> Option<u64> {
        if index >= self.items {
            return None;
        }
        // The network permutes the next power of two, which is less than twice `items`. Following the cycle of a
        // valid index must come back to a valid one, after two steps on average.
        let mut item = self.network(index);
        while item >= self.items {
            item = self.network(item);
        }
        Some(item)
    }

    fn network(&self, index: u64) -> u64 {
        let mask = |bits: u32| (1_u64 << bits) - 1;
        let (mut left, mut right) = (index >> self.right_bits, index & mask(self.right_bits));
        for round in 0..ROUNDS {
            if round % 2 == 0 {
                left ^= self.random(round, right) & mask(self.left_bits);
            } else {
                right ^= self.random(round, left) & mask(self.right_bits);
            }
        }
        left << self.right_bits | right
    }

    fn random(&self, round: u32, half: u64) -> u64 {
        let [a, b, c] = self.stream;
        u64::from(block(self.key, [round << 24 | half as u32, a, b, c])[0])
    }
}
