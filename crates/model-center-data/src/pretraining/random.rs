//! Random numbers of a sample, addressed by seed, purpose and sample.
//!
//! Defines [`SampleRandom`], which the objectives of this module use for every choice. There is no state between
//! samples: the numbers of a sample are the same in any order of samples, in any thread and after any resume.

use bmtrain_core::philox::{Key, block};

/// The random numbers of one sample for one purpose, in the order they are asked for.
#[derive(Debug, Clone)]
pub(super) struct SampleRandom {
    key: Key,
    sample: u64,
    next: u32,
    words: [u32; 4],
}

impl SampleRandom {
    /// The numbers of a sample under the key of seed and purpose.
    pub(super) fn new(key: Key, sample: u64) -> SampleRandom {
        SampleRandom { key, sample, next: 0, words: [0; 4] }
    }

    fn word(&mut self) -> u32 {
        let at = (self.next % 4) as usize;
        if at == 0 {
            let sample = [self.sample as u32, (self.sample >> 32) as u32];
            self.words = block(self.key, [self.next / 4, sample[0], sample[1], 0]);
        }
        self.next = self.next.wrapping_add(1);
        self.words[at]
    }

    /// An integer of 64 bits.
    fn long(&mut self) -> u64 {
        u64::from(self.word()) << 32 | u64::from(self.word())
    }

    /// An integer below `count`; 0 for a count of 0.
    pub(super) fn below(&mut self, count: u64) -> u64 {
        ((u128::from(self.long()) * u128::from(count)) >> 64) as u64
    }

    /// An index below `count`.
    pub(super) fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// A number from 0 to below 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.long() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Permutes the items.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.index(at + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_depend_on_seed_purpose_and_sample_alone_and_are_frozen() {
        let numbers = |key, sample| {
            let mut random = SampleRandom::new(key, sample);
            [random.below(1000), random.below(1000), random.below(1000)]
        };
        let key = Key::new(7, "masked positions");
        assert_eq!(numbers(key, 3), numbers(key, 3));
        for other in [numbers(key, 4), numbers(key, 3 + (1 << 32)), numbers(Key::new(8, "masked positions"), 3)] {
            assert_ne!(numbers(key, 3), other);
        }
        assert_ne!(numbers(key, 3), numbers(Key::new(7, "masked tokens"), 3));
    }

    #[test]
    fn integers_and_permutations_are_even() {
        let mut random = SampleRandom::new(Key::new(1, "test"), 0);
        let mut counts = [0_i64; 6];
        (0..60_000).for_each(|_| counts[random.index(6)] += 1);
        // Five standard deviations of a binomial: 5 sqrt(60000 / 6 · 5 / 6).
        assert!(counts.iter().all(|count| (count - 10_000).abs() < 457), "{counts:?}");
        let mut places = [[0_i64; 4]; 4];
        for _ in 0..40_000 {
            let mut items = [0, 1, 2, 3];
            random.shuffle(&mut items);
            items.iter().enumerate().for_each(|(at, item)| places[at][*item] += 1);
        }
        assert!(places.iter().flatten().all(|count| (count - 10_000).abs() < 434), "{places:?}");
        assert_eq!((random.below(0), random.below(1)), (0, 0));
    }
}
