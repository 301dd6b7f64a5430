//! Beam search for one prompt, without a model: [`Beams::step`] takes the logits of every row and returns which rows
//! continue. A batch of prompts has one [`Beams`] for each.
//!
//! Source: transformers 5.23; results are equal token by token.

use super::logits::log_softmax;
use super::options::MAX_SEQUENCES;
use crate::{Error, Result};
use std::cmp::Ordering;

/// Early stopping: when the search ends before the longest sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Patience {
    /// When the best running sequence would now score no better than the worst finished one.
    #[default]
    Likely,
    /// As soon as there is a finished sequence for each beam.
    First,
    /// When no running sequence could ever score better than the worst finished one.
    Never,
}

/// Options of beam search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamOptions {
    /// Running sequences, and the most finished ones.
    pub beams: usize,
    /// The score is the sum of log probabilities, divided by the number of tokens to this power.
    pub length_penalty: f32,
    /// Early stopping.
    pub patience: Patience,
    /// Sequences to return, the best first; at most `beams`.
    pub best: usize,
    /// Whether log probabilities are renormalized after the processing of logits.
    pub renormalizes: bool,
}

impl Default for BeamOptions {
    fn default() -> Self {
        BeamOptions::DEFAULT
    }
}

impl BeamOptions {
    /// One beam, scored by the mean log probability.
    pub const DEFAULT: BeamOptions =
        BeamOptions { beams: 1, length_penalty: 1.0, patience: Patience::Likely, best: 1, renormalizes: false };

    /// Check the ranges.
    pub fn validate(&self) -> Result<()> {
        if self.beams == 0 || self.beams > MAX_SEQUENCES {
            let reason = format!("{} beams", self.beams);
            return Err(Error::argument("beams", reason, format!("give between 1 and {MAX_SEQUENCES}")));
        }
        if self.best == 0 || self.best > self.beams {
            let reason = format!("{} texts of {} beams", self.best, self.beams);
            return Err(Error::argument("best", reason, "give between 1 and the number of beams"));
        }
        if !self.length_penalty.is_finite() {
            let reason = format!("{} is not a number", self.length_penalty);
            return Err(Error::argument(
                "length_penalty",
                reason,
                "give 1 for the mean log probability, 0 for the sum",
            ));
        }
        Ok(())
    }
}

/// A sequence with its score.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// Generated tokens, with the end token.
    pub tokens: Vec<u32>,
    /// The sum of log probabilities, divided by the number of tokens to the power of the length penalty.
    pub score: f32,
    /// Whether an end token, a stop or the longest length ended it.
    pub is_finished: bool,
}

/// A running sequence.
#[derive(Debug, Clone)]
struct Running {
    tokens: Vec<u32>,
    /// Sum of log probabilities.
    sum: f32,
}

/// An extension by one token.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// The row that it extends.
    from: usize,
    token: u32,
    sum: f32,
}

/// The state of a search for one prompt.
#[derive(Debug, Clone)]
pub struct Beams {
    options: BeamOptions,
    ends: Vec<u32>,
    /// The most tokens of a sequence.
    longest: usize,
    running: Vec<Running>,
    /// The best first.
    kept: Vec<Hypothesis>,
    is_done: bool,
}

/// Higher sums first; of equals the earlier row, then the smaller token.
fn better(a: &Candidate, b: &Candidate) -> Ordering {
    b.sum.total_cmp(&a.sum).then(a.from.cmp(&b.from)).then(a.token.cmp(&b.token))
}

impl Beams {
    /// Start a search; sequences end with one of `ends` or at `longest` tokens.
    pub fn new(options: BeamOptions, ends: &[u32], longest: usize) -> Result<Self> {
        options.validate()?;
        if longest == 0 {
            return Err(Error::argument("max_new_tokens", "no token may be generated", "give 1 or more"));
        }
        let running = vec![Running { tokens: Vec::new(), sum: 0.0 }];
        Ok(Beams { options, ends: ends.to_vec(), longest, running, kept: Vec::new(), is_done: false })
    }

    /// Running sequences; one at the start.
    pub fn rows(&self) -> usize {
        if self.is_done { 0 } else { self.running.len() }
    }

    /// The generated tokens of a row.
    pub fn tokens(&self, row: usize) -> &[u32] {
        self.running.get(row).map_or(&[], |running| &running.tokens)
    }

