//! Sampling the next token: temperature, top-k, top-p and min-p, in the order of transformers.

use super::logits::argmax;
use crate::{Error, Result};
use bmtrain_core::philox::{Key, block};
use std::cmp::Ordering;

/// Temperature and filters of the distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits: below 1 the distribution is sharper.
    pub temperature: f32,
    /// Only this number of most probable tokens, and tokens as probable as the last of them; `None` for all.
    pub top_k: Option<usize>,
    /// Only the most probable tokens whose probabilities sum to this, in `(0, 1]`.
    pub top_p: f32,
    /// Only tokens with at least this fraction of the highest probability, in `[0, 1)`.
    pub min_p: f32,
}

impl Default for Sampling {
    /// The unfiltered distribution.
    fn default() -> Self {
        Sampling { temperature: 1.0, top_k: None, top_p: 1.0, min_p: 0.0 }
    }
}

/// The counter of a random number: the samples of a row depend on seed, row and position only, not on the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomAddress {
    /// Key of the seed.
    pub key: Key,
    /// Index of the sequence among all prompts.
    pub row: u64,
    /// Index of the token among the generated ones.
    pub position: u32,
}

impl RandomAddress {
    /// A number in `[0, 1)` with 53 random bits.
    pub fn unit(&self) -> f64 {
        let [high, low, ..] = block(self.key, [self.position, self.row as u32, (self.row >> 32) as u32, 0]);
        let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
        bits as f64 / (1_u64 << 53) as f64
    }
}

/// A token and its logit.
type Candidate = (u32, f32);

/// Higher logits first, of equals the smaller id.
fn more_probable(a: &Candidate, b: &Candidate) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

impl Sampling {
    /// Check the ranges.
    pub fn validate(&self) -> Result<()> {
        let wrong = |name: &str, reason: String, fix: &str| Err(Error::argument(name, reason, fix));
        if !(self.temperature.is_finite() && self.temperature > 0.0) {
            let reason = format!("{} is not a number above 0", self.temperature);
            return wrong("temperature", reason, "give a number above 0, or choose greedily");
        }
        if self.top_k == Some(0) {
            return wrong("top_k", "no token is left".into(), "leave it out for all tokens");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("top_p", format!("{} is not in (0, 1]", self.top_p), "give 1 for all tokens");
        }
        if !(0.0..1.0).contains(&self.min_p) {
            return wrong("min_p", format!("{} is not in [0, 1)", self.min_p), "give 0 for all tokens");
        }
        Ok(())
    }

    /// The tokens that the filters keep with their probabilities, which sum to 1, from the logits `[V]`; sorted by
    /// probability if a filter needs the order. Empty if all logits are NaN or minus infinity.
    pub fn probabilities(&self, logits: &[f32]) -> Vec<(u32, f64)> {
        let Some(best) = argmax(logits) else { return Vec::new() };
        // The most probable token has 0 at any temperature.
        let most = logits[best];
        let scaled = logits.iter().enumerate().map(|(token, logit)| (token as u32, (logit - most) / self.temperature));
        let mut left: Vec<Candidate> = scaled.filter(|(_, logit)| *logit > f32::NEG_INFINITY).collect();
        if let Some(k) = self.top_k.filter(|&k| k < left.len()) {
            let (_, last, _) = left.select_nth_unstable_by(k - 1, more_probable);
            let least = last.1;
            left.retain(|(_, logit)| *logit >= least);
        }
        let mass = |(_, logit): &Candidate| f64::from(*logit).exp();
        if self.top_p < 1.0 {
            let all: f64 = left.iter().map(mass).sum();
            keep_most_probable(&mut left, f64::from(self.top_p) * all, mass);
        }
        if self.min_p > 0.0 {
            left.retain(|candidate| mass(candidate) >= f64::from(self.min_p));
        }
        let sum: f64 = left.iter().map(mass).sum();
        left.iter().map(|candidate| (candidate.0, mass(candidate) / sum)).collect()
    }

    /// Sample the next token from its logits `[V]`. `None` if all are NaN or minus infinity.
    pub fn sample(&self, logits: &[f32], address: RandomAddress) -> Option<u32> {
        let probabilities = self.probabilities(logits);
        let mut rest = address.unit();
        for (token, probability) in &probabilities {
            rest -= probability;
            if rest < 0.0 {
                return Some(*token);
            }
        }
        // The remainder of rounding belongs to the last one.
        probabilities.last().map(|(token, _)| *token)
    }
}

