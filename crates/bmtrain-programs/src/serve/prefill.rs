//! Prompts that are read in pieces, so that running sequences go on beside a long one.

use super::engine::ActiveJob;
use super::job::{Event, Score, ScoredToken};
use crate::{Error, Result};
use model_center_models::generate::{more_probable, token_score};
use model_center_models::{LogitsRead, SequenceTokens};
use std::cmp::Ordering;
use std::rc::Rc;

/// A prompt of a job that is being read.
pub(super) struct Prefill {
    pub(super) job: Rc<ActiveJob>,
    /// Index of the prompt.
    pub(super) prompt: usize,
    /// The sequence of the model.
    pub(super) sequence: usize,
    /// Tokens of it that were read.
    pub(super) read: usize,
    /// Tokens of the next pass.
    next: usize,
    scored: Vec<ScoredToken>,
}

impl Prefill {
    pub(super) fn new(job: Rc<ActiveJob>, prompt: usize, sequence: usize) -> Self {
        Prefill { job, prompt, sequence, read: 0, next: 0, scored: Vec::new() }
    }

    pub(super) fn tokens(&self) -> &[u32] {
        self.job.job.prompts.get(self.prompt).map_or(&[], Vec::as_slice)
    }

    /// The most new tokens.
    pub(super) fn limit(&self) -> usize {
        self.job.job.limits.get(self.prompt).copied().unwrap_or(0)
    }

    /// Tokens that are not read yet.
    pub(super) fn left(&self) -> usize {
        self.tokens().len() - self.read
    }

    /// Whether the next pass reads the last token.
    pub(super) fn is_last(&self) -> bool {
        self.next == self.left()
    }

    /// Takes part in the next pass with up to `most` tokens; returns their number. `logits` is the number of tokens
    /// whose logits the pass may still return.
    pub(super) fn plan(&mut self, most: usize, logits: &mut usize) -> usize {
        let scores = self.job.job.scores_prompts;
        self.next = self.left().min(if scores { most.min(*logits) } else { most });
        *logits -= self.planned_logits();
        self.next
    }

    /// Tokens of the next pass.
    pub(super) fn planned(&self) -> usize {
        self.next
    }

    /// Tokens of the next pass whose logits are all returned.
    pub(super) fn planned_logits(&self) -> usize {
        if self.job.job.scores_prompts { self.next } else { 0 }
    }

    /// Its part of the next pass, if it has one.
    pub(super) fn part(&self) -> Option<SequenceTokens<'_>> {
        let logits = match () {
            () if self.job.job.scores_prompts => LogitsRead::All,
            () if self.is_last() => LogitsRead::Last,
            () => LogitsRead::None,
        };
        let tokens = self.tokens().get(self.read..self.read + self.next)?;
        (!tokens.is_empty()).then_some(SequenceTokens { sequence: self.sequence, tokens, logits })
    }

    /// Takes the logits of the pass; returns the logits of the first new token once all tokens were read.
    pub(super) fn take(&mut self, logits: &mut impl Iterator<Item = Vec<f32>>) -> Result<Option<Vec<f32>>> {
        if self.next == 0 {
            return Ok(None);
        }
        let (first, is_last) = (self.read, self.is_last());
        self.read += std::mem::take(&mut self.next);
        let missing = || Error::model("the model", "it returned fewer logits than were asked for", "report this");
        let Some(top) = self.job.job.scores.filter(|_| self.job.job.scores_prompts) else {
            return if is_last { logits.next().ok_or_else(missing).map(Some) } else { Ok(None) };
        };
        let tokens = self.job.job.prompts.get(self.prompt).map_or(&[][..], Vec::as_slice);
        if let (0, Some(token)) = (first, tokens.first()) {
            self.scored.push(ScoredToken { token: *token, score: None });
        }
        let mut last = None;
        for position in first..self.read {
            let own = logits.next().ok_or_else(missing)?;
            match tokens.get(position + 1) {
                Some(token) => self.scored.push(ScoredToken { token: *token, score: Some(score(&own, *token, top)?) }),
                None => last = Some(own),
            }
        }
        if is_last {
            self.job.send(Event::Prompt { prompt: self.prompt, tokens: std::mem::take(&mut self.scored) });
        }
        Ok(last)
    }
}

/// The log probability of a token, and of the `top` most probable ones, best first.
///
/// # Errors
/// Logits that are not finite.
pub(super) fn score(logits: &[f32], token: u32, top: usize) -> Result<Score> {
    let log_prob = token_score(logits, token)?.log_prob;
    let own = logits.get(token as usize).copied().unwrap_or(0.0);
    // Best first; few of them, so that each is put in its place.
    let mut best: Vec<(u32, f32)> = Vec::with_capacity(top + 1);
    for candidate in logits.iter().enumerate().map(|(token, logit)| (token as u32, *logit)) {
        let place = best.partition_point(|other| more_probable(other, &candidate) == Ordering::Less);
        if place < top {
            best.insert(place, candidate);
            best.truncate(top);
        }
    }
    let log_prob_of = |logit: f32| log_prob + (f64::from(logit) - f64::from(own));
    Ok(Score { log_prob, top: best.into_iter().map(|(token, logit)| (token, log_prob_of(logit))).collect() })
}

#[cfg(test)]
mod tests {
    use super::score;

    #[test]
    fn scores_are_log_probabilities_best_first() {
        let logits = [0.0, 4.0_f32.ln(), 1.0_f32.ln(), 2.0_f32.ln()];
        let score = score(&logits, 3, 2).unwrap();
        assert!((score.log_prob - 0.25_f64.ln()).abs() < 1e-6, "{score:?}");
        assert_eq!(score.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 3]);
        assert!((score.top[0].1 - 0.5_f64.ln()).abs() < 1e-6 && score.top[1].1 == score.log_prob, "{score:?}");
        assert_eq!(
            super::score(&logits, 0, 9).unwrap().top.iter().map(|(token, _)| *token).collect::<Vec<_>>(),
            [1, 3, 0, 2]
        );
        assert!(super::score(&logits, 0, 0).unwrap().top.is_empty());
        assert!(super::score(&[f32::NAN, 0.0], 1, 1).is_err());
    }
}
