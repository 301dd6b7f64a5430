//! SQuAD 1.1: questions about passages, whose answers a decoder generates.
//!
//! Defines [`Squad`], which reads `{train|dev}-v1.1.json`, [`SQUAD_METRICS`], and the reader of the files,
//! which [`super::spans`] uses too. Called by training.
//!
//! Source: ModelCenter's `t5dataset`: inputs and targets matched. Deliberate differences: of several answers the first
//! is the target, where a random one was chosen once; the evaluation has a loss too, against that answer, and compares
//! the generated text with all of them, which are kept as [`Dataset::references`].

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;

use super::{SplitSource, Task};
use crate::data::{
    Example, Split,
    answers::sentinels,
    dataset::Dataset,
    read::{Builder, RowForm, RowLimit},
};
use crate::metrics::{LabelKind, Metric};
use crate::{Error, Result};
use model_center_base::batch::{Label, LabelSpace};
use model_center_base::file::{printable, read_text};
use model_center_formats::io::input::of_data;
use model_center_formats::tokenizer::Tokenizer;

/// The training file has 30 MB.
const MAX_BYTES: u64 = 1 << 30;

/// Output for a question without an answer.
const NO_ANSWER: &str = "no answer";

/// Metrics of an evaluation.
pub const SQUAD_METRICS: &[Metric] = &[Metric::TokenF1, Metric::ExactMatch, Metric::Perplexity];

/// The task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Squad;

#[derive(Deserialize)]
struct File {
    data: Vec<Article>,
}

#[derive(Deserialize)]
pub struct Article {
    pub paragraphs: Vec<Paragraph>,
}

#[derive(Deserialize)]
pub struct Paragraph {
    pub context: String,
    pub qas: Vec<Question>,
}

#[derive(Deserialize)]
pub struct Question {
    pub id: Option<serde_json::Value>,
    pub question: String,
    pub answers: Option<Vec<Answer>>,
}

#[derive(Deserialize)]
pub struct Answer {
    pub text: String,
    /// In characters of the passage.
    answer_start: Option<u64>,
}

impl Answer {
    /// The bytes of the answer in its passage.
    ///
    /// Errors: an answer without a place, or that is not at its place.
    pub(super) fn bytes(&self, passage: &str, place: &str) -> Result<Range<usize>> {
        let wrong = |reason: String| Err(Error::data(place, reason, "correct answer_start, in characters from 0"));
        let Some(at) = self.answer_start else {
            return wrong(format!("answer {:?} has no answer_start", printable(&self.text, 60)));
        };
        let start = usize::try_from(at).ok().and_then(|at| passage.char_indices().nth(at)).map(|(byte, _)| byte);
        match start {
            Some(start) if !self.text.is_empty() && passage[start..].starts_with(&self.text) => {
                Ok(start..start + self.text.len())
            }
            _ => wrong(format!("answer {:?} is not at character {at} of the passage", printable(&self.text, 60))),
        }
    }
}

/// The articles of a file.
///
/// Errors: a file that is not as SQuAD's are, with its place.
pub fn read_squad(path: &Path) -> Result<Vec<Article>> {
    let text = read_text(path, MAX_BYTES).map_err(of_data)?;
    let file: File = serde_json::from_str(text.trim_start_matches('\u{FEFF}')).map_err(|error| {
        let place = format!("{}:{}:{}", path.display(), error.line(), error.column());
        let text = error.to_string();
        let reason = format!("the file is not SQuAD's: {}", text.split(" at line ").next().unwrap_or_default());
        Error::data(place, reason, "fetch the file of SQuAD again, or write one in its format")
    })?;
    Ok(file.data)
}

