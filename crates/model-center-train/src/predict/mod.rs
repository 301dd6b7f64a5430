//! Predictions of a trained model: classes with probabilities, any number of labels, numbers, entities, answers to
//! questions, embeddings.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | [`Predictor`]: from [`PredictInput`] to [`Prediction`] |
//! | `kind.rs` | [`PredictionKind`]: what a model predicts, by its head |
//! | `prepare.rs` | rows of tokens of an input |
//! | `pass.rs` | the outputs of the model for rows |
//! | `words.rs` | classes of words, and the entities that they make |
//! | `passages.rs` | answers in the windows of a passage |
//! | `prediction.rs` | [`Prediction`], as a JSON object and as cells of a table |
//! | `records.rs`, `labels.rs` | inputs and known labels of records, by columns |
//! | `source.rs` | records of files |
//! | `rating.rs` | metrics of predictions whose labels are known |
//!
//! The three steps of a prediction are separate, so that a server makes rows on the threads of its connections and
//! runs the model on another: [`Predictor::prepare`], [`Predictor::outputs`], [`Predictor::finish`].

mod kind;
mod labels;
mod pass;
mod passages;
mod prediction;
mod prepare;
mod rating;
mod records;
mod source;
mod words;

pub use kind::PredictionKind;
pub use prediction::{AnswerSpan, EntityMention, PredictedValue, Prediction};
pub use prepare::PreparedInput;
pub use rating::{KnownLabel, Rating};
pub use records::{PredictColumns, RecordFields};
pub use source::{InputFormat, InputRecords};

use crate::{Error, Result};
use bmtrain_core::Device;
use model_center_data::padding;
use model_center_formats::tokenizer::{ChatMessage, ChatTemplate, Encoding, KeepSide, Tokenizer};
use model_center_models::{ModelInfo, TextModel};
use std::path::Path;
use std::sync::Arc;

/// Tokens of a window of a passage, unless [`PredictOptions::max_length`] states more: as in the pipeline that
/// transformers had until version 4.
const WINDOW: usize = 384;
/// The most tokens of a pass, padding included, unless one row has more.
pub const MAX_TOKENS: usize = 8192;

/// Input of a prediction.
#[derive(Debug, Clone, PartialEq)]
pub enum PredictInput {
    /// A text, or the first and the second text of a pair.
    Text {
        /// The first text.
        text: String,
        /// The second text.
        pair: Option<String>,
    },
    /// The words of a sentence.
    Words(Vec<String>),
    /// A question about a passage.
    Question {
        /// The question.
        question: String,
        /// The passage in which the answer is.
        passage: String,
    },
    /// A conversation, which a reward model rates.
    Messages(Vec<ChatMessage>),
}

/// How inputs become rows, and outputs predictions.
#[derive(Debug, Clone, PartialEq)]
pub struct PredictOptions {
    /// Tokens of a row, special tokens included; by default the positions of the model, for answers 384 at most.
    pub max_length: Option<usize>,
    /// The end of a longer text that stays.
    pub keep: KeepSide,
    /// The probability above which a label is predicted, where an input has any number of them.
    pub threshold: f32,
    /// Tokens that consecutive windows of a long passage or sentence share, at most half of a window.
    pub stride: usize,
    /// The most tokens of an answer.
    pub answer_length: usize,
    /// Whether a question may have no answer, as in SQuAD 2.0.
    pub may_be_none: bool,
    /// Name of the prompt before texts that are embedded; by default the directory's default one.
    pub prompt: Option<String>,
    /// The most rows of a pass.
    pub batch: usize,
}

impl Default for PredictOptions {
    fn default() -> Self {
        PredictOptions {
            max_length: None,
            keep: KeepSide::default(),
            threshold: 0.5,
            stride: 128,
            answer_length: 30,
            may_be_none: false,
            prompt: None,
            batch: 32,
        }
    }
}

impl PredictOptions {
    /// Refuses options that a kind of predictions has no use for.
    fn refuse_unused(&self, kind: &PredictionKind) -> Result<()> {
        let default = PredictOptions::default();
        let labels = matches!(kind, PredictionKind::Labels(_));
        let words = matches!(kind, PredictionKind::Words(_));
        let answer = matches!(kind, PredictionKind::Answer);
        let embedding = matches!(kind, PredictionKind::Embedding(_));
        let of_answers = "the model answers no questions";
        let unused = [
            ("threshold", self.threshold != default.threshold && !labels, "an input has one label"),
            ("stride", self.stride != default.stride && !words && !answer, "inputs are not read in windows"),
            ("answer_length", self.answer_length != default.answer_length && !answer, of_answers),
            ("may_be_none", self.may_be_none && !answer, of_answers),
            ("prompt_name", self.prompt.is_some() && !embedding, "the model embeds no texts"),
        ];
        match unused.into_iter().find(|(_, is_unused, _)| *is_unused) {
            Some((name, _, why)) => Err(Error::without_effect(name, why)),
            None => Ok(()),
        }
    }
}

/// Predicts with a model: its tokenizer, its head and the names of its classes.
#[derive(Debug, Clone)]
pub struct Predictor {
    kind: PredictionKind,
    tokenizer: Arc<dyn Tokenizer>,
    chat: Option<Arc<ChatTemplate>>,
    options: PredictOptions,
    max_length: usize,
    has_token_types: bool,
    marks_spaces: bool,
    pad: i64,
}

