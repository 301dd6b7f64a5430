//! Extractive question answering: questions about passages, whose answers are spans of the passage.
//!
//! Defines [`SpanTask`], which reads SQuAD's JSON, with answers (version 1.1) or with unanswerable questions too
//! (version 2.0), and the [`SpanWindow`]s by which an evaluation finds the text of a span. Called by the finetune
//! program.
//!
//! A passage longer than a row has room for is read in windows that share `stride` tokens; each is a sample. The label
//! of a window without the whole answer is the row's first special token, which means no answer.
//!
//! Source: the example for question answering of transformers. Deliberate differences: a question that takes more than
//! half of a row is cut, and windows share at most half of their tokens, where that example fails.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::squad::{Article, Paragraph, Question, read_squad};
use super::{SplitSource, Task};
use crate::data::{
    dataset::Dataset,
    read::{Builder, ReadOptions, RowForm},
};
use crate::metrics::{AnswerScores, LabelKind, Metric, SPAN_METRICS, SpanAnswers, SpanSearch};
use crate::{Error, Result};
use model_center_base::batch::{Label, LabelSpace, Member};
use model_center_formats::tokenizer::{Encoding, Template, TemplateSlot, TokenSpan, Tokenizer};

/// How questions and passages are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpanTask {
    /// Tokens that consecutive windows of a passage share.
    pub stride: usize,
    /// The most tokens of a predicted answer.
    pub answer_length: usize,
}

/// Where the tokens of a window's passage are in its text.
#[derive(Debug, Clone)]
pub struct SpanWindow {
    /// The position of the passage's first token in the row.
    first: usize,
    /// The text of the whole passage.
    passage: Arc<str>,
    /// Bytes of each token of the passage in the row.
    bytes: Vec<Range<u32>>,
}

impl SpanWindow {
    /// The positions of the passage's tokens in the row.
    pub fn positions(&self) -> Range<usize> {
        self.first..self.first + self.bytes.len()
    }

    /// The text from the first to the last token of a span; empty outside the passage.
    pub fn text(&self, start: usize, end: usize) -> &str {
        self.bytes(start, end).and_then(|range| self.passage.get(range)).unwrap_or_default()
    }

    /// The bytes of that text in the whole passage; `None` outside the passage.
    pub fn bytes(&self, start: usize, end: usize) -> Option<Range<usize>> {
        let bytes = |position: usize| self.bytes.get(position.checked_sub(self.first)?);
        Some(bytes(start)?.start as usize..bytes(end)?.end as usize)
    }
}

/// Windows of a dataset, by stored sample, and which spans of them are answers.
#[derive(Debug, Clone)]
pub struct SpanWindows {
    /// One for each stored sample.
    pub windows: Vec<SpanWindow>,
    /// Which spans are looked at.
    pub search: SpanSearch,
    /// Whether a question may have no answer.
    pub(crate) may_be_none: bool,
}

impl SpanWindows {
    /// Rates the chosen answers of questions against their references, which all samples of a question share.
    pub fn rate(&self, answers: &SpanAnswers, dataset: &Dataset) -> AnswerScores {
        let mut scores = AnswerScores::default();
        for (question, first, chosen) in answers.chosen(self.may_be_none) {
            let text =
                chosen.and_then(|(sample, span)| Some(self.windows.get(sample as usize)?.text(span.start, span.end)));
            scores.add(question, text.unwrap_or_default(), dataset.references(first as usize));
        }
        scores
    }
}

