//! Processing of the next token's logits: repetition penalty, forbidden and forced tokens, log-softmax.

use crate::{Error, Result};

/// Makes tokens that the row has already less probable.
///
/// Source: Keskar et al., 2019 (CTRL), section 4.1; the window is ModelCenter's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RepetitionPenalty {
    /// Positive logits are divided by it, negative ones multiplied; 1 changes nothing.
    pub factor: f32,
    /// Only this number of last tokens counts; `None` for all.
    pub window: Option<usize>,
}

impl Default for RepetitionPenalty {
    /// No penalty.
    fn default() -> Self {
        RepetitionPenalty { factor: 1.0, window: None }
    }
}

impl RepetitionPenalty {
    /// Check that the factor is positive and the window not empty.
    pub fn validate(&self) -> Result<()> {
        if !(self.factor.is_finite() && self.factor > 0.0) {
            let reason = format!("{} is not a number above 0", self.factor);
            return Err(Error::argument("repetition_penalty", reason, "give 1 for none, or about 1.2"));
        }
        if self.window == Some(0) {
            return Err(Error::argument("repetition_window", "a window of no tokens", "leave it out for all tokens"));
        }
        Ok(())
    }

    /// Penalize the tokens of `row` in the logits `[V]` of the next one, each once.
    pub fn apply(&self, row: &[u32], logits: &mut [f32]) {
        if self.factor == 1.0 {
            return;
        }
        let first = self.window.map_or(0, |window| row.len().saturating_sub(window));
        let mut seen = row.get(first..).unwrap_or_default().to_vec();
        seen.sort_unstable();
        seen.dedup();
        for token in seen {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit = if *logit < 0.0 { *logit * self.factor } else { *logit / self.factor };
            }
        }
    }
}

/// The index of the largest logit, the first of equals; `None` if all are NaN or minus infinity.
pub fn argmax(logits: &[f32]) -> Option<usize> {
    let mut best = None;
    let mut most = f32::NEG_INFINITY;
    for (index, &logit) in logits.iter().enumerate() {
        if logit > most {
            (best, most) = (Some(index), logit);
        }
    }
    best
}

/// Logits to log probabilities, in place; unchanged if all are NaN or minus infinity.
///
/// Numerics: the sum is in `f64`.
pub fn log_softmax(logits: &mut [f32]) {
    let Some(best) = argmax(logits) else { return };
    let most = logits[best];
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit - most).exp()).sum();
    let log = sum.ln() as f32;
    for logit in logits {
        *logit = (*logit - most) - log;
    }
}

/// Set the logits of tokens to minus infinity.
pub fn suppress(tokens: &[u32], logits: &mut [f32]) {
    for &token in tokens {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Set the logit of `only` to 0 and all others to minus infinity.
pub fn force_token(only: u32, logits: &mut [f32]) {
    for (token, logit) in logits.iter_mut().enumerate() {
        *logit = if token == only as usize { 0.0 } else { f32::NEG_INFINITY };
    }
}

/// The tokens that would complete an n-gram of `size` tokens that `row` has already.
pub fn repeated_ngrams(row: &[u32], size: usize) -> Vec<u32> {
    let Some(begin) = size.checked_sub(1).and_then(|known| row.len().checked_sub(known)) else { return Vec::new() };
    let last = &row[begin..];
    row.windows(size).filter(|tokens| tokens.starts_with(last)).filter_map(|tokens| tokens.last().copied()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tokens_of_the_window_are_penalized_once_and_away_from_zero() {
        let penalty = RepetitionPenalty { factor: 2.0, window: Some(3) };
        let mut logits = [4.0, -4.0, 1.0, 0.0, 8.0];
        penalty.apply(&[4, 0, 1, 1], &mut logits);
        assert_eq!(logits, [2.0, -8.0, 1.0, 0.0, 8.0]);
        RepetitionPenalty { window: None, ..penalty }.apply(&[4, 99], &mut logits);
        assert_eq!(logits[4], 4.0);
        let before = logits;
        RepetitionPenalty::default().apply(&[0, 1, 2], &mut logits);
        assert_eq!(logits, before);
    }

    #[test]
    fn impossible_settings_are_errors() {
        for factor in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let error = RepetitionPenalty { factor, window: None }.validate().unwrap_err().to_string();
            assert!(error.contains("repetition_penalty"), "{error}");
        }
        assert!(RepetitionPenalty { factor: 1.0, window: Some(0) }.validate().is_err());
        assert!(RepetitionPenalty::default().validate().is_ok());
    }

    #[test]
    fn log_probabilities_sum_to_one_and_keep_minus_infinity() {
        let mut logits = [1000.0, 1000.0 - 2_f32.ln(), f32::NEG_INFINITY];
        log_softmax(&mut logits);
        assert!((logits[0].exp() - 2.0 / 3.0).abs() < 1e-4);
        assert_eq!(logits[2], f32::NEG_INFINITY);
        let mut nothing = [f32::NEG_INFINITY; 2];
        log_softmax(&mut nothing);
        assert_eq!(nothing, [f32::NEG_INFINITY; 2]);
        let mut none: [f32; 0] = [];
        log_softmax(&mut none);
    }

    #[test]
    fn repeated_ngrams_are_found() {
        assert_eq!(repeated_ngrams(&[1, 2, 3, 1, 2, 4, 1, 2], 3), [3, 4]);
        assert_eq!(repeated_ngrams(&[1, 2, 1], 1), [1, 2, 1]);
        assert_eq!(repeated_ngrams(&[5, 5], 2), [5]);
        for (row, size) in [(&[1, 2][..], 3), (&[1, 2], 4), (&[], 1), (&[1, 2], 0)] {
            assert!(repeated_ngrams(row, size).is_empty(), "{row:?} {size}");
        }
    }

    #[test]
    fn a_forced_token_is_certain() {
        let mut logits = [3.0, f32::NEG_INFINITY, 1.0];
        force_token(1, &mut logits);
        assert_eq!(logits, [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]);
    }

    #[test]
    fn the_first_of_equal_logits_is_the_largest() {
        assert_eq!(argmax(&[1.0, 3.0, f32::NAN, 3.0]), Some(1));
        assert_eq!(argmax(&[f32::NAN, f32::NEG_INFINITY]), None);
    }
}
