//! Inputs as rows of tokens.

use super::passages::PassageRows;
use super::words::WordRows;
use super::{PredictInput, PredictionKind, Predictor};
use crate::{Error, Result};
use model_center_formats::tokenizer::{ChatRequest, Encoding, KeepSide, Limit};

/// An input as rows of tokens, with what turns the outputs of these rows into a prediction.
#[derive(Debug, Clone)]
pub struct PreparedInput {
    rows: Vec<Encoding>,
    pub(super) form: Form,
    removed: usize,
}

/// Form of rows.
#[derive(Debug, Clone)]
pub(super) enum Form {
    /// The one row of a text, a pair or a conversation.
    Whole,
    /// Windows of the words of a sentence.
    Words(WordRows),
    /// Windows of a passage.
    Passage(PassageRows),
}

impl PreparedInput {
    pub(super) fn new(rows: Vec<Encoding>, form: Form) -> Self {
        let removed = rows.iter().map(|row| row.removed).sum();
        PreparedInput { rows, form, removed }
    }

    /// The rows, at least one, none of them empty.
    pub fn rows(&self) -> &[Encoding] {
        &self.rows
    }

    /// Tokens that the length limit has cut.
    pub fn removed(&self) -> usize {
        self.removed
    }
}

impl Predictor {
    /// The rows of an input.
    ///
    /// # Errors
    /// [`Error::Data`] for an input of another kind than the model's, and for one without a token.
    pub fn prepare(&self, input: &PredictInput) -> Result<PreparedInput> {
        let prepared = match (&self.kind, input) {
            (PredictionKind::Words(_), PredictInput::Text { text, pair: None }) => self.words_of_text(text)?,
            (PredictionKind::Words(_), PredictInput::Words(words)) => self.words(words)?,
            (PredictionKind::Answer, PredictInput::Question { question, passage }) => {
                self.passage(question, passage)?
            }
            (PredictionKind::Embedding(encoder), PredictInput::Text { text, pair: None }) => {
                let ids = encoder.encode(self.tokenizer(), text, self.options.prompt.as_deref())?;
                self.whole(ids)?
            }
            (
                PredictionKind::Class(_) | PredictionKind::Labels(_) | PredictionKind::Numbers(_),
                PredictInput::Text { text, pair },
            ) => {
                let limit = Limit { max_tokens: self.max_length, keep: self.options.keep };
                let row = self.tokenizer.encode(text, pair.as_deref(), Some(limit))?;
                PreparedInput::new(vec![row], Form::Whole)
            }
            (
                PredictionKind::Class(_) | PredictionKind::Labels(_) | PredictionKind::Numbers(_),
                PredictInput::Messages(messages),
            ) => {
                let Some(chat) = &self.chat else {
                    let fix = "give texts, or add chat_template.jinja to the model's directory";
                    return Err(Error::data("", "a conversation, and the model has no chat template", fix));
                };
                let ids = chat.encode(self.tokenizer(), &ChatRequest::new(messages))?;
                self.whole(ids)?
            }
            (kind, _) => {
                let (what, fix) = match kind {
                    PredictionKind::Words(_) => ("words of a sentence", "give a text, or a list of words"),
                    PredictionKind::Answer => ("questions about passages", "give a question and a passage"),
                    PredictionKind::Embedding(_) => ("embeddings of texts", "give one text"),
                    _ => ("classes or numbers of texts", "give a text, or a pair of texts"),
                };
                return Err(Error::data("", format!("the input is of another kind: the model predicts {what}"), fix));
            }
        };
        match prepared.rows.iter().all(|row| row.input_ids.is_empty()) {
            true => Err(no_token()),
            false => Ok(prepared),
        }
    }

    /// A row of ids with special tokens, cut to the length limit.
    fn whole(&self, mut ids: Vec<u32>) -> Result<PreparedInput> {
        let removed = ids.len().saturating_sub(self.max_length);
        match self.options.keep {
            KeepSide::Start => ids.truncate(self.max_length),
            KeepSide::End => drop(ids.drain(..removed)),
        }
        let token_type_ids = vec![0; ids.len()];
        Ok(PreparedInput::new(vec![Encoding { input_ids: ids, token_type_ids, removed }], Form::Whole))
    }
}

pub(super) fn no_token() -> Error {
    Error::data("", "the input has no token", "give more text, or leave it out")
}
