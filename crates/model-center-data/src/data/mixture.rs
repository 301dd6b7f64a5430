//! The order in which the samples of several data sets make an epoch.
//!
//! Defines [`EpochMixture`]. Of an epoch of T samples, data set i has its proportion, rounded down, and the last one
//! the rest. The samples of a set are taken in rounds: each round is a random order of all of them, and a set goes on
//! in an epoch where the last one ended. So a sample occurs once in each round of its set, whatever the proportions,
//! and a set  that has a small one is seen as a whole over epochs. Orders are functions of the seed, the epoch and the
//! set.
//!
//! Source: the predecessor's sampler, which took the first samples of a set that had fewer than it holds, and had the
//! same order in every epoch; neither is so here.

use bmtrain_core::philox::Key;

use super::Permutation;
use crate::{Error, Result};

/// Sizes and proportions of data sets that are numbered one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochMixture {
    sizes: Vec<u64>,
    /// Samples of an epoch, of each set.
    quotas: Vec<u64>,
}

impl EpochMixture {
    /// An epoch has as many samples as the sets have together.
    ///
    /// Errors: a proportion that is not a positive number, or too small for a sample; a set without samples.
    pub fn new(sizes: &[u64], proportions: &[f64]) -> Result<EpochMixture> {
        let wrong = |reason: String, fix: &str| Err(Error::argument("data.sets", reason, fix));
        if sizes.len() != proportions.len() || sizes.is_empty() || sizes.contains(&0) {
            let reason = format!("{} proportions for {} data sets with samples", proportions.len(), sizes.len());
            return wrong(reason, "give each data set a proportion");
        }
        if let Some(proportion) = proportions.iter().find(|proportion| !(proportion.is_finite() && **proportion > 0.0))
        {
            return wrong(format!("a proportion is {proportion}"), "use a positive number, or leave the data set out");
        }
        let total: u64 = sizes.iter().sum();
        let all: f64 = proportions.iter().sum();
        let mut quotas: Vec<u64> =
            proportions.iter().map(|proportion| (total as f64 * (proportion / all)) as u64).collect();
        let (mut rest, last) = (total, quotas.len() - 1);
        for quota in quotas.iter_mut().take(last) {
            *quota = (*quota).min(rest);
            rest -= *quota;
        }
        if let Some(quota) = quotas.last_mut() {
            *quota = rest;
        }
        if let Some(at) = quotas.iter().position(|quota| *quota == 0) {
            let reason = format!("data set {} has no sample in an epoch of {total}", at + 1);
            return wrong(reason, "raise its proportion");
        }
        Ok(EpochMixture { sizes: sizes.to_vec(), quotas })
    }

    /// Samples of an epoch.
    pub fn len(&self) -> u64 {
        self.quotas.iter().sum()
    }

    /// Whether an epoch has none; never so.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Samples that each data set has in an epoch.
    pub fn quotas(&self) -> &[u64] {
        &self.quotas
    }

    /// The samples of an epoch in their order.
    pub fn epoch(&self, seed: u64, epoch: u64) -> Vec<u32> {
        let stream = |number: u64, set: u32| [number as u32, (number >> 32) as u32, set];
        let places = Permutation::new(Key::new(seed, "data.mixture"), stream(epoch, 0), self.len());
        let key = Key::new(seed, "data.set");
        let ends: Vec<u64> = cumulated(&self.quotas).collect();
        let starts: Vec<u64> = std::iter::once(0).chain(cumulated(&self.sizes)).collect();
        let mut sets: Vec<Round> = self
            .quotas
            .iter()
            .zip(&self.sizes)
            .zip(starts)
            .map(|((quota, size), start)| Round { taken: epoch.wrapping_mul(*quota), size: *size, start, order: None })
            .collect();
        let samples = (0..self.len()).filter_map(|index| {
            let place = places.at(index)?;
            let set = ends.partition_point(|end| *end <= place);
            let order = |round: u64, size| Permutation::new(key, stream(round, set as u32), size);
            sets.get_mut(set)?.next(&order)
        });
        samples.collect()
    }
}

fn cumulated(numbers: &[u64]) -> impl Iterator<Item = u64> {
    numbers.iter().scan(0, |sum, number| {
        *sum += number;
        Some(*sum)
    })
}

/// A data set on its way through its rounds.
struct Round {
    /// Samples that were taken, of all epochs.
    taken: u64,
    size: u64,
    /// The number of its first sample.
    start: u64,
    order: Option<(u64, Permutation)>,
}

impl Round {
    fn next(&mut self, order: &dyn Fn(u64, u64) -> Permutation) -> Option<u32> {
        let (round, place) = (self.taken / self.size, self.taken % self.size);
        self.taken = self.taken.wrapping_add(1);
        let kept = self.order.filter(|(kept, _)| *kept == round);
        let (_, permutation) = self.order.insert(kept.unwrap_or_else(|| (round, order(round, self.size))));
        permutation.at(place).map(|item| (self.start + item) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_round_of_a_set_has_each_of_its_samples_once() {
        let (sizes, proportions) = ([7, 50, 3], [3.0, 1.0, 2.0]);
        let mixture = EpochMixture::new(&sizes, &proportions).unwrap();
        assert_eq!(mixture.quotas(), [30, 10, 20]);
        let mut taken: Vec<Vec<u32>> = vec![Vec::new(); 3];
        let mut epochs = Vec::new();
        for epoch in 0..20 {
            let order = mixture.epoch(5, epoch);
            assert_eq!(order.len(), 60);
            for sample in &order {
                let set = [7, 57, 60].iter().position(|end| sample < end).unwrap();
                taken[set].push(*sample);
            }
            assert_eq!(order, mixture.epoch(5, epoch));
            assert!(!epochs.contains(&order), "epoch {epoch}");
            epochs.push(order);
        }
        for ((samples, size), quota) in taken.iter().zip(sizes).zip([30, 10, 20]) {
            assert_eq!(samples.len(), 20 * quota);
            for round in samples.chunks_exact(size as usize) {
                assert_eq!(round.iter().collect::<BTreeSet<_>>().len(), size as usize);
            }
        }
        assert_ne!(mixture.epoch(6, 0), epochs[0]);
    }

    #[test]
    fn proportions_without_a_sample_are_refused() {
        for (sizes, proportions, reason) in [
            (&[5, 5][..], &[1.0, 0.0][..], "a proportion is 0"),
            (&[5, 5], &[1.0, f64::NAN], "a proportion is NaN"),
            (&[5, 5], &[1.0], "1 proportions for 2"),
            (&[5, 5], &[1.0, 1e-9], ""),
            (&[5, 5], &[1e-9, 1.0], "data set 1 has no sample"),
        ] {
            match EpochMixture::new(sizes, proportions) {
                Ok(mixture) => assert!(reason.is_empty() && mixture.quotas() == [9, 1], "{:?}", mixture.quotas()),
                Err(error) => assert!(!reason.is_empty() && error.to_string().contains(reason), "{error}"),
            }
        }
    }
}
