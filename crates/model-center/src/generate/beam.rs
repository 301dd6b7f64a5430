//! Beam search for one prompt: which of several texts go on, and which are finished.
//!
//! Defines [`BeamOptions`] and [`Beams`], which knows scores and words but no model: [`Beams::step`] takes the scores
//! of the next words of every row and says which rows go on. Prompts do not know of each other, so a batch of them is
//! as many [`Beams`].
//!
//! Source: the rules are those of transformers 5.23, so that results can be compared word by word.

use super::generator::MOST_TEXTS;
use super::scores::log_softmax;
use crate::{Error, Result};
use std::cmp::Ordering;

/// When the search ends before the longest text is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Patience {
    /// When no text that goes on would now score better than the worst that is kept.
    #[default]
    Likely,
    /// As soon as enough are finished.
    First,
    /// When none could ever score better than the worst that is kept.
    Never,
}

/// Settings of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BeamOptions {
    /// Texts that go on side by side, and at most as many that are kept.
    pub beams: usize,
    /// A text's score is the sum of its words' logarithms of probabilities, divided by the number of words to this
    /// power.
    pub length_penalty: f32,
    /// When to end early.
    pub patience: Patience,
    /// Texts that are given back, the best first; at most `beams`.
    pub best: usize,
    /// Whether the probabilities of words that are left when others are forbidden sum to 1 again.
    pub renormalizes: bool,
}

impl Default for BeamOptions {
    fn default() -> Self {
        BeamOptions::DEFAULT
    }
}

impl BeamOptions {
    /// One text, the likeliest by the mean over its words.
    pub const DEFAULT: BeamOptions =
        BeamOptions { beams: 1, length_penalty: 1.0, patience: Patience::Likely, best: 1, renormalizes: false };

    /// Check the settings.
    ///
    /// # Errors
    /// No beam, more texts than beams, an exponent that is no number.
    pub fn validate(&self) -> Result<()> {
        if self.beams == 0 || self.beams > MOST_TEXTS {
            let reason = format!("{} beams", self.beams);
            return Err(Error::argument("beams", reason, format!("give between 1 and {MOST_TEXTS}")));
        }
        if self.best == 0 || self.best > self.beams {
            let reason = format!("{} texts of {} beams", self.best, self.beams);
            return Err(Error::argument("best", reason, "give between 1 and the number of beams"));
        }
        if !self.length_penalty.is_finite() {
            let reason = format!("{} is no number", self.length_penalty);
            return Err(Error::argument(
                "length_penalty",
                reason,
                "give 1 for the mean score of a word, 0 for the sum",
            ));
        }
        Ok(())
    }
}

/// A text with its score.
#[derive(Debug, Clone, PartialEq)]
pub struct Hypothesis {
    /// What was generated, with the word that ended it.
    pub words: Vec<u32>,
    /// The sum of its words' logarithms of probabilities, divided by the number of words to the power of the length
    /// penalty.
    pub score: f32,
    /// Whether one of the words that end a text, or the longest length, ended it.
    pub is_finished: bool,
}

/// A text that goes on.
#[derive(Debug, Clone)]
struct Running {
    words: Vec<u32>,
    /// Sum of the logarithms of probabilities.
    sum: f32,
}

/// One way to go on.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// The row that it goes on from.
    from: usize,
    word: u32,
    sum: f32,
}

/// The state of a search for one prompt.
#[derive(Debug, Clone)]
pub struct Beams {
    options: BeamOptions,
    /// Words that end a text.
    ends: Vec<u32>,
    /// The most words of a text.
    longest: usize,
    running: Vec<Running>,
    /// The best first.
    kept: Vec<Hypothesis>,
    is_done: bool,
}

/// Higher sums first; of equals the earlier row, then the smaller word, as a list of all of them would have it.
fn better(a: &Candidate, b: &Candidate) -> Ordering {
    b.sum.total_cmp(&a.sum).then(a.from.cmp(&b.from)).then(a.word.cmp(&b.word))
}

impl Beams {
    /// Begin behind a prompt; texts end with one of `ends` or at `longest` words.
    ///
    /// # Errors
    /// Those of [`BeamOptions::validate`]; texts without a word.
    pub fn new(options: BeamOptions, ends: &[u32], longest: usize) -> Result<Self> {
        options.validate()?;
        if longest == 0 {
            return Err(Error::argument("max_new_tokens", "no word may be generated", "give 1 or more"));
        }
        let running = vec![Running { words: Vec::new(), sum: 0.0 }];
        Ok(Beams { options, ends: ends.to_vec(), longest, running, kept: Vec::new(), is_done: false })
    }

    /// Texts that go on; at the beginning one, the prompt.
    pub fn rows(&self) -> usize {
        if self.is_done { 0 } else { self.running.len() }
    }

    /// What was generated in a row so far.
    pub fn words(&self, row: usize) -> &[u32] {
        self.running.get(row).map_or(&[], |running| &running.words)
    }

