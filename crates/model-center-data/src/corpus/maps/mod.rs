//! Index maps: which tokens each sample of a corpus has.
//!
//! The documents of a part, in the order of an epoch and one epoch after the other, are one long row of tokens. Sample
//! k is the tokens from k L to (k + 1) L of it, both included: L inputs and the targets one further, so that neighbours
//! share a token. Three maps describe that: the order of documents, the document and offset in it where each sample
//! begins, and the order of samples. `build` computes them, `cache` keeps them in files. Called by
//! [`super::samples`]. `groups` has the map of sentences, for objectives over pairs of them.

mod build;
mod cache;
mod files;
mod groups;

pub use cache::map_names;
pub(super) use cache::{MapFiles, MapRequest, open};
pub(super) use groups::{GroupMap, GroupRequest};

use crate::{Error, Result};
use bmtrain_core::philox::Key;

use bmtrain_dist::order::Permutation;

/// In which order documents and samples come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleOrder {
    /// Each epoch is an order of its own, a pure function of seed, epoch and index: more samples change none of the
    /// earlier ones, and building runs in parallel in memory that epochs do not add to.
    #[default]
    Addressed,
    /// The maps of Megatron-LM since its third version and of megatron-core, byte for byte, by NumPy's generator: all
    /// epochs are shuffled together, the last one apart if less than 80 % of it is used. The document map is held in
    /// memory.
    Megatron,
    /// The maps of Megatron-LM before that, CPM's among them: all epochs are shuffled together.
    MegatronV1,
}

impl SampleOrder {
    /// The name in files and on command lines.
    pub const fn name(self) -> &'static str {
        match self {
            SampleOrder::Addressed => "addressed",
            SampleOrder::Megatron => "megatron",
            SampleOrder::MegatronV1 => "megatron-v1",
        }
    }
}

/// How many epochs and samples the maps have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    /// Tokens of an epoch, above 0.
    pub(super) tokens: u64,
    /// L.
    pub(super) length: u64,
    /// Epochs.
    pub(super) epochs: u64,
}

impl Extent {
    /// The fewest epochs with `samples` samples.
    ///
    /// # Errors
    /// [`Error::Argument`] if there are no tokens or the numbers are beyond 64 bits.
    pub(super) fn new(tokens: u64, length: u64, samples: u64) -> Result<Extent> {
        let fix = "ask for fewer or shorter samples, or give the part documents with tokens";
        if tokens == 0 {
            return Err(Error::argument("documents", "they have no tokens", fix));
        }
        let needed = samples.checked_mul(length).and_then(|needed| needed.checked_add(1));
        // The last epoch is begun but may not be needed whole, so the epochs have at most an epoch more.
        match needed.filter(|needed| needed.checked_add(tokens).is_some_and(|most| most < 1 << 62)) {
            Some(needed) => Ok(Extent { tokens, length, epochs: needed.div_ceil(tokens) }),
            None => {
                let reason = format!("{samples} samples of {length} tokens are beyond 2^62 tokens");
                Err(Error::argument("samples", reason, fix))
            }
        }
    }

    /// Samples of the first `epochs` epochs.
    pub(super) fn samples_of(&self, epochs: u64) -> u64 {
        (epochs * self.tokens).saturating_sub(1) / self.length
    }

    /// Samples of all epochs.
    pub(super) fn samples(&self) -> u64 {
        self.samples_of(self.epochs)
    }

    /// The epoch that has the end of sample `sample`.
    fn epoch_of(&self, sample: u64) -> u64 {
        ((sample + 1) * self.length + 1).div_ceil(self.tokens) - 1
    }

    /// The sample that comes as number `index`, by the addressed order: samples that end in one epoch are permuted.
    pub(super) fn addressed(&self, seed: u64, index: u64) -> u64 {
        let epoch = self.epoch_of(index);
        let first = self.samples_of(epoch);
        let order = epoch_order(seed, "corpus samples", epoch, self.samples_of(epoch + 1) - first);
        order.at(index - first).map_or(index, |at| first + at)
    }
}

/// The order of an epoch.
pub(super) fn epoch_order(seed: u64, purpose: &str, epoch: u64, items: u64) -> Permutation {
    Permutation::new(Key::new(seed, purpose), [epoch as u32, (epoch >> 32) as u32, 0], items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn epochs_are_the_fewest_with_the_samples() {
        for (tokens, length, samples) in [(10, 3, 3), (10, 3, 4), (7, 7, 1), (1, 5, 2), (100, 1, 99), (100, 1, 100)] {
            let extent = Extent::new(tokens, length, samples).unwrap();
            assert!(extent.samples() >= samples, "{extent:?}");
            assert!(extent.samples_of(extent.epochs - 1) < samples, "{extent:?}");
        }
        assert!(Extent::new(0, 3, 3).is_err());
        assert!(Extent::new(1, u64::MAX, 3).is_err());
    }

    #[test]
    fn the_addressed_order_is_a_permutation_of_each_epoch_and_of_all() {
        for (tokens, length) in [(50, 3), (7, 7), (3, 10), (1000, 8)] {
            let extent = Extent::new(tokens, length, 200).unwrap();
            let order: Vec<u64> = (0..extent.samples()).map(|index| extent.addressed(9, index)).collect();
            assert_eq!(order.iter().collect::<HashSet<_>>().len() as u64, extent.samples());
            for (index, sample) in order.iter().enumerate() {
                assert_eq!(extent.epoch_of(index as u64), extent.epoch_of(*sample), "{tokens} {length}");
            }
            // More epochs change nothing.
            let longer = Extent { epochs: extent.epochs + 3, ..extent };
            assert!((0..extent.samples()).all(|index| longer.addressed(9, index) == order[index as usize]));
        }
    }
}
