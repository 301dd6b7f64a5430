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

/// How a model rates a token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenScore {
    /// Natural logarithm of its probability.
    pub log_prob: f64,
    /// Whether no other token is more probable; of equals, the first in the vocabulary counts.
    pub is_greedy: bool,
}

/// The score of a token by the logits of a position.
///
/// # Errors
/// [`Error::Model`] for logits that are not finite.
pub fn token_score(logits: &[f32], token: u32) -> Result<TokenScore> {
    let not_finite = |value: f32| {
        Error::model("evaluation", format!("a logit is {value}"), "check the weights, or choose --dtype f32")
    };
    let own = logits.get(token as usize).copied().unwrap_or(f32::NAN);
    let (mut most, mut best) = (f32::NEG_INFINITY, 0);
    for (index, logit) in logits.iter().enumerate() {
        if !logit.is_finite() && *logit != f32::NEG_INFINITY {
            return Err(not_finite(*logit));
        }
        if *logit > most {
            (most, best) = (*logit, index);
        }
    }
    if !own.is_finite() || !most.is_finite() {
        return Err(not_finite(own));
    }
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    Ok(TokenScore { log_prob: f64::from(own) - f64::from(most) - sum.ln(), is_greedy: best == token as usize })
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
    use super::token_score as score;

    #[test]
    fn a_score_is_a_log_softmax_and_the_first_of_equals_is_greedy() {
        let logits = [0.0, 2.0_f32.ln(), 2.0_f32.ln(), f32::NEG_INFINITY];
        let first = score(&logits, 1).unwrap();
        assert!((first.log_prob - (0.4_f64).ln()).abs() < 1e-7 && first.is_greedy);
        assert!(!score(&logits, 2).unwrap().is_greedy);
        assert!(score(&logits, 4).is_err() && score(&[f32::NAN, 0.0], 1).is_err());
    }
}