    /// Whether the search is over.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Take the logits of the next word, `[V]` for each of [`Beams::rows`], and go on. `change` may alter the
    /// logarithms of probabilities that they become, knowing a row's words; `stops` tells whether a text ends for
    /// another reason than its last word or its length. What is returned says for each row that goes on which row it
    /// goes on from; its new word is the last of [`Beams::words`].
    pub fn step(
        &mut self,
        logits: &mut [Vec<f32>],
        mut change: impl FnMut(&[u32], &mut [f32]),
        mut stops: impl FnMut(&[u32]) -> bool,
    ) -> Vec<usize> {
        if self.is_done {
            return Vec::new();
        }
        for (running, scores) in self.running.iter().zip(logits.iter_mut()) {
            log_softmax(scores);
            change(&running.words, scores);
            if self.options.renormalizes {
                log_softmax(scores);
            }
        }
        let BeamOptions { beams, .. } = self.options;
        // Enough that as many as there are beams go on even if all the others end here.
        let candidates = self.candidates(logits, beams * (1 + self.ends.len()).max(2));
        let length = self.running.first().map_or(0, |running| running.words.len()) + 1;
        let mut next = Vec::with_capacity(beams);
        for (place, candidate) in candidates.iter().enumerate() {
            let ends = length >= self.longest || self.ends.contains(&candidate.word);
            if !ends && !stops(&self.extended(candidate)) {
                next.push(*candidate);
            } else if place < beams {
                let score = candidate.sum / self.penalty(length);
                self.keep(Hypothesis { words: self.extended(candidate), score, is_finished: true });
            }
            if next.len() == beams && place + 1 >= beams {
                break;
            }
        }
        self.running =
            next.iter().map(|candidate| Running { words: self.extended(candidate), sum: candidate.sum }).collect();
        self.is_done = self.ends_here(length);
        next.iter().map(|candidate| candidate.from).collect()
    }

    /// The best texts, the best first. Those that did not end only where too few did.
    pub fn finish(self) -> Vec<Hypothesis> {
        let mut kept = self.kept;
        if kept.len() < self.options.best && !self.is_done {
            let length = self.running.first().map_or(1, |running| running.words.len().max(1));
            let penalty = (length as f32).powf(self.options.length_penalty);
            kept.extend(self.running.into_iter().map(|Running { words, sum }| Hypothesis {
                words,
                score: sum / penalty,
                is_finished: false,
            }));
        }
        kept.truncate(self.options.best);
        kept
    }