impl Task for Squad {
    fn name(&self) -> &'static str {
        "SQuAD"
    }

    fn label_kind(&self) -> LabelKind {
        LabelKind::Tokens
    }

    fn metrics(&self) -> Option<&'static [Metric]> {
        Some(SQUAD_METRICS)
    }

    fn file(&self, split: Split) -> Option<String> {
        let stem = if split == Split::Train { "train" } else { "dev" };
        Some(format!("{stem}-v1.1.json"))
    }

    fn has_targets(&self) -> bool {
        true
    }

    /// The sentinels before and after an answer.
    fn answer_marks(&self, tokenizer: &dyn Tokenizer) -> Result<Option<[u32; 2]>> {
        sentinels(tokenizer, "task SQuAD").map(Some)
    }

    /// Errors: a file that is not as SQuAD's are, with its place; questions whose answers are left out, as in a test
    /// split; a vocabulary without sentinels.
    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset> {
        let SplitSource { path, options, .. } = source;
        let articles = read_squad(path)?;
        options.check()?;
        let form = RowForm::Squad(SquadForm::new(options.tokenizer)?);
        let mut builder = Builder::new(path, options, LabelSpace::Target, form);
        let (mut number, mut references, mut examples) = (0, Vec::new(), Vec::new());
        let paragraphs = articles.into_iter().flat_map(|article| article.paragraphs);
        for Paragraph { context, qas } in paragraphs {
            for Question { question, answers, .. } in qas {
                if !builder.wants_more()? {
                    break;
                }
                builder.count();
                number += 1;
                let Some(answers) = answers else {
                    let place = format!("{}, question {number}", path.display());
                    let fix = "use the splits with answers, train and dev: a test split has none";
                    builder.skip(Error::data(place, "the question has no list of answers", fix))?;
                    continue;
                };
                let mut answers: Vec<String> = answers.into_iter().map(|answer| answer.text).collect();
                if answers.is_empty() {
                    answers.push(NO_ANSWER.to_owned());
                }
                let example = |first: String, second| Example { first, second, label: Label::TokensFrom(0) };
                let asked = format!("Question: {} Answer:", question.trim_start());
                let context = format!("Context: {}", context.trim_start());
                examples.extend([example(asked, Some(context)), example(answers[0].clone(), None)]);
                references.push(answers);
                builder.add(number, &mut examples)?;
            }
        }
        let mut dataset = builder.finish()?;
        dataset.references = references;
        dataset.seal();
        Ok(dataset)
    }
}

/// How rows are made of questions, passages and answers.
#[derive(Debug, Clone)]
pub(crate) struct SquadForm {
    sentinels: [u32; 2],
    front: Vec<u32>,
    back: Vec<u32>,
}

impl SquadForm {
    fn new(tokenizer: &dyn Tokenizer) -> Result<Self> {
        let (front, back) = tokenizer.template(false).around_first();
        Ok(SquadForm { sentinels: sentinels(tokenizer, "task SQuAD")?, front, back })
    }

    /// Tokens of a question and its passage, or of an answer alone, with the number that was cut: the passage and the
    /// answer lose their ends, and a question only where nothing else is left.
    pub(crate) fn row(
        &self,
        first: &[u32],
        passage: Option<&[u32]>,
        builder: &Builder<'_>,
        line: u64,
    ) -> Result<(Vec<u32>, usize)> {
        let ([blank, end], fixed) = (self.sentinels, self.front.len() + self.back.len());
        let texts = first.len() + passage.map_or(0, <[u32]>::len);
        let (limit, fixed) = match passage {
            Some(_) => (RowLimit::Input, fixed + 1),
            None => (RowLimit::Target, fixed + 2),
        };
        let room = builder.room(line, limit, fixed, texts)?;
        let kept = first.len().min(room);
        let ids = match passage {
            Some(passage) => {
                let passage = &passage[..passage.len().min(room - kept)];
                [&self.front, &first[..kept], &[blank], passage, &self.back].concat()
            }
            None => [&self.front, &[blank][..], &first[..kept], &[end], &self.back].concat(),
        };
        let removed = texts + fixed - ids.len();
        Ok((ids, removed))
    }
}
