//! Choosing the next word at random among those that are likely enough.
//!
//! Defines [`Sampling`], the filters in the order in which transformers applies them, and [`Draw`], the address of a
//! random number.

use super::scores::largest;
use crate::{Error, Result};
use bmtrain_core::philox::{Key, block};
use std::cmp::Ordering;

/// Which words are in the draw, and how unequal their chances are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Scores are divided by it: below 1 the likely become likelier.
    pub temperature: f32,
    /// Only the so many likeliest words, and those that are as likely as the last of them; `None` for all.
    pub top_k: Option<usize>,
    /// Only the likeliest words that together have this probability, in `(0, 1]`.
    pub top_p: f32,
    /// Only words that are at least this share as probable as the likeliest, in `[0, 1)`.
    pub min_p: f32,
}

impl Default for Sampling {
    /// All words by their probability.
    fn default() -> Self {
        Sampling { temperature: 1.0, top_k: None, top_p: 1.0, min_p: 0.0 }
    }
}

/// The address of a random number, so that a row's words depend on nothing but seed, row and place: not on the rows
/// beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// The seed's key.
    pub key: Key,
    /// Number of the row among all prompts.
    pub row: u64,
    /// Number of the word among those that were generated.
    pub place: u32,
}

impl Draw {
    /// A number in `[0, 1)` with 53 random bits.
    pub fn unit(&self) -> f64 {
        let [high, low, ..] = block(self.key, [self.place, self.row as u32, (self.row >> 32) as u32, 0]);
        let bits = (u64::from(high) << 32 | u64::from(low)) >> 11;
        bits as f64 / (1_u64 << 53) as f64
    }
}

/// A word and its score.
type Candidate = (u32, f32);

/// The likelier first; of equals the one with the smaller number.
fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

impl Sampling {
    /// Check the settings.
    ///
    /// # Errors
    /// A setting out of its range.
    pub fn validate(&self) -> Result<()> {
        let wrong = |name: &str, reason: String, fix: &str| Err(Error::argument(name, reason, fix));
        if !(self.temperature.is_finite() && self.temperature > 0.0) {
            let reason = format!("{} is no number above 0", self.temperature);
            return wrong("temperature", reason, "give a number above 0, or choose greedily");
        }
        if self.top_k == Some(0) {
            return wrong("top_k", "no word is left".into(), "leave it out for all words");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("top_p", format!("{} is not in (0, 1]", self.top_p), "give 1 for all words");
        }
        if !(0.0..1.0).contains(&self.min_p) {
            return wrong("min_p", format!("{} is not in [0, 1)", self.min_p), "give 0 for all words");
        }
        Ok(())
    }

    /// The words `[V]` scores leave in the draw with their chances, which sum to one; the likeliest first where a
    /// filter asked for the order. None if no score is a number above minus infinity.
    pub fn chances(&self, scores: &[f32]) -> Vec<(u32, f64)> {
        let Some(best) = largest(scores) else { return Vec::new() };
        // Of the likeliest the distance is 0 whatever the temperature.
        let most = scores[best];
        let scaled = scores.iter().enumerate().map(|(word, score)| (word as u32, (score - most) / self.temperature));
        let mut left: Vec<Candidate> = scaled.filter(|(_, score)| *score > f32::NEG_INFINITY).collect();
        if let Some(k) = self.top_k.filter(|&k| k < left.len()) {
            let (_, last, _) = left.select_nth_unstable_by(k - 1, likelier);
            let least = last.1;
            left.retain(|(_, score)| *score >= least);
        }
        let mass = |(_, score): &Candidate| f64::from(*score).exp();
        if self.top_p < 1.0 {
            let all: f64 = left.iter().map(mass).sum();
            keep_likeliest(&mut left, f64::from(self.top_p) * all, mass);
        }
        if self.min_p > 0.0 {
            left.retain(|candidate| mass(candidate) >= f64::from(self.min_p));
        }
        let sum: f64 = left.iter().map(mass).sum();
        left.iter().map(|candidate| (candidate.0, mass(candidate) / sum)).collect()
    }

    /// The next word by its scores `[V]`. `None` if no score is a number above minus infinity.
    pub fn choose(&self, scores: &[f32], draw: Draw) -> Option<u32> {
        let chances = self.chances(scores);
        let mut rest = draw.unit();
        for (word, chance) in &chances {
            rest -= chance;
            if rest < 0.0 {
                return Some(*word);
            }
        }
        // What rounding leaves over is the last one's.
        chances.last().map(|(word, _)| *word)
    }
}