impl Predictor {
    /// The predictor of a model of this kind, see [`PredictionKind::of`].
    ///
    /// # Errors
    /// [`Error::Argument`] for options out of range; [`Error::Model`] for a tokenizer of another vocabulary.
    pub fn new(
        (kind, info): (PredictionKind, &ModelInfo),
        tokenizer: Arc<dyn Tokenizer>,
        options: PredictOptions,
    ) -> Result<Self> {
        tokenizer.require_rows(info.vocab_size)?;
        let most = info.max_length;
        let max_length = match (options.max_length, &kind) {
            (Some(length), _) => length,
            (None, PredictionKind::Answer) => most.min(WINDOW),
            (None, _) => most,
        };
        let special = tokenizer.template(false).special_tokens().max(tokenizer.template(true).special_tokens());
        let out_of_range = |name: &str, reason: String, fix: String| Err(Error::argument(name, reason, fix));
        if max_length > most || max_length <= special + 1 {
            let reason = format!("{max_length} tokens of a row");
            return out_of_range("max_length", reason, format!("use a number from {} to {most}", special + 2));
        }
        if !(options.threshold > 0.0 && options.threshold < 1.0) {
            let reason = format!("{} is not a probability between 0 and 1", options.threshold);
            return out_of_range("threshold", reason, "use a number such as 0.5".to_owned());
        }
        if options.batch == 0 {
            return out_of_range("batch", "0 rows at a time".to_owned(), "use 1 or more".to_owned());
        }
        if options.answer_length == 0 {
            let reason = "answers of 0 tokens".to_owned();
            return out_of_range("answer_length", reason, "use 1 or more".to_owned());
        }
        options.refuse_unused(&kind)?;
        let pad = i64::from(padding(&*tokenizer));
        let has_token_types = info.has_token_types;
        let marks_spaces = words::marks_spaces(&*tokenizer)?;
        Ok(Predictor { kind, tokenizer, chat: None, options, max_length, has_token_types, marks_spaces, pad })
    }

    /// The same with the chat template of a directory, if it has one: with it, conversations can be rated.
    ///
    /// # Errors
    /// A template that cannot be read.
    pub fn with_chat_template(self, directory: &Path) -> Result<Self> {
        Ok(Predictor { chat: ChatTemplate::from_directory(directory)?.map(Arc::new), ..self })
    }

    /// Kind of the predictions.
    pub fn kind(&self) -> &PredictionKind {
        &self.kind
    }

    /// Tokens of a row, special tokens included.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// Predictions of inputs, in their order. Rows of similar lengths share passes of the model.
    ///
    /// # Errors
    /// [`Error::Data`] for an input that the model cannot read, with its number; outputs that are not finite.
    pub fn predict(
        &self,
        (model, device): (&dyn TextModel, &Device),
        inputs: &[PredictInput],
    ) -> Result<Vec<Prediction>> {
        let of_input = |(number, input): (usize, &PredictInput)| {
            self.prepare(input).map_err(|error| at(format!("input {number}"), error))
        };
        let prepared = inputs.iter().enumerate().map(of_input).collect::<Result<Vec<_>>>()?;
        self.predict_prepared((model, device), &prepared)
    }

    /// The same of inputs that are prepared.
    ///
    /// # Errors
    /// As [`Predictor::outputs`].
    pub fn predict_prepared(
        &self,
        (model, device): (&dyn TextModel, &Device),
        prepared: &[PreparedInput],
    ) -> Result<Vec<Prediction>> {
        let outputs = self.outputs_of((model, device), prepared)?;
        prepared.iter().zip(&outputs).map(|(prepared, outputs)| self.finish(prepared, outputs)).collect()
    }

    /// The outputs of every row of every input.
    ///
    /// # Errors
    /// As [`Predictor::outputs`].
    pub fn outputs_of(
        &self,
        (model, device): (&dyn TextModel, &Device),
        prepared: &[PreparedInput],
    ) -> Result<Vec<Vec<Vec<f32>>>> {
        let numbered = prepared.iter().enumerate();
        let mut rows: Vec<(usize, usize, &Encoding)> = numbered
            .flat_map(|(input, prepared)| {
                prepared.rows().iter().enumerate().map(move |(row, tokens)| (input, row, tokens))
            })
            .collect();
        // Rows of equal lengths need no padding; the order of equals is the given one.
        rows.sort_by_key(|(_, _, tokens)| std::cmp::Reverse(tokens.input_ids.len()));
        let mut outputs: Vec<Vec<Vec<f32>>> =
            prepared.iter().map(|prepared| vec![Vec::new(); prepared.rows().len()]).collect();
        let mut rest = rows.as_slice();
        while let Some((_, _, longest)) = rest.first() {
            let fit = (MAX_TOKENS / longest.input_ids.len().max(1)).clamp(1, self.options.batch).min(rest.len());
            let (now, later) = rest.split_at(fit);
            let tokens: Vec<&Encoding> = now.iter().map(|(_, _, tokens)| *tokens).collect();
            for ((input, row, _), values) in now.iter().zip(self.outputs((model, device), &tokens)?) {
                outputs[*input][*row] = values;
            }
            rest = later;
        }
        Ok(outputs)
    }

    /// The tokenizer of the model.
    pub fn tokenizer(&self) -> &dyn Tokenizer {
        &*self.tokenizer
    }
}

/// An error in data or a model's file with the place of its input before it.
fn at(place: String, error: Error) -> Error {
    match error {
        Error::Data { place: inner, reason, fix } if inner.is_empty() => Error::Data { place, reason, fix },
        Error::Data { place: inner, reason, fix } => Error::Data { place: format!("{place}, {inner}"), reason, fix },
        other => other,
    }
}
