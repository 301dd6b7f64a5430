//! Inputs of records, by columns.

use super::labels::LabelFields;
use super::rating::KnownLabel;
use super::{PredictInput, PredictionKind};
use crate::{Error, Result};
use model_center_data::Record;
use model_center_formats::tokenizer::ChatMessage;
use serde_json::{Map, Value};

const TEXT: &str = "text";
const TEXT_PAIR: &str = "text_pair";
const TOKENS: &str = "tokens";
const QUESTION: &str = "question";
const CONTEXT: &str = "context";
const MESSAGES: &str = "messages";

/// Which columns are read. Without names: `text` with `text_pair` where records have it, or `messages`; of words
/// `tokens`, else `text`; of answers `question` and `context`. Labels are read from `label`, `labels`, `ner_tags`,
/// `tags` or `answers` where records have such a column.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PredictColumns {
    /// The text, the first of a pair, or the question.
    pub text: Option<String>,
    /// The second text of a pair, or the passage.
    pub text_pair: Option<String>,
    /// A list of words.
    pub tokens: Option<String>,
    /// The known label.
    pub label: Option<String>,
    /// Whether labels are not read.
    pub without_labels: bool,
}

/// Reads the inputs of records for a model of one kind.
pub struct RecordFields<'p> {
    kind: &'p PredictionKind,
    columns: &'p PredictColumns,
    /// `None` where labels are not read.
    labels: Option<LabelFields<'p>>,
}

impl<'p> RecordFields<'p> {
    /// The reader of a kind.
    ///
    /// # Errors
    /// [`Error::Argument`] for a column that the kind has no use for.
    pub fn new(kind: &'p PredictionKind, columns: &'p PredictColumns) -> Result<Self> {
        let unused = |name: &str, why: &str| Err(Error::without_effect(name, why));
        match kind {
            PredictionKind::Words(_) => {}
            _ if columns.tokens.is_some() => return unused("tokens", "the model does not classify words"),
            _ => {}
        }
        match kind {
            PredictionKind::Words(_) | PredictionKind::Embedding(_) if columns.text_pair.is_some() => {
                return unused("text_pair", "the model reads one text at a time");
            }
            _ => {}
        }
        if columns.label.is_some() && kind.labels().is_none() {
            return unused("label", "nothing that the model predicts is compared with labels");
        }
        if columns.label.is_some() && columns.without_labels {
            return unused("label", "labels are not read with `without_labels`");
        }
        let read = [&columns.text, &columns.text_pair, &columns.tokens];
        if let Some(label) = columns.label.as_ref().filter(|label| read.contains(&&Some((*label).clone()))) {
            let reason = format!("the column {label:?} is read as an input too");
            return Err(Error::argument("label", reason, "name another column"));
        }
        let labels = (!columns.without_labels).then(|| LabelFields::new(kind, columns.label.as_deref())).transpose()?;
        Ok(RecordFields { kind, columns, labels })
    }

    /// The names of the fields that inputs have without names of columns.
    pub fn names(kind: &PredictionKind) -> &'static [&'static str] {
        match kind {
            PredictionKind::Words(_) => &[TEXT, TOKENS],
            PredictionKind::Answer => &[QUESTION, CONTEXT],
            PredictionKind::Embedding(_) => &[TEXT],
            PredictionKind::Class(_) | PredictionKind::Labels(_) | PredictionKind::Numbers(_) => {
                &[TEXT, TEXT_PAIR, MESSAGES]
            }
        }
    }

    /// The input of a record, and its label where it has one.
    ///
    /// # Errors
    /// [`Error::Data`] for a record without the columns, an empty text, a label that the model does not know.
    pub fn read(&mut self, record: &Record<'_>) -> Result<(PredictInput, Option<KnownLabel>)> {
        let input = self.input(record)?;
        let label = self.labels.as_mut().map(|labels| labels.read(record)).transpose()?;
        Ok((input, label.flatten()))
    }

    fn input(&self, record: &Record<'_>) -> Result<PredictInput> {
        let named = |name: &Option<String>, default: &str| name.clone().unwrap_or_else(|| default.to_owned());
        let text = named(&self.columns.text, TEXT);
        match self.kind {
            PredictionKind::Answer => {
                let (question, context) =
                    (named(&self.columns.text, QUESTION), named(&self.columns.text_pair, CONTEXT));
                Ok(PredictInput::Question {
                    question: filled(record, &question, "text")?,
                    passage: filled(record, &context, "text_pair")?,
                })
            }
            PredictionKind::Words(_) => {
                let tokens = named(&self.columns.tokens, TOKENS);
                let has_words =
                    self.columns.tokens.is_some() || (self.columns.text.is_none() && record.has_value(&tokens));
                if !has_words {
                    return Ok(PredictInput::Text { text: filled(record, &text, "text")?, pair: None });
                }
                present(record, &tokens, "tokens")?;
                Ok(PredictInput::Words(record.texts(&tokens)?))
            }
            PredictionKind::Class(_) | PredictionKind::Labels(_) | PredictionKind::Numbers(_)
                if self.columns.text.is_none() && !record.has_value(TEXT) && record.has_value(MESSAGES) =>
            {
                messages(record).map(PredictInput::Messages)
            }
            _ => {
                let reads_pairs = !matches!(self.kind, PredictionKind::Embedding(_));
                let pair = match &self.columns.text_pair {
                    Some(column) => Some(column.as_str()),
                    None => (reads_pairs && record.has_value(TEXT_PAIR)).then_some(TEXT_PAIR),
                };
                let pair = pair.map(|column| filled(record, column, "text_pair")).transpose()?;
                Ok(PredictInput::Text { text: filled(record, &text, "text")?, pair })
            }
        }
    }
}

/// A column that a record has.
pub(super) fn present(record: &Record<'_>, column: &str, option: &str) -> Result<()> {
    if record.has(column) {
        return Ok(());
    }
    let columns: Vec<&str> = record.names().take(20).collect();
    let reason = format!("no column {column:?}; columns: {}", columns.join(", "));
    Err(record.error("", reason, format!("name the column with `{option}`, or correct the record")))
}

/// The text of a column, which is more than white space.
fn filled(record: &Record<'_>, column: &str, option: &str) -> Result<String> {
    present(record, column, option)?;
    let text = record.text(column)?;
    match text.trim().is_empty() {
        false => Ok(text.to_owned()),
        true => {
            let fix = "give a text, or leave such records out with `skip_bad_records`";
            Err(record.error(column, format!("{column:?} is empty"), fix))
        }
    }
}

/// A conversation: a list of objects with `role` and `content`.
fn messages(record: &Record<'_>) -> Result<Vec<ChatMessage>> {
    let wrong = |reason: &str| record.error(MESSAGES, reason, "write [{\"role\": \"user\", \"content\": \"…\"}, …]");
    let Some(Value::Array(items)) = record.json(MESSAGES) else { return Err(wrong("\"messages\" is not a list")) };
    if items.is_empty() {
        return Err(wrong("\"messages\" is empty"));
    }
    let message = |item: &Value| {
        let Value::Object(fields) = item else { return Err(wrong("a message is not an object")) };
        let mut more: Map<String, Value> = fields.clone();
        let role = more.shift_remove("role").and_then(|role| role.as_str().map(str::to_owned));
        let role = role.ok_or_else(|| wrong("a message has no role"))?;
        let content = more.shift_remove("content").unwrap_or_default();
        Ok(ChatMessage { role, content, more })
    };
    items.iter().map(message).collect()
}
