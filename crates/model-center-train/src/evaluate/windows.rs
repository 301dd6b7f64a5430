//! Overlapping windows over the tokens of a text.
//!
//! Defines [`Windows`]. Source: the evaluation of Megatron-LM: a window starts every `stride` tokens, the first one
//! scores all its targets and each later one the last `stride`, so that every token but the first is scored once and
//! with at least `length - stride` tokens of context. Deliberate difference: there are no windows after the one that
//! reaches the last token; Megatron-LM's further ones score nothing.

use std::ops::Range;

use super::{ScoredSequence, ScoredTarget};
use crate::{Error, Result};

/// The windows of a text of this many tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    tokens: u64,
    length: u64,
    stride: u64,
}

impl Windows {
    /// Windows of `length` inputs, one every `stride` tokens.
    ///
    /// # Errors
    /// [`Error::Argument`] for a length of 0 and a stride that is 0 or above the length.
    pub fn new(tokens: u64, length: usize, stride: usize) -> Result<Windows> {
        if length == 0 {
            return Err(Error::argument("length", "windows of 0 tokens", "use at most the positions of the model"));
        }
        if stride == 0 || stride > length {
            let reason = format!("a window every {stride} tokens, and windows of {length} tokens");
            return Err(Error::argument("overlap", reason, format!("use a number from 1 to {length}")));
        }
        Ok(Windows { tokens, length: length as u64, stride: stride as u64 })
    }

    /// Tokens that are predicted: all but the first.
    pub fn targets(&self) -> u64 {
        self.tokens.saturating_sub(1)
    }

    /// Number of windows; 0 if nothing is predicted.
    pub fn len(&self) -> u64 {
        match self.targets() {
            0 => 0,
            targets => 1 + targets.saturating_sub(self.length).div_ceil(self.stride),
        }
    }

    /// Whether nothing is predicted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens that the first `windows` windows read.
    pub fn reach(length: usize, stride: usize, windows: u64) -> u64 {
        match windows {
            0 => 0,
            more => (more - 1).saturating_mul(stride as u64).saturating_add(length as u64 + 1),
        }
    }

    /// Tokens of a window, the last of them a target alone, and the number of its targets, the last ones, that are
    /// scored.
    pub fn at(&self, window: u64) -> (Range<u64>, u64) {
        let start = window.saturating_mul(self.stride).min(self.tokens);
        let end = start.saturating_add(self.length + 1).min(self.tokens);
        let before = match window {
            0 => 1,
            _ => (start + self.length + 1 - self.stride).min(end),
        };
        (start..end, end.saturating_sub(before))
    }

    /// A window's tokens as a sequence whose last `scored` targets are scored.
    pub fn sequence(tokens: &[u32], scored: u64) -> ScoredSequence {
        let inputs = tokens.len().saturating_sub(1);
        let first = inputs.saturating_sub(usize::try_from(scored).unwrap_or(usize::MAX));
        let targets = (first..inputs).map(|position| ScoredTarget { position, token: tokens[position + 1] });
        ScoredSequence { input: tokens[..inputs].to_vec(), targets: targets.collect() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::Windows;

    /// For each target the number of tokens before it that are read; every target is scored once and in order.
    fn contexts(tokens: u64, length: usize, stride: usize) -> Vec<u64> {
        let windows = Windows::new(tokens, length, stride).unwrap();
        let mut contexts = Vec::new();
        for window in 0..windows.len() {
            let (range, scored) = windows.at(window);
            assert!(range.end - range.start <= length as u64 + 1, "{range:?}");
            for target in range.end - scored..range.end {
                assert_eq!(target, contexts.len() as u64 + 1);
                contexts.push(target - range.start);
            }
        }
        assert_eq!(contexts.len() as u64, windows.targets());
        contexts
    }

    #[test]
    fn every_token_but_the_first_is_scored_once() {
        assert_eq!(contexts(8, 3, 3), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(contexts(8, 3, 1), [1, 2, 3, 3, 3, 3, 3]);
        assert_eq!(contexts(9, 4, 2), [1, 2, 3, 4, 3, 4, 3, 4]);
        assert_eq!(contexts(3, 4, 2), [1, 2]);
        assert!(contexts(1, 4, 2).is_empty() && contexts(0, 4, 2).is_empty());
    }

    #[test]
    fn the_number_of_windows_is_megatrons_where_they_score_something() {
        // Megatron-LM has max(ceil(max(T - 1 - S, 0) / S) + 1, 1) windows; those that start after T - 1 - L score
        // nothing. With L = S the numbers are equal.
        for tokens in 2..40_u64 {
            let windows = Windows::new(tokens, 5, 5).unwrap();
            assert_eq!(windows.len(), ((tokens - 1).saturating_sub(5)).div_ceil(5) + 1);
        }
        assert_eq!(Windows::reach(5, 2, 3), 10);
    }

    #[test]
    fn strides_out_of_range_are_refused() {
        assert!(Windows::new(9, 0, 1).is_err() && Windows::new(9, 4, 0).is_err() && Windows::new(9, 4, 5).is_err());
    }
}
