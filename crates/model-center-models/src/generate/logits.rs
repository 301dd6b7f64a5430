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