impl SpanTask {
    /// Reads a file.
    ///
    /// Errors: a file that is not as SQuAD's are; an answer that is not at its place in the passage; questions without
    /// a list of answers, as in a test split; a tokenizer that does not report where its tokens are.
    pub fn read(&self, path: &Path, options: &ReadOptions<'_>) -> Result<Dataset> {
        options.check()?;
        let articles: Vec<Article> = read_squad(path)?;
        let mut builder = Builder::new(path, options, LabelSpace::Span, RowForm::Question);
        let tokenizer = options.tokenizer;
        let mut rows = Rows {
            rows: QuestionRows { tokenizer, max_length: options.max_length, stride: self.stride },
            windows: Vec::new(),
            members: Vec::new(),
            references: Vec::new(),
        };
        let (mut number, mut may_be_none) = (0, false);
        for Paragraph { context, qas } in articles.into_iter().flat_map(|article| article.paragraphs) {
            // Tokenized with its first question, if any is read.
            let (context, mut passage): (Arc<str>, Option<Vec<TokenSpan>>) = (context.into(), None);
            for question in qas {
                if !builder.wants_more()? {
                    break;
                }
                builder.count();
                number += 1;
                let place = format!("{}, question {number}", path.display());
                let passage = match &mut passage {
                    Some(passage) => passage,
                    none => none.insert(rows.rows.spans_of(&context)?),
                };
                match rows.add((number - 1, &place), (&context, passage), &question, &mut builder) {
                    Ok(is_answered) => may_be_none |= !is_answered,
                    Err(flaw @ Error::Data { .. }) => builder.skip(flaw)?,
                    Err(error) => return Err(error),
                }
            }
        }
        let Rows { windows, members, references, .. } = rows;
        let mut dataset = builder.finish()?;
        (dataset.members, dataset.references) = (members, references);
        let search = SpanSearch { longest: self.answer_length };
        dataset.spans = Some(Arc::new(SpanWindows { windows, search, may_be_none }));
        dataset.seal();
        Ok(dataset)
    }
}

impl Task for SpanTask {
    fn name(&self) -> &'static str {
        "question-answering"
    }

    fn label_kind(&self) -> LabelKind {
        LabelKind::Questions
    }

    fn metrics(&self) -> Option<&'static [Metric]> {
        Some(SPAN_METRICS)
    }

    fn read_split(&self, source: &SplitSource<'_>) -> Result<Dataset> {
        self.read(source.path, &source.options)
    }
}

/// How a question and its passage become rows.
#[derive(Clone, Copy)]
pub struct QuestionRows<'t> {
    /// Encodes questions and passages.
    pub tokenizer: &'t dyn Tokenizer,
    /// The most tokens of a row.
    pub max_length: usize,
    /// Tokens that consecutive windows of a passage share.
    pub stride: usize,
}

/// A row of a question and a part of its passage.
pub struct QuestionWindow {
    pub encoding: Encoding,
    pub window: SpanWindow,
    /// The tokens of the passage that are in the row.
    tokens: Range<usize>,
}

impl QuestionRows<'_> {
    /// The tokens of a passage.
    pub fn spans_of(&self, passage: &str) -> Result<Vec<TokenSpan>> {
        trimmed_spans(self.tokenizer, passage)
    }

    /// The windows of a passage, whose tokens are given, with a question, which is cut to half of a row.
    ///
    /// # Errors
    /// [`Error::Data`] at this place where there is no room for a token of the passage, or where it has none.
    pub fn windows(
        &self,
        question: &str,
        (context, passage): (&Arc<str>, &[TokenSpan]),
        place: &str,
    ) -> Result<Vec<QuestionWindow>> {
        let template = self.tokenizer.template(true);
        let asked = self.tokenizer.tokenize(&[question.trim_start()])?.concat();
        let room = self.max_length.saturating_sub(template.special_tokens());
        let asked = &asked[..asked.len().min(room / 2)];
        let room = room - asked.len();
        if room == 0 || passage.is_empty() {
            let reason = format!("{} tokens leave no room for a passage, or the passage has none", self.max_length);
            return Err(Error::data(place, reason, "raise data.max_length, or remove the question"));
        }
        let first = first_of_second(template, asked.len());
        let window = |tokens: Range<usize>| {
            let passage = &passage[tokens.clone()];
            let ids: Vec<u32> = passage.iter().map(|token| token.id).collect();
            let bytes = passage.iter().map(|token| token.bytes.start as u32..token.bytes.end as u32).collect();
            Ok(QuestionWindow {
                encoding: template.assemble(asked, &ids, None)?,
                window: SpanWindow { first, passage: Arc::clone(context), bytes },
                tokens,
            })
        };
        windows(passage.len(), room, self.stride).map(window).collect()
    }
}