/// Keep the fewest of the likeliest whose masses reach `wanted`, at least one. Only as many as that are sorted.
fn keep_likeliest(left: &mut Vec<Candidate>, wanted: f64, mass: impl Fn(&Candidate) -> f64) {
    let (mut sorted, mut kept, mut sum) = (0, 0, 0.0);
    while kept < left.len() && (kept == 0 || sum < wanted) {
        if kept == sorted {
            let next = (2 * sorted).max(256).min(left.len());
            if next < left.len() {
                left[sorted..].select_nth_unstable_by(next - sorted - 1, likelier);
            }
            left[sorted..next].sort_unstable_by(likelier);
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

    /// Scores whose probabilities are these.
    fn scores(chances: &[f32]) -> Vec<f32> {
        chances.iter().map(|chance| chance.ln() + 3.0).collect()
    }

    fn words(sampling: Sampling, chances: &[f32]) -> Vec<u32> {
        let mut words: Vec<u32> = sampling.chances(&scores(chances)).into_iter().map(|(word, _)| word).collect();
        words.sort_unstable();
        words
    }

    const ALL: Sampling = Sampling { temperature: 1.0, top_k: None, top_p: 1.0, min_p: 0.0 };

    #[test]
    fn filters_leave_the_likeliest() {
        let chances = [0.1, 0.4, 0.05, 0.3, 0.15];
        assert_eq!(words(ALL, &chances), [0, 1, 2, 3, 4]);
        assert_eq!(words(Sampling { top_k: Some(2), ..ALL }, &chances), [1, 3]);
        assert_eq!(words(Sampling { top_k: Some(9), ..ALL }, &chances), [0, 1, 2, 3, 4]);
        // The word that crosses the bound stays.
        assert_eq!(words(Sampling { top_p: 0.41, ..ALL }, &chances), [1, 3]);
        assert_eq!(words(Sampling { top_p: 0.39, ..ALL }, &chances), [1]);
        assert_eq!(words(Sampling { top_p: 1e-9, ..ALL }, &chances), [1]);
        assert_eq!(words(Sampling { min_p: 0.3, ..ALL }, &chances), [1, 3, 4]);
        // Behind the first filter the second one's shares are those of what is left.
        assert_eq!(words(Sampling { top_k: Some(2), top_p: 0.6, ..ALL }, &chances), [1, 3]);
        assert_eq!(words(Sampling { top_k: Some(2), top_p: 0.5, ..ALL }, &chances), [1]);
    }

    #[test]
    fn words_as_likely_as_the_last_stay_too() {
        assert_eq!(words(Sampling { top_k: Some(2), ..ALL }, &[0.2, 0.4, 0.2, 0.2]), [0, 1, 2, 3]);
    }

    #[test]
    fn temperature_sharpens() {
        let hot = Sampling { temperature: 0.5, ..ALL }.chances(&scores(&[0.2, 0.8]));
        assert!((hot[1].1 - 0.64 / 0.68).abs() < 1e-6);
    }

    #[test]
    fn many_words_are_sorted_as_far_as_needed() {
        let scores: Vec<f32> = (0..5000).map(|word| -((word * 7919 % 5000) as f32) / 500.0).collect();
        let chances = Sampling { top_p: 0.9, ..ALL }.chances(&scores);
        let mut sorted: Vec<f64> = scores.iter().map(|&score| f64::from(score).exp()).collect();
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
        assert_eq!(chances.len(), needed);
        assert!(chances.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        assert!((chances.iter().map(|(_, chance)| chance).sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn draws_follow_the_chances_and_nothing_but_their_address() {
        let (scores, sampling) = (scores(&[0.1, 0.6, 0.3]), ALL);
        let key = Key::new(7, "sampling");
        let draw = |place| sampling.choose(&scores, Draw { key, row: 3, place }).unwrap();
        let mut counts = [0_u32; 3];
        (0..10_000).for_each(|place| counts[draw(place) as usize] += 1);
        for (count, chance) in counts.iter().zip([0.1, 0.6, 0.3]) {
            // Five standard deviations.
            let deviation = 5.0 * (10_000.0_f64 * chance * (1.0 - chance)).sqrt();
            assert!((f64::from(*count) - 10_000.0 * chance).abs() < deviation, "{counts:?}");
        }
        assert_eq!((0..50).map(draw).collect::<Vec<_>>(), (0..50).map(draw).collect::<Vec<_>>());
    }

    #[test]
    fn the_smallest_temperatures_leave_the_likeliest() {
        let coldest = Sampling { temperature: f32::MIN_POSITIVE, ..ALL };
        let draw = Draw { key: Key::new(1, "x"), row: 0, place: 0 };
        assert_eq!(coldest.choose(&[-40.0, 30.0, 29.0, f32::NEG_INFINITY], draw), Some(1));
    }

    #[test]
    fn rows_without_a_possible_word_have_none() {
        let draw = Draw { key: Key::new(0, "x"), row: 0, place: 0 };
        assert_eq!(ALL.choose(&[f32::NEG_INFINITY, f32::NAN], draw), None);
        assert_eq!(ALL.choose(&[f32::NEG_INFINITY, -1e30], draw), Some(1));
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
