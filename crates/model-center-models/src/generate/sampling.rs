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
pub fn more_probable(a: &Candidate, b: &Candidate) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

impl Sampling {
    /// Check the ranges.
    pub fn validate(&self) -> Result<()> {
        let wrong = |name: &str, reason: String, fix: &str| Err(Error::argument(name, reason, fix));
        if !(self.temperature.is_finite() && self.temperature > 0.0) {
            let reason = format!("{} is not a number above 0", self.temperature);
            return wrong("temperature", reason, "give a number above 0, or choose greedy decoding (--greedy)");
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
