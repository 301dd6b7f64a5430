//! A shuffled order that is computed, not stored.
//!
//! Defines [`Permutation`]: the place of any index in a random order of `n` items, in constant time and memory. It
//! is a Feistel network over the bits of the index, keyed by frozen Philox, with cycle walking for sizes that are no
//! power of two (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). Since the order is a pure function
//! of seed, epoch and index, a run resumes from two integers and no rank stores or sends a permutation.
//! Used by [`super::loader`].

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

#[cfg(test)]
mod tests {
    use super::*;

    fn order(seed: u64, epoch: u32, items: u64) -> Vec<u64> {
        let order = Permutation::new(Key::new(seed, "test"), [epoch, 0, 0], items);
        (0..items).map(|index| order.at(index).unwrap()).collect()
    }

    #[test]
    fn every_size_gives_a_bijection() {
        let large = [1000, 1023, 1024, 1025, 4097, 65_535, 65_536, 65_537, 100_003];
        for items in (0..300).chain(large) {
            let mut seen = order(items, 3, items);
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..items), "{items}");
        }
    }

    #[test]
    fn huge_sets_work_without_memory() {
        let order = Permutation::new(Key::new(1, "test"), [0, 0, 0], u64::MAX);
        assert_eq!(order.len(), 1 << 48);
        let items: std::collections::HashSet<u64> = (0..1000).map(|index| order.at(index).unwrap()).collect();
        assert_eq!(items.len(), 1000);
        assert!(items.iter().all(|item| *item < 1 << 48));
        assert_eq!(order.at(1 << 48), None);
    }

    /// Orders are part of what a resumed run must reproduce, so these values may never change.
    #[test]
    fn orders_are_frozen() {
        assert_eq!(order(0, 0, 10), FROZEN_SEED_0);
        assert_eq!(order(7, 2, 10), FROZEN_SEED_7);
    }
    const FROZEN_SEED_0: [u64; 10] = [6, 8, 2, 5, 0, 4, 7, 3, 1, 9];
    const FROZEN_SEED_7: [u64; 10] = [7, 4, 5, 6, 9, 8, 0, 2, 1, 3];

    #[test]
    fn seeds_and_epochs_give_unrelated_orders() {
        let base = order(1, 0, 1000);
        for other in [order(2, 0, 1000), order(1, 1, 1000)] {
            let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert!(same < 10, "{same} fixed places; about one is expected");
        }
    }

    /// Over 24,000 orders every item must be at every place, and every pair of neighbours occur, about equally
    /// often.
    #[test]
    fn places_and_neighbours_are_uniform() {
        const ORDERS: u64 = 24_000;
        for items in 2_u64..=9 {
            let n = items as usize;
            let mut places = vec![0_f64; n * n];
            let mut neighbours = vec![0_f64; n * n];
            for seed in 0..ORDERS {
                let order = order(seed, 0, items);
                for (place, item) in order.iter().enumerate() {
                    places[place * n + *item as usize] += 1.0;
                }
                for pair in order.windows(2) {
                    neighbours[pair[0] as usize * n + pair[1] as usize] += 1.0;
                }
            }
            let chi_square = |counts: &[f64], expected: f64| {
                counts.iter().map(|count| (count - expected).powi(2) / expected).sum::<f64>()
            };
            // Mean of chi-square = degrees of freedom f, deviation sqrt(2 f); five deviations allow no visible bias.
            let bound = |freedom: f64| freedom + 5.0 * (2.0 * freedom).sqrt();
            let places = chi_square(&places, ORDERS as f64 / n as f64);
            assert!(places < bound(((n - 1) * (n - 1)) as f64), "{items} items: {places}");
            let off_diagonal: Vec<f64> = (0..n * n).filter(|at| at / n != at % n).map(|at| neighbours[at]).collect();
            let expected = ORDERS as f64 / n as f64;
            let neighbours = chi_square(&off_diagonal, expected);
            // Neighbour counts are slightly dependent; n (n - 1) cells bound the freedom from above.
            assert!(neighbours < bound((n * (n - 1)) as f64), "{items} items: {neighbours}");
        }
    }
}