    /// The so many best ways to go on from any row; possible ones only.
    fn candidates(&self, scores: &[Vec<f32>], most: usize) -> Vec<Candidate> {
        // No more than there are, however many words end a text.
        let most = most.min(scores.iter().map(Vec::len).sum()).max(1);
        let mut best: Vec<Candidate> = Vec::new();
        let mut least = f32::NEG_INFINITY;
        for (from, (running, scores)) in self.running.iter().zip(scores).enumerate() {
            for (word, score) in scores.iter().enumerate() {
                let sum = running.sum + score;
                // Not a number is not possible either. An equal one further on is not better.
                if sum > least {
                    best.push(Candidate { from, word: word as u32, sum });
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
        let words = self.words(candidate.from);
        words.iter().copied().chain([candidate.word]).collect()
    }

    fn penalty(&self, length: usize) -> f32 {
        (length as f32).powf(self.options.length_penalty)
    }

    /// Keep a text if it is among the best; of equals the earlier one stays in front.
    fn keep(&mut self, hypothesis: Hypothesis) {
        let place = self.kept.partition_point(|kept| kept.score >= hypothesis.score);
        self.kept.insert(place, hypothesis);
        self.kept.truncate(self.options.beams);
    }

    /// Whether nothing that could still come counts, `length` words into the texts.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const OPTIONS: BeamOptions = BeamOptions { beams: 2, best: 2, ..BeamOptions::DEFAULT };

    /// Scores whose probabilities are these.
    fn row(chances: &[f32]) -> Vec<f32> {
        chances.iter().map(|chance| chance.ln()).collect()
    }

    fn unchanged(_: &[u32], _: &mut [f32]) {}

    fn endless(_: &[u32]) -> bool {
        false
    }

    /// A chain of words in which the next depends on the last: row 0 behind the prompt. Word 0 ends a text.
    const CHAIN: [[f32; 4]; 4] =
        [[0.0, 0.5, 0.4, 0.1], [0.4, 0.2, 0.2, 0.2], [0.9, 0.05, 0.03, 0.02], [0.25, 0.25, 0.25, 0.25]];

    fn search(options: BeamOptions, longest: usize) -> Vec<Hypothesis> {
        let mut beams = Beams::new(options, &[0], longest).unwrap();
        while !beams.is_done() {
            let last = |place: usize| beams.words(place).last().map_or(0, |word| *word as usize);
            let mut scores: Vec<Vec<f32>> = (0..beams.rows()).map(|place| row(&CHAIN[last(place)])).collect();
            let rows = beams.rows();
            let from = beams.step(&mut scores, unchanged, endless);
            assert!(from.iter().all(|&from| from < rows));
        }
        beams.finish()
    }

    /// All texts up to a length with their scores, the best first.
    fn all(longest: usize, exponent: f32) -> Vec<(Vec<u32>, f32)> {
        let mut done = Vec::new();
        let mut open = vec![(Vec::new(), 0.0_f32)];
        while let Some((words, sum)) = open.pop() {
            let last = words.last().map_or(0, |word: &u32| *word as usize);
            for (word, chance) in CHAIN[last].iter().enumerate() {
                let (mut words, sum) = (words.clone(), sum + chance.ln());
                words.push(word as u32);
                if word == 0 || words.len() == longest {
                    let score = sum / (words.len() as f32).powf(exponent);
                    done.push((words, score));
                } else {
                    open.push((words, sum));
                }
            }
        }
        done.sort_by(|a, b| b.1.total_cmp(&a.1));
        done
    }

    #[test]
    fn with_enough_beams_the_best_of_all_texts_is_found() {
        for exponent in [0.0, 1.0, -0.5] {
            let wide =
                BeamOptions { beams: 64, length_penalty: exponent, patience: Patience::Never, best: 3, ..OPTIONS };
            let (found, all) = (search(wide, 4), all(4, exponent));
            for (found, (words, score)) in found.iter().zip(&all) {
                assert!((found.score - score).abs() < 1e-5, "{found:?} {words:?} {score}");
                assert!(found.is_finished);
            }
        }
    }

    #[test]
    fn two_beams_find_what_one_misses() {
        // The likeliest first word leads to a worse text.
        assert_eq!(search(BeamOptions { beams: 1, best: 1, length_penalty: 0.0, ..OPTIONS }, 3)[0].words, [1, 0]);
        let found = search(BeamOptions { length_penalty: 0.0, ..OPTIONS }, 3);
        assert_eq!((&found[0].words[..], &found[1].words[..]), (&[2, 0][..], &[1, 0][..]));
        assert!((found[0].score - 0.36_f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn the_first_finished_texts_end_an_impatient_search() {
        let found = search(BeamOptions { patience: Patience::First, ..OPTIONS }, 20);
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|text| text.words.last() == Some(&0)));
    }

    #[test]
    fn texts_that_are_cut_off_count_as_they_stand() {
        let mut beams = Beams::new(OPTIONS, &[0], 9).unwrap();
        beams.step(&mut [row(&CHAIN[0])], unchanged, endless);
        assert_eq!((beams.rows(), beams.words(0), beams.words(1)), (2, &[1][..], &[2][..]));
        let cut = beams.finish();
        assert_eq!(cut.len(), 2);
        assert!(!cut[0].is_finished && (cut[0].score - 0.5_f32.ln()).abs() < 1e-6);
    }

    #[test]
    fn a_row_without_possible_words_ends() {
        let mut beams = Beams::new(OPTIONS, &[0], 9).unwrap();
        assert!(beams.step(&mut [vec![f32::NEG_INFINITY, f32::NAN]], unchanged, endless).is_empty());
        assert!(beams.is_done() && beams.rows() == 0);
        assert!(beams.step(&mut [], unchanged, endless).is_empty());
        assert!(beams.finish().is_empty());
    }

    #[test]
    fn what_is_forbidden_behind_certain_words_does_not_come() {
        let mut beams = Beams::new(OPTIONS, &[0], 9).unwrap();
        let forbid = |words: &[u32], scores: &mut [f32]| {
            if words.is_empty() {
                scores[1] = f32::NEG_INFINITY;
            }
        };
        beams.step(&mut [row(&CHAIN[0])], forbid, endless);
        assert_eq!((beams.words(0), beams.words(1)), (&[2][..], &[3][..]));
    }

    #[test]
    fn texts_may_end_by_what_they_say() {
        let mut beams = Beams::new(BeamOptions { best: 1, ..OPTIONS }, &[0], 9).unwrap();
        beams.step(&mut [row(&CHAIN[0])], unchanged, |words| words == [1]);
        assert_eq!((beams.rows(), beams.words(0), beams.words(1)), (2, &[2][..], &[3][..]));
        assert_eq!(beams.finish()[0].words, [1]);
    }

    #[test]
    fn settings_that_make_no_sense_are_errors() {
        for wrong in [
            BeamOptions { beams: 0, ..OPTIONS },
            BeamOptions { beams: usize::MAX, ..OPTIONS },
            BeamOptions { best: 0, ..OPTIONS },
            BeamOptions { best: 3, ..OPTIONS },
            BeamOptions { length_penalty: f32::NAN, ..OPTIONS },
        ] {
            assert!(Beams::new(wrong, &[0], 9).is_err(), "{wrong:?}");
        }
        assert!(Beams::new(OPTIONS, &[], 0).is_err());
    }
}
