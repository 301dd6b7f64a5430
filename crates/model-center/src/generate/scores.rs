//! What is done to the scores of the next word before one is chosen: words that are forbidden, words that stood there
//! before.
//!
//! Defines [`Penalty`], [`forbid`], [`force`], [`repeating`] and [`log_softmax`]; called by [`super::sampling`],
//! [`super::beam`] and for each row by [`super::Generator`].

use crate::{Error, Result};

/// Makes words less likely that the row has had already.
///
/// Source: Keskar et al., 2019 (CTRL), section 4.1; the window is ModelCenter's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalty {
    /// Scores above 0 are divided by it, those below multiplied; 1 changes nothing.
    pub factor: f32,
    /// Only the last so many words of the row count; `None` for all of them.
    pub window: Option<usize>,
}

impl Default for Penalty {
    /// Changes nothing.
    fn default() -> Self {
        Penalty { factor: 1.0, window: None }
    }
}

impl Penalty {
    /// Check the factor.
    ///
    /// # Errors
    /// A factor that is no number above 0; a window of no words.
    pub fn validate(&self) -> Result<()> {
        if !(self.factor.is_finite() && self.factor > 0.0) {
            let reason = format!("{} is no number above 0", self.factor);
            return Err(Error::argument("repetition_penalty", reason, "give 1 for none, or about 1.2"));
        }
        if self.window == Some(0) {
            return Err(Error::argument("repetition_window", "a window of no words", "leave it out for all words"));
        }
        Ok(())
    }

    /// Change the scores `[V]` of the word behind `row`. A word that stands there several times is penalised once.
    pub fn apply(&self, row: &[u32], scores: &mut [f32]) {
        if self.factor == 1.0 {
            return;
        }
        let first = self.window.map_or(0, |window| row.len().saturating_sub(window));
        let mut seen = row.get(first..).unwrap_or_default().to_vec();
        seen.sort_unstable();
        seen.dedup();
        for word in seen {
            if let Some(score) = scores.get_mut(word as usize) {
                *score = if *score < 0.0 { *score * self.factor } else { *score / self.factor };
            }
        }
    }
}

/// The index of the largest score, the first of several; `None` if there is none but NaN and minus infinity.
pub fn largest(scores: &[f32]) -> Option<usize> {
    let mut best = None;
    let mut most = f32::NEG_INFINITY;
    for (index, &score) in scores.iter().enumerate() {
        if score > most {
            (best, most) = (Some(index), score);
        }
    }
    best
}

/// Logits to logarithms of probabilities, in place. The sum is taken in 64-bit floats.
///
/// Where no logit is a number above minus infinity nothing is changed.
pub fn log_softmax(scores: &mut [f32]) {
    let Some(best) = largest(scores) else { return };
    let most = scores[best];
    let sum: f64 = scores.iter().map(|&score| f64::from(score - most).exp()).sum();
    let log = sum.ln() as f32;
    for score in scores {
        *score = (*score - most) - log;
    }
}

/// Make words impossible.
pub fn forbid(words: &[u32], scores: &mut [f32]) {
    for &word in words {
        if let Some(score) = scores.get_mut(word as usize) {
            *score = f32::NEG_INFINITY;
        }
    }
}

/// Make one word the only possible one, whatever its score was.
pub fn force(only: u32, scores: &mut [f32]) {
    for (word, score) in scores.iter_mut().enumerate() {
        *score = if word == only as usize { 0.0 } else { f32::NEG_INFINITY };
    }
}

/// The words that would repeat `size` words in a row which stand in `row` already.
pub fn repeating(row: &[u32], size: usize) -> Vec<u32> {
    let Some(begin) = size.checked_sub(1).and_then(|known| row.len().checked_sub(known)) else { return Vec::new() };
    let last = &row[begin..];
    row.windows(size).filter(|words| words.starts_with(last)).filter_map(|words| words.last().copied()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn words_of_the_window_are_penalised_once_and_away_from_zero() {
        let penalty = Penalty { factor: 2.0, window: Some(3) };
        let mut scores = [4.0, -4.0, 1.0, 0.0, 8.0];
        penalty.apply(&[4, 0, 1, 1], &mut scores);
        assert_eq!(scores, [2.0, -8.0, 1.0, 0.0, 8.0]);
        Penalty { window: None, ..penalty }.apply(&[4, 99], &mut scores);
        assert_eq!(scores[4], 4.0);
        let before = scores;
        Penalty::default().apply(&[0, 1, 2], &mut scores);
        assert_eq!(scores, before);
    }

    #[test]
    fn impossible_settings_are_errors() {
        for factor in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let error = Penalty { factor, window: None }.validate().unwrap_err().to_string();
            assert!(error.contains("repetition_penalty"), "{error}");
        }
        assert!(Penalty { factor: 1.0, window: Some(0) }.validate().is_err());
        assert!(Penalty::default().validate().is_ok());
    }

    #[test]
    fn logarithms_of_probabilities_sum_to_one_and_keep_what_is_impossible() {
        let mut scores = [1000.0, 1000.0 - 2_f32.ln(), f32::NEG_INFINITY];
        log_softmax(&mut scores);
        assert!((scores[0].exp() - 2.0 / 3.0).abs() < 1e-4);
        assert_eq!(scores[2], f32::NEG_INFINITY);
        let mut nothing = [f32::NEG_INFINITY; 2];
        log_softmax(&mut nothing);
        assert_eq!(nothing, [f32::NEG_INFINITY; 2]);
        let mut none: [f32; 0] = [];
        log_softmax(&mut none);
    }

    #[test]
    fn what_would_stand_there_again_is_found() {
        assert_eq!(repeating(&[1, 2, 3, 1, 2, 4, 1, 2], 3), [3, 4]);
        assert_eq!(repeating(&[1, 2, 1], 1), [1, 2, 1]);
        assert_eq!(repeating(&[5, 5], 2), [5]);
        for (row, size) in [(&[1, 2][..], 3), (&[1, 2], 4), (&[], 1), (&[1, 2], 0)] {
            assert!(repeating(row, size).is_empty(), "{row:?} {size}");
        }
    }

    #[test]
    fn a_forced_word_is_certain_however_unlikely_it_was() {
        let mut scores = [3.0, f32::NEG_INFINITY, 1.0];
        force(1, &mut scores);
        assert_eq!(scores, [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]);
    }

    #[test]
    fn the_first_of_equal_scores_is_the_largest() {
        assert_eq!(largest(&[1.0, 3.0, f32::NAN, 3.0]), Some(1));
        assert_eq!(largest(&[f32::NAN, f32::NEG_INFINITY]), None);
    }
}