/// Keep the fewest most probable tokens whose masses sum to `wanted`, at least one. Only these are sorted.
fn keep_most_probable(left: &mut Vec<Candidate>, wanted: f64, mass: impl Fn(&Candidate) -> f64) {
    let (mut sorted, mut kept, mut sum) = (0, 0, 0.0);
    while kept < left.len() && (kept == 0 || sum < wanted) {
        if kept == sorted {
            let next = (2 * sorted).max(256).min(left.len());
            if next < left.len() {
                left[sorted..].select_nth_unstable_by(next - sorted - 1, more_probable);
            }
            left[sorted..next].sort_unstable_by(more_probable);
            sorted = next;
        }
        sum += mass(&left[kept]);
        kept += 1;
    }
    left.truncate(kept);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Logits with these probabilities.
    fn logits(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|probability| probability.ln() + 3.0).collect()
    }

    fn tokens(sampling: Sampling, probabilities: &[f32]) -> Vec<u32> {
        let mut tokens: Vec<u32> =
            sampling.probabilities(&logits(probabilities)).into_iter().map(|(token, _)| token).collect();
        tokens.sort_unstable();
        tokens
    }

    const ALL: Sampling = Sampling { temperature: 1.0, top_k: None, top_p: 1.0, min_p: 0.0 };

    #[test]
    fn filters_keep_the_most_probable() {
        let probabilities = [0.1, 0.4, 0.05, 0.3, 0.15];
        assert_eq!(tokens(ALL, &probabilities), [0, 1, 2, 3, 4]);
        assert_eq!(tokens(Sampling { top_k: Some(2), ..ALL }, &probabilities), [1, 3]);
        assert_eq!(tokens(Sampling { top_k: Some(9), ..ALL }, &probabilities), [0, 1, 2, 3, 4]);
        // The token that crosses the bound is kept.
        assert_eq!(tokens(Sampling { top_p: 0.41, ..ALL }, &probabilities), [1, 3]);
        assert_eq!(tokens(Sampling { top_p: 0.39, ..ALL }, &probabilities), [1]);
        assert_eq!(tokens(Sampling { top_p: 1e-9, ..ALL }, &probabilities), [1]);
        assert_eq!(tokens(Sampling { min_p: 0.3, ..ALL }, &probabilities), [1, 3, 4]);
        // The second filter sees the renormalized probabilities of the first.
        assert_eq!(tokens(Sampling { top_k: Some(2), top_p: 0.6, ..ALL }, &probabilities), [1, 3]);
        assert_eq!(tokens(Sampling { top_k: Some(2), top_p: 0.5, ..ALL }, &probabilities), [1]);
    }

    #[test]
    fn tokens_as_probable_as_the_last_stay_too() {
        assert_eq!(tokens(Sampling { top_k: Some(2), ..ALL }, &[0.2, 0.4, 0.2, 0.2]), [0, 1, 2, 3]);
    }

    #[test]
    fn temperature_sharpens() {
        let hot = Sampling { temperature: 0.5, ..ALL }.probabilities(&logits(&[0.2, 0.8]));
        assert!((hot[1].1 - 0.64 / 0.68).abs() < 1e-6);
    }

    #[test]
    fn many_words_are_sorted_as_far_as_needed() {
        let logits: Vec<f32> = (0..5000).map(|token| -((token * 7919 % 5000) as f32) / 500.0).collect();
        let probabilities = Sampling { top_p: 0.9, ..ALL }.probabilities(&logits);
        let mut sorted: Vec<f64> = logits.iter().map(|&logit| f64::from(logit).exp()).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let all: f64 = sorted.iter().sum();
        let mut sum = 0.0;
        let needed = sorted
            .iter()
            .take_while(|&&mass| {
                let more = sum < 0.9_f32 as f64 * all;
                sum += mass;
                more
            })
            .count();
        assert_eq!(probabilities.len(), needed);
        assert!(probabilities.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        assert!((probabilities.iter().map(|(_, probability)| probability).sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn samples_follow_the_probabilities_and_their_address_alone() {
        let (logits, sampling) = (logits(&[0.1, 0.6, 0.3]), ALL);
        let key = Key::new(7, "sampling");
        let sample = |position| sampling.sample(&logits, RandomAddress { key, row: 3, position }).unwrap();
        let mut counts = [0_u32; 3];
        (0..10_000).for_each(|position| counts[sample(position) as usize] += 1);
        for (count, probability) in counts.iter().zip([0.1, 0.6, 0.3]) {
            // Five standard deviations.
            let deviation = 5.0 * (10_000.0_f64 * probability * (1.0 - probability)).sqrt();
            assert!((f64::from(*count) - 10_000.0 * probability).abs() < deviation, "{counts:?}");
        }
        assert_eq!((0..50).map(sample).collect::<Vec<_>>(), (0..50).map(sample).collect::<Vec<_>>());
    }

    #[test]
    fn the_smallest_temperatures_leave_the_most_probable() {
        let coldest = Sampling { temperature: f32::MIN_POSITIVE, ..ALL };
        let sample = RandomAddress { key: Key::new(1, "x"), row: 0, position: 0 };
        assert_eq!(coldest.sample(&[-40.0, 30.0, 29.0, f32::NEG_INFINITY], sample), Some(1));
    }

    #[test]
    fn rows_without_a_possible_word_have_none() {
        let sample = RandomAddress { key: Key::new(0, "x"), row: 0, position: 0 };
        assert_eq!(ALL.sample(&[f32::NEG_INFINITY, f32::NAN], sample), None);
        assert_eq!(ALL.sample(&[f32::NEG_INFINITY, -1e30], sample), Some(1));
    }

    #[test]
    fn settings_out_of_range_are_errors() {
        let wrong = [
            Sampling { temperature: 0.0, ..ALL },
            Sampling { temperature: f32::NAN, ..ALL },
            Sampling { top_k: Some(0), ..ALL },
            Sampling { top_p: 0.0, ..ALL },
            Sampling { top_p: 1.5, ..ALL },
            Sampling { min_p: 1.0, ..ALL },
            Sampling { min_p: -0.1, ..ALL },
        ];
        for sampling in wrong {
            assert!(sampling.validate().is_err(), "{sampling:?}");
        }
        assert!(ALL.validate().is_ok());
    }
}