    /// Whether the search is over.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Extend by a token, given the logits `[V]` of each of [`Beams::rows`]. `process` changes the log probabilities of
    /// a row with the given tokens; `stops` returns whether a sequence has a stop string. Returns for each new row the
    /// row that it extends; its new token is the last of [`Beams::tokens`].
    pub fn step(
        &mut self,
        logits: &mut [Vec<f32>],
        mut process: impl FnMut(&[u32], &mut [f32]),
        mut stops: impl FnMut(&[u32]) -> bool,
    ) -> Vec<usize> {
        if self.is_done {
            return Vec::new();
        }
        for (running, scores) in self.running.iter().zip(logits.iter_mut()) {
            log_softmax(scores);
            process(&running.tokens, scores);
            if self.options.renormalizes {
                log_softmax(scores);
            }
        }
        let BeamOptions { beams, .. } = self.options;
        // Enough for `beams` continued rows even if all other candidates end here.
        let candidates = self.candidates(logits, beams * (1 + self.ends.len()).max(2));
        let length = self.running.first().map_or(0, |running| running.tokens.len()) + 1;
        let mut next = Vec::with_capacity(beams);
        for (position, candidate) in candidates.iter().enumerate() {
            let ends = length >= self.longest || self.ends.contains(&candidate.token);
            if !ends && !stops(&self.extended(candidate)) {
                next.push(*candidate);
            } else if position < beams {
                let score = candidate.sum / self.penalty(length);
                self.keep(Hypothesis { tokens: self.extended(candidate), score, is_finished: true });
            }
            if next.len() == beams && position + 1 >= beams {
                break;
            }
        }
        self.running =
            next.iter().map(|candidate| Running { tokens: self.extended(candidate), sum: candidate.sum }).collect();
        self.is_done = self.ends_here(length);
        next.iter().map(|candidate| candidate.from).collect()
    }

    /// The best sequences, the best first; running ones only if too few are finished.
    pub fn finish(self) -> Vec<Hypothesis> {
        let mut kept = self.kept;
        if kept.len() < self.options.best && !self.is_done {
            let length = self.running.first().map_or(1, |running| running.tokens.len().max(1));
            let penalty = (length as f32).powf(self.options.length_penalty);
            kept.extend(self.running.into_iter().map(|Running { tokens, sum }| Hypothesis {
                tokens,
                score: sum / penalty,
                is_finished: false,
            }));
        }
        kept.truncate(self.options.best);
        kept
    }

    /// The `most` best extensions of all rows, without impossible ones.
    fn candidates(&self, scores: &[Vec<f32>], most: usize) -> Vec<Candidate> {
        // No more than there are, whatever the number of end tokens.
        let most = most.min(scores.iter().map(Vec::len).sum()).max(1);
        let mut best: Vec<Candidate> = Vec::new();
        let mut least = f32::NEG_INFINITY;
        for (from, (running, scores)) in self.running.iter().zip(scores).enumerate() {
            for (token, score) in scores.iter().enumerate() {
                let sum = running.sum + score;
                // False for NaN; a later equal one is not better.
                if sum > least {
                    best.push(Candidate { from, token: token as u32, sum });
                }
                if best.len() == 2 * most {
                    best.select_nth_unstable_by(most - 1, better);
                    best.truncate(most);
                    least = best.iter().fold(f32::INFINITY, |least, candidate| least.min(candidate.sum));
                }
            }
        }
        best.sort_unstable_by(better);
        best.truncate(most);
        best
    }

    fn extended(&self, candidate: &Candidate) -> Vec<u32> {
        let tokens = self.tokens(candidate.from);
        tokens.iter().copied().chain([candidate.token]).collect()
    }

    fn penalty(&self, length: usize) -> f32 {
        (length as f32).powf(self.options.length_penalty)
    }

    /// Keep a finished sequence if it is among the best; of equals the earlier one is first.
    fn keep(&mut self, hypothesis: Hypothesis) {
        let place = self.kept.partition_point(|kept| kept.score >= hypothesis.score);
        self.kept.insert(place, hypothesis);
        self.kept.truncate(self.options.beams);
    }

    /// Whether no running sequence can be among the best, at `length` tokens.
    fn ends_here(&self, length: usize) -> bool {
        let Some(first) = self.running.first() else { return true };
        let (true, Some(worst)) = (self.kept.len() == self.options.beams, self.kept.last()) else { return false };
        let reached = match self.options.patience {
            Patience::First => return true,
            Patience::Never if self.options.length_penalty > 0.0 => self.longest,
            Patience::Likely | Patience::Never => length,
        };
        first.sum / self.penalty(reached) <= worst.score
    }
}
