//! Answers in the windows of a passage.
//!
//! The best span of all windows has the largest sum of logits, as in an evaluation. Its score is the product of the
//! probabilities of its first and its last token, among the tokens of its window's passage and the first token, which
//! stands for no answer.

use super::Predictor;
use super::pass::softmax;
use super::prediction::{AnswerSpan, PredictedValue, Prediction};
use super::prepare::{Form, PreparedInput};
use super::words::characters;
use crate::Result;
use model_center_data::metrics::{SpanAnswers, SpanCandidate, SpanSearch};
use model_center_data::{QuestionRows, SpanWindow};
use std::sync::Arc;

/// The windows of a passage.
#[derive(Debug, Clone)]
pub(super) struct PassageRows {
    passage: Arc<str>,
    windows: Vec<SpanWindow>,
}

impl Predictor {
    /// The windows of a passage with a question.
    pub(super) fn passage(&self, question: &str, passage: &str) -> Result<PreparedInput> {
        let rows =
            QuestionRows { tokenizer: self.tokenizer(), max_length: self.max_length, stride: self.options.stride };
        let passage: Arc<str> = passage.into();
        let spans = rows.spans_of(&passage)?;
        let windows = rows.windows(question, (&passage, &spans), "")?;
        let (rows, windows) = windows.into_iter().map(|window| (window.encoding, window.window)).unzip();
        Ok(PreparedInput::new(rows, Form::Passage(PassageRows { passage, windows })))
    }

    /// The answer of the windows' logits.
    pub(super) fn answer(&self, rows: &PassageRows, outputs: &[Vec<f32>]) -> Prediction {
        let search = SpanSearch { longest: self.options.answer_length };
        let mut answers = SpanAnswers::default();
        for (number, (window, outputs)) in rows.windows.iter().zip(outputs).enumerate() {
            let (starts, ends) = outputs.split_at(outputs.len() / 2);
            let none = starts.first().zip(ends.first()).map_or(f32::INFINITY, |(start, end)| start + end);
            answers.add(0, number as u32, none, search.best(starts, ends, window.positions()));
        }
        let chosen = answers.chosen(self.options.may_be_none).next().and_then(|(_, _, chosen)| chosen);
        let found = chosen.and_then(|(number, span)| {
            let (window, outputs) = (rows.windows.get(number as usize)?, outputs.get(number as usize)?);
            let bytes = window.bytes(span.start, span.end)?;
            let text = rows.passage.get(bytes.clone())?.to_owned();
            let answer = AnswerSpan { text, place: characters(&rows.passage, &bytes) };
            Some((answer, probability(window, outputs, span)))
        });
        let (answer, score) = found.unzip();
        Prediction { value: PredictedValue::Answer(answer), score, probabilities: Vec::new() }
    }
}

/// The probability that a span begins and ends where it does.
fn probability(window: &SpanWindow, outputs: &[f32], span: SpanCandidate) -> f32 {
    let (starts, ends) = outputs.split_at(outputs.len() / 2);
    let positions = window.positions();
    let of = |logits: &[f32], at: usize| {
        let passage = logits.get(positions.clone()).unwrap_or_default();
        let all: Vec<f32> = logits.first().into_iter().chain(passage).copied().collect();
        softmax(&all).get(at + 1 - positions.start).copied().unwrap_or(0.0)
    };
    of(starts, span.start) * of(ends, span.end)
}
