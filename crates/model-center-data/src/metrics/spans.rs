//! Answers as spans of a passage: from the logits of first and last tokens to the text of a question.
//!
//! Defines [`SpanSearch`], which finds the best spans of a window, and [`SpanAnswers`], which chooses among the windows
//! of each question. Source: the example for question answering of transformers: the sum of the two logits, the best
//! starts and ends of a window, answers of bounded length, and, where questions may have none, the logits of the first
//! token as the score of that.

use std::collections::BTreeMap;

/// The best starts and ends of a window that are combined, and the candidates that are kept of it.
pub const N_BEST: usize = 20;

/// A span of tokens with the sum of its logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpanCandidate {
    /// Logit of the first token plus logit of the last one.
    pub score: f32,
    /// The first token.
    pub start: usize,
    /// The last token.
    pub end: usize,
}

/// Which spans are answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanSearch {
    /// The most tokens of an answer.
    pub longest: usize,
}

impl SpanSearch {
    /// The best span of a window whose passage has the tokens `passage`; `None` if no pair of a good start and a good
    /// end is a span of it. Of equal scores the one with the better start counts.
    pub fn best(&self, starts: &[f32], ends: &[f32], passage: std::ops::Range<usize>) -> Option<SpanCandidate> {
        let (starts, ends) = (best_of(starts), best_of(ends));
        let mut best: Option<SpanCandidate> = None;
        for &(start, start_logit) in &starts {
            for &(end, end_logit) in &ends {
                let fits = passage.contains(&start) && passage.contains(&end);
                if !fits || end < start || end - start + 1 > self.longest {
                    continue;
                }
                let score = start_logit + end_logit;
                if best.is_none_or(|best| score > best.score) {
                    best = Some(SpanCandidate { score, start, end });
                }
            }
        }
        best
    }
}

/// The positions of the largest logits with them, the largest first; of equals the last one, as a reversed stable sort
/// has them.
fn best_of(logits: &[f32]) -> Vec<(usize, f32)> {
    let mut all: Vec<(usize, f32)> = logits.iter().copied().enumerate().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(b.0.cmp(&a.0)));
    all.truncate(N_BEST);
    all
}

/// Best answer to each question in its windows.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SpanAnswers {
    questions: BTreeMap<u32, Chosen>,
}

#[derive(Debug, Clone, PartialEq)]
struct Chosen {
    /// The first of its samples.
    first: u32,
    /// The least score of "no answer" over the windows.
    none: f32,
    /// The best span with its sample.
    best: Option<(u32, SpanCandidate)>,
}

impl SpanAnswers {
    /// Adds the window of a sample of a question: the score of its first token, for no answer, and its best span.
    pub fn add(&mut self, question: u32, sample: u32, none: f32, span: Option<SpanCandidate>) {
        let chosen =
            self.questions.entry(question).or_insert(Chosen { first: sample, none: f32::INFINITY, best: None });
        chosen.first = chosen.first.min(sample);
        chosen.none = chosen.none.min(none);
        if let Some(span) = span {
            // Of equal scores the earlier window, in whatever order windows are added.
            let is_better = chosen
                .best
                .is_none_or(|(other, best)| span.score > best.score || (span.score == best.score && sample < other));
            if is_better {
                chosen.best = Some((sample, span));
            }
        }
    }

    /// Adds another rank's, of other samples.
    pub fn merge(&mut self, other: &SpanAnswers) {
        for (question, chosen) in &other.questions {
            self.add(*question, chosen.first, chosen.none, None);
            if let Some((sample, span)) = chosen.best {
                self.add(*question, sample, chosen.none, Some(span));
            }
        }
    }

    /// Number of questions.
    pub fn len(&self) -> usize {
        self.questions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.questions.is_empty()
    }

    /// Each question with its first sample, and the sample and the span of its answer; `None` for no answer,
    /// which is chosen with `may_be_none` where its score is larger than the best span's.
    pub fn chosen(&self, may_be_none: bool) -> impl Iterator<Item = (u32, u32, Option<(u32, SpanCandidate)>)> {
        self.questions.iter().map(move |(question, chosen)| {
            let best = chosen.best.filter(|(_, span)| !(may_be_none && chosen.none > span.score));
            (*question, chosen.first, best)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{SpanAnswers, SpanCandidate, SpanSearch};

    #[test]
    fn the_best_span_is_within_the_passage_in_order_and_short() {
        let (starts, ends) = ([9.0, 1.0, 5.0, 2.0, 0.0], [9.0, 6.0, 1.0, 0.0, 4.0]);
        let best = |longest| SpanSearch { longest }.best(&starts, &ends, 1..5);
        assert_eq!(best(3), Some(SpanCandidate { score: 9.0, start: 2, end: 4 }));
        assert_eq!(best(2), Some(SpanCandidate { score: 7.0, start: 1, end: 1 }));
        assert_eq!(SpanSearch { longest: 3 }.best(&starts, &ends, 5..5), None);
    }

    #[test]
    fn windows_of_a_question_compete_and_no_answer_needs_the_larger_score() {
        let span = |score| Some(SpanCandidate { score, start: 1, end: 2 });
        let mut answers = SpanAnswers::default();
        answers.add(0, 1, 3.0, span(4.0));
        let mut other = SpanAnswers::default();
        other.add(0, 0, 8.0, span(4.0));
        other.add(1, 2, 5.0, span(4.0));
        other.add(2, 3, 0.0, None);
        answers.merge(&other);
        let of = |may_be_none| {
            let samples = answers.chosen(may_be_none).map(|(_, _, chosen)| chosen.map(|(sample, _)| sample));
            samples.collect::<Vec<_>>()
        };
        assert_eq!(of(true), [Some(0), None, None]);
        assert_eq!(of(false), [Some(0), Some(2), None]);
        assert_eq!(answers.chosen(true).map(|(_, first, _)| first).collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!(answers.len(), 3);
    }
}
