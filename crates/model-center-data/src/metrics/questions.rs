//! Decisions that are judged together: the answers to one question, the candidates for one gap.
//!
//! Defines [`Questions`]. Used through [`super::Evaluator`].

use model_center_base::batch::Member;

use super::{ClassCounts, OrderedSum};

/// Decision on one sample.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Decision {
    sample: u32,
    member: Member,
    is_right: bool,
    /// By how much the model prefers class 1, yes, to class 0.
    preference: f32,
}

/// Decisions of samples with the questions that they belong to.
#[derive(Debug, Clone, PartialEq)]
pub struct Questions {
    counts: ClassCounts,
    decisions: Vec<Decision>,
}

impl Questions {
    /// Empty, for `classes` classes.
    pub fn new(classes: usize) -> Questions {
        Questions { counts: ClassCounts::new(classes), decisions: Vec::new() }
    }

    /// The decisions of samples alone, whatever they belong to.
    pub fn counts(&self) -> &ClassCounts {
        &self.counts
    }

    /// Adds what a model's outputs, one for each class, make of a sample.
    pub fn add(&mut self, sample: u32, member: Member, (label, predicted): (usize, usize), outputs: &[f32]) {
        self.counts.add(label, predicted);
        let preference = match outputs {
            [no, yes, ..] => yes - no,
            _ => 0.0,
        };
        self.decisions.push(Decision { sample, member, is_right: label == predicted, preference });
    }

    /// Adds another rank's, of other samples.
    pub fn merge(&mut self, other: &Questions) {
        self.counts.merge(&other.counts);
        self.decisions.extend_from_slice(&other.decisions);
    }

    /// Mean over the questions: 1 for one whose samples were all decided rightly; where one of them is the answer, its
    /// own exact match.
    pub fn exact_match(&self) -> f64 {
        self.mean(
            |[exact, _]| f64::from(exact),
            |decisions| f64::from(u8::from(decisions.iter().all(|decision| decision.is_right))),
        )
        .unwrap_or(0.0)
    }

    /// Mean over the questions of the F1 of the sample that is the answer; `None` where samples are decided by
    /// themselves.
    pub fn token_f1(&self) -> Option<f64> {
        let is_chosen = self.decisions.iter().all(|decision| decision.member.credit.is_some());
        is_chosen.then(|| self.mean(|[_, f1]| f64::from(f1), |_| 0.0).unwrap_or(0.0))
    }

    /// Mean over the questions, of the credit of what the model prefers most or of all decisions; `None` without any.
    fn mean(&self, credit: impl Fn([f32; 2]) -> f64, all: impl Fn(&[Decision]) -> f64) -> Option<f64> {
        let mut decisions = self.decisions.clone();
        decisions.sort_by_key(|decision| (decision.member.question, decision.sample));
        let mut sum = OrderedSum::default();
        for (index, question) in decisions.chunk_by(|a, b| a.member.question == b.member.question).enumerate() {
            // The first of those that are preferred alike.
            let chosen =
                question.iter().reduce(|best, next| if next.preference > best.preference { next } else { best });
            let value = match chosen.and_then(|chosen| chosen.member.credit) {
                Some(of_chosen) => credit(of_chosen),
                None => all(question),
            };
            sum.add(index as u64, value, 1.0);
        }
        (!decisions.is_empty()).then(|| sum.mean())
    }
}
