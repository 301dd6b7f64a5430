//! Similarity of texts by their shingles, and signatures that find similar ones.
//!
//! Defines [`shingles`], [`Similarity`] and [`MinHash`]. A text is the set of its runs of five characters; two texts
//! are as similar as the Jaccard index of their sets. The minimum of a random hash over a set is the same for two sets
//! with that probability, and with b bands of r minima two texts share a band with probability 1 - (1 - J^r)^b.

use bmtrain_core::philox::{Key, block};

/// Characters of a shingle.
const SHINGLE: usize = 5;

/// Similarity of two sets, from the sizes of intersection, smaller set and larger set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Similarity {
    /// Shingles in common over all shingles of both: the Jaccard index.
    #[default]
    Union,
    /// Shingles in common over the size of the smaller set.
    Min,
    /// Shingles in common over the size of the larger set.
    Max,
}

impl Similarity {
    /// Similarity of two sorted sets without repetitions; 0 if either is empty.
    pub(super) fn of(self, a: &[u64], b: &[u64]) -> f64 {
        if a.is_empty() || b.is_empty() {
            return 0.0;
        }
        let (mut at, mut other, mut common) = (0, 0, 0_usize);
        while at < a.len() && other < b.len() {
            match a[at].cmp(&b[other]) {
                std::cmp::Ordering::Less => at += 1,
                std::cmp::Ordering::Greater => other += 1,
                std::cmp::Ordering::Equal => {
                    common += 1;
                    at += 1;
                    other += 1;
                }
            }
        }
        let whole = match self {
            Similarity::Union => a.len() + b.len() - common,
            Similarity::Min => a.len().min(b.len()),
            Similarity::Max => a.len().max(b.len()),
        };
        common as f64 / whole as f64
    }
}

/// The finalizer of SplitMix64: neighbouring numbers become unrelated ones.
pub(super) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The hashes of a text's shingles, sorted, each once. A text of fewer than five characters has none.
pub(super) fn shingles(text: &str) -> Vec<u64> {
    let characters: Vec<u32> = text.chars().map(u32::from).collect();
    let hash = |run: &[u32]| run.iter().fold(0_u64, |hash, c| mix(hash.wrapping_add(u64::from(*c) + 1)));
    let mut hashes: Vec<u64> = characters.windows(SHINGLE).map(hash).collect();
    hashes.sort_unstable();
    hashes.dedup();
    hashes
}

/// The hash functions of signatures.
#[derive(Debug, Clone)]
pub(super) struct MinHash {
    /// An odd factor and a summand of each function; its value is the upper half of the product.
    functions: Vec<(u64, u64)>,
    bands: usize,
}

impl MinHash {
    /// `hashes` functions for `bands` bands of equally many, as a function of the seed.
    pub(super) fn new(hashes: usize, bands: usize, seed: u64) -> MinHash {
        let key = Key::new(seed, "minhash");
        let function = |number: usize| {
            let [a, b, c, d] = block(key, [number as u32, 0, 0, 0]);
            let pair = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
            (pair(a, b) | 1, pair(c, d))
        };
        MinHash { functions: (0..hashes).map(function).collect(), bands }
    }

    /// A hash for each band of the signature of a set; `None` for an empty set.
    pub(super) fn bands(&self, shingles: &[u64]) -> Option<Vec<u64>> {
        if shingles.is_empty() {
            return None;
        }
        let minimum = |(factor, summand): &(u64, u64)| {
            let values = shingles.iter().map(|hash| (hash.wrapping_mul(*factor).wrapping_add(*summand) >> 32) as u32);
            values.min().unwrap_or(u32::MAX)
        };
        let signature: Vec<u32> = self.functions.iter().map(minimum).collect();
        let rows = self.functions.len() / self.bands.max(1);
        let hash = |rows: &[u32]| rows.iter().fold(0, |hash: u64, row| mix(hash.wrapping_add(u64::from(*row) + 1)));
        Some(signature.chunks(rows.max(1)).map(hash).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shingles_are_runs_of_five_characters() {
        assert!(shingles("abcd").is_empty());
        // The last run counts, too.
        assert_eq!(shingles("abcdef").len(), 2);
        assert_eq!(shingles("ababababab").len(), 2);
        let (a, b) = (shingles("中文的句子很長"), shingles("中文的句子很短"));
        assert_eq!((a.len(), b.len()), (3, 3));
        assert_eq!(Similarity::Union.of(&a, &b), 2.0 / 4.0);
        assert_eq!(Similarity::Min.of(&a, &shingles("中文的句子")), 1.0);
        assert_eq!(Similarity::Max.of(&a, &shingles("中文的句子")), 1.0 / 3.0);
        assert_eq!(Similarity::Union.of(&a, &[]), 0.0);
    }

    /// Sets of known similarity share a band as often as the formula states.
    #[test]
    fn bands_agree_as_often_as_the_formula_states() {
        let minhash = MinHash::new(100, 10, 1);
        let set = |from: u64, to: u64, salt: u64| {
            let mut set: Vec<u64> = (from..to).map(|n| mix(n ^ (salt << 32))).collect();
            set.sort_unstable();
            set
        };
        // Shared 180 of 200 + 20 - 0: J = 160 / 240 and so on.
        for (shared, own) in [(160, 40), (180, 20), (190, 10)] {
            let expected_similarity = f64::from(shared) / f64::from(shared + 2 * own);
            let mut found = 0;
            let trials = 400;
            for salt in 0..trials {
                let a = set(0, u64::from((shared + own) as u32), salt);
                let b = set(u64::from(own as u32), u64::from((shared + 2 * own) as u32), salt);
                assert!((Similarity::Union.of(&a, &b) - expected_similarity).abs() < 1e-12);
                let (a, b) = (minhash.bands(&a).unwrap(), minhash.bands(&b).unwrap());
                found += u32::from(a.iter().zip(&b).any(|(a, b)| a == b));
            }
            let expected = 1.0 - (1.0 - expected_similarity.powi(10)).powi(10);
            let share = f64::from(found) / trials as f64;
            // Three standard deviations of a share of 400.
            let most = 3.0 * (expected * (1.0 - expected) / trials as f64).sqrt() + 0.005;
            assert!((share - expected).abs() < most, "{shared}: {share} {expected}");
        }
    }
}