/// The windows of `length` tokens, the first one of `room` tokens or of all; consecutive ones share `stride` tokens, at
/// most half of a window. At least one, `room` being above 0.
pub fn windows(length: usize, room: usize, stride: usize) -> impl Iterator<Item = Range<usize>> {
    let step = room - stride.min(room / 2);
    let next = move |window: &Range<usize>| {
        let start = window.start + step;
        (window.end < length).then_some(start..(start + room).min(length))
    };
    std::iter::successors(Some(0..room.min(length)), next)
}

/// Makes samples of questions.
struct Rows<'t> {
    rows: QuestionRows<'t>,
    windows: Vec<SpanWindow>,
    members: Vec<Member>,
    references: Vec<Vec<String>>,
}

impl Rows<'_> {
    /// Adds the windows of a question; returns whether it has an answer.
    fn add(
        &mut self,
        (number, place): (u32, &str),
        (context, passage): (&Arc<str>, &[TokenSpan]),
        question: &Question,
        builder: &mut Builder<'_>,
    ) -> Result<bool> {
        let answers = question.answers.as_ref().ok_or_else(|| {
            let fix = "use the splits with answers, train and dev: a test split has none";
            Error::data(place, "the question has no list of answers", fix)
        })?;
        let answer = answers.first().map(|answer| answer.bytes(context, place)).transpose()?;
        let texts: Vec<String> = match answers.is_empty() {
            // A prediction without words is right.
            true => vec![String::new()],
            false => answers.iter().map(|answer| answer.text.clone()).collect(),
        };
        for QuestionWindow { encoding, window, tokens } in
            self.rows.windows(&question.question, (context, passage), place)?
        {
            let label = answer.as_ref().and_then(|answer| span_of(&passage[tokens], answer));
            let first = window.first;
            let label = label.map_or([0, 0], |[start, end]| [(first + start) as u32, (first + end) as u32]);
            builder.push(&encoding, Label::Span(label))?;
            self.windows.push(window);
            self.members.push(Member { question: number, credit: None });
            self.references.push(texts.clone());
        }
        Ok(!answers.is_empty())
    }
}

/// The tokens of a passage with their bytes, white space at the ends of tokens left out.
fn trimmed_spans(tokenizer: &dyn Tokenizer, text: &str) -> Result<Vec<TokenSpan>> {
    let spans = tokenizer.tokenize_with_spans(text)?.into_iter();
    Ok(spans.map(|span| TokenSpan { bytes: span.trimmed(text), id: span.id }).collect())
}

/// The position of the second text's first token after a first text of this length.
fn first_of_second(template: &Template, first: usize) -> usize {
    let before = template.pieces.iter().take_while(|piece| !matches!(piece, TemplateSlot::Second { .. }));
    before.map(|piece| if matches!(piece, TemplateSlot::First { .. }) { first } else { 1 }).sum()
}

/// The first and the last token of an answer's bytes; `None` if they are not all in these tokens.
fn span_of(tokens: &[TokenSpan], answer: &Range<usize>) -> Option<[usize; 2]> {
    let (first, last) = (tokens.first()?, tokens.last()?);
    if first.bytes.start > answer.start || last.bytes.end < answer.end {
        return None;
    }
    let start = tokens.iter().rposition(|token| token.bytes.start <= answer.start)?;
    let end = tokens.iter().position(|token| token.bytes.end >= answer.end)?;
    (start <= end).then_some([start, end])
}
