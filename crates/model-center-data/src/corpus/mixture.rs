//! Several corpora with weights.
//!
//! Defines [`CorpusMixture`]: the corpus of sample i, and its number there, are a pure function of seed, weights and i.
//! A loader of pretraining batches is the caller.

use std::sync::{Arc, Mutex, PoisonError};

use bmtrain_core::philox::Key;

use crate::{Error, Result};
use bmtrain_dist::order::Permutation;

/// Samples of a block, in which each corpus has its share exactly.
const BLOCK: u64 = 1 << 16;

/// How much of a mixture a corpus is, compared with the others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MixtureWeight {
    /// This number.
    Number(f64),
    /// Its documents, or its tokens: as if the corpora were one file.
    Size(u64),
}

/// The choices of one block: of each sample, the corpus and its number among the block's samples of that corpus.
type Block = Vec<(u32, u32)>;

/// Chooses samples of several corpora.
///
/// Blocks of 65,536 samples have each corpus in proportion to its weight, up to one sample, in a random order. The
/// samples of one corpus come in their own order, each once.
#[derive(Debug)]
pub struct CorpusMixture {
    /// Where the samples of each corpus end in a block before it is permuted; the last is [`BLOCK`].
    ends: Vec<u64>,
    key: Key,
    last: Mutex<Option<(u64, Arc<Block>)>>,
}

impl CorpusMixture {
    /// A mixture of corpora with weights.
    ///
    /// # Errors
    /// [`Error::Argument`] for weights that are not finite and above 0, numbers beside sizes, no corpora, and a weight
    /// so small that a block has no sample of it.
    pub fn new(weights: &[MixtureWeight], seed: u64) -> Result<CorpusMixture> {
        let wrong = |reason: String, fix: &str| Err(Error::argument("mixture", reason, fix));
        let sizes = weights.iter().filter(|weight| matches!(weight, MixtureWeight::Size(_))).count();
        if sizes != 0 && sizes != weights.len() {
            return wrong("numbers and sizes as weights".into(), "give every corpus a weight, or none");
        }
        let numbers: Vec<f64> = weights
            .iter()
            .map(|weight| match weight {
                MixtureWeight::Number(number) => *number,
                MixtureWeight::Size(size) => *size as f64,
            })
            .collect();
        if let Some(at) = numbers.iter().position(|number| !(number.is_finite() && *number > 0.0)) {
            return wrong(format!("corpus {at} has the weight {}", numbers[at]), "use weights above 0");
        }
        let sum: f64 = numbers.iter().sum();
        let (mut ends, mut before) = (Vec::new(), 0.0);
        for (at, number) in numbers.iter().enumerate() {
            before += number;
            // Rounded sums add up to the block, rounded shares would not.
            let end = if at + 1 == numbers.len() { BLOCK } else { (before / sum * BLOCK as f64).round() as u64 };
            if end <= ends.last().copied().unwrap_or(0) {
                let reason = format!("corpus {at} has {number} of {sum}: less than one sample of {BLOCK}");
                return wrong(reason, "give it more weight, or leave it out");
            }
            ends.push(end);
        }
        if ends.is_empty() {
            return wrong("no corpora".into(), "name at least one");
        }
        Ok(CorpusMixture { ends, key: Key::new(seed, "corpus mixture"), last: Mutex::new(None) })
    }

    /// Number of corpora.
    pub fn corpora(&self) -> usize {
        self.ends.len()
    }

    /// The corpus of sample `index`, and which of that corpus's samples it is, counted from 0.
    pub fn at(&self, index: u64) -> (usize, u64) {
        let (number, place) = (index / BLOCK, index % BLOCK);
        let (corpus, rank) = self.block(number)[place as usize];
        (corpus as usize, number * self.share(corpus as usize) + u64::from(rank))
    }

    /// How many samples of each corpus are among the first `samples`.
    pub fn needed(&self, samples: u64) -> Vec<u64> {
        let whole = samples / BLOCK;
        let mut needed: Vec<u64> = (0..self.ends.len()).map(|corpus| whole * self.share(corpus)).collect();
        let begun = (samples % BLOCK) as usize;
        if begun > 0 {
            for (corpus, _) in &self.block(whole)[..begun] {
                needed[*corpus as usize] += 1;
            }
        }
        needed
    }

    /// Samples of a corpus in a block.
    fn share(&self, corpus: usize) -> u64 {
        self.ends[corpus] - corpus.checked_sub(1).map_or(0, |before| self.ends[before])
    }

    /// A block; the last one is kept, as samples are asked for one after the other.
    fn block(&self, number: u64) -> Arc<Block> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((known, block)) if *known == number => Arc::clone(block),
            _ => {
                let block = Arc::new(self.compute(number));
                *last = Some((number, Arc::clone(&block)));
                block
            }
        }
    }

    fn compute(&self, number: u64) -> Block {
        let order = Permutation::new(self.key, [number as u32, (number >> 32) as u32, 0], BLOCK);
        let mut ranks = vec![0; self.ends.len()];
        (0..BLOCK)
            .map(|place| {
                let item = order.at(place).unwrap_or(place);
                let corpus = self.ends.partition_point(|end| *end <= item);
                let rank = ranks[corpus];
                ranks[corpus] += 1;
                (corpus as u32, rank)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MixtureWeight::{Number, Size};

    #[test]
    fn every_sample_of_a_corpus_comes_once_and_in_order() {
        let mixture = CorpusMixture::new(&[Number(7.0), Number(0.001), Number(2.999)], 3).unwrap();
        let mut next = vec![0; 3];
        for index in 0..2 * BLOCK + 1000 {
            let (corpus, sample) = mixture.at(index);
            assert_eq!(sample, next[corpus], "{index}");
            next[corpus] += 1;
            if index + 1 == 2 * BLOCK {
                assert_eq!(next, [2 * 45_875, 2 * 7, 2 * 19_654]);
            }
        }
        assert_eq!(mixture.needed(2 * BLOCK + 1000), next);
        assert_eq!(mixture.at(5), CorpusMixture::new(&[Number(7.0), Number(0.001), Number(2.999)], 3).unwrap().at(5));
    }

    #[test]
    fn the_order_is_random_and_depends_on_the_seed() {
        let corpora = |seed| {
            let mixture = CorpusMixture::new(&[Size(100), Size(300)], seed).unwrap();
            (0..10_000).map(|index| mixture.at(index).0).collect::<Vec<_>>()
        };
        let (one, two) = (corpora(1), corpora(2));
        assert_ne!(one, two);
        // A sample without replacement: the deviation is below a binomial's, 43; five of them.
        let second = one.iter().sum::<usize>() as i64;
        assert!((second - 7500).abs() < 215, "{second}");
    }

    #[test]
    fn weights_that_mean_nothing_are_refused() {
        for weights in [
            &[][..],
            &[Number(0.0), Number(1.0)],
            &[Number(-1.0)],
            &[Number(f64::NAN)],
            &[Number(1.0), Size(5)],
            &[Number(1e-9), Number(1.0)],
            &[Number(1.0), Number(1e-9)],
            &[Size(0), Size(1)],
        ] {
            assert!(CorpusMixture::new(weights, 0).is_err(), "{weights:?}");
        }
        assert_eq!(CorpusMixture::new(&[Number(0.2)], 0).unwrap().at(70_000), (0, 70_000));
    }
}
