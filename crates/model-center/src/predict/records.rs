//! Inputs and known labels of records, by columns.

use super::rating::KnownLabel;
use super::{PredictInput, PredictionKind};
use crate::data::{LabelReader, LabelSpec, Record};
use crate::tokenizer::ChatMessage;
use crate::{Error, Result};
use serde_json::{Map, Value};

const TEXT: &str = "text";
const TEXT_PAIR: &str = "text_pair";
const LABEL: &str = "label";
const LABELS: &str = "labels";
const TOKENS: &str = "tokens";
const TAGS: &str = "tags";
/// The default of recipes.
const NER_TAGS: &str = "ner_tags";
const QUESTION: &str = "question";
const CONTEXT: &str = "context";
const ANSWERS: &str = "answers";
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
#[derive(Debug, Clone)]
pub struct RecordFields<'p> {
    kind: &'p PredictionKind,
    columns: &'p PredictColumns,
    labels: Option<LabelSpec>,
}

impl<'p> RecordFields<'p> {
    /// The reader of a kind.
    ///
    /// # Errors
    /// [`Error::Argument`] for a column that the kind has no use for.
    pub fn new(kind: &'p PredictionKind, columns: &'p PredictColumns) -> Result<Self> {
        let unused =
            |name: &str, why: &str| Err(Error::argument(name, format!("it has no effect: {why}"), "leave it out"));
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
        let names = kind.names();
        let labels = (names.len() > 1).then(|| LabelSpec::Names(names.to_vec()));
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
    pub fn read(&self, record: &Record<'_>) -> Result<(PredictInput, Option<KnownLabel>)> {
        Ok((self.input(record)?, self.label(record)?))
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

    /// The label of a record. Without a name of its column, records need none; an empty one is none.
    fn label(&self, record: &Record<'_>) -> Result<Option<KnownLabel>> {
        if self.columns.without_labels {
            return Ok(None);
        }
        let column = |default: &'static str| match &self.columns.label {
            Some(column) => present(record, column, "label").map(|()| Some(column.clone())),
            None => Ok(record.has_value(default).then(|| default.to_owned())),
        };
        match self.kind {
            PredictionKind::Class(_) => {
                let Some(column) = column(LABEL)? else { return Ok(None) };
                let spelled = record.scalar(&column)?.spelled().into_owned();
                self.class(record, &column, &spelled).map(|class| class.map(KnownLabel::Class))
            }
            PredictionKind::Labels(names) => {
                // As recipes have it: a list in the column of labels.
                let is_list = record.json(LABEL).is_some_and(Value::is_array);
                let default = if is_list && !record.has_value(LABELS) { LABEL } else { LABELS };
                self.label_set(record, column(default)?, names)
            }
            PredictionKind::Numbers(1) => {
                let Some(column) = column(LABEL)? else { return Ok(None) };
                let spelled = record.scalar(&column)?.spelled().trim().to_owned();
                if spelled.is_empty() {
                    return Ok(None);
                }
                let number = spelled.parse::<f32>().ok().filter(|number| number.is_finite());
                let number = number.ok_or_else(|| {
                    let reason = format!("label {spelled:?} is not a finite number");
                    record.error(&column, reason, WITHOUT)
                })?;
                Ok(Some(KnownLabel::Number(number)))
            }
            PredictionKind::Words(_) => {
                let default = if record.has_value(NER_TAGS) { NER_TAGS } else { TAGS };
                let Some(column) = column(default)? else { return Ok(None) };
                let tags = record.texts(&column)?;
                let class = |tag: &String| match self.class(record, &column, tag)? {
                    Some(class) => Ok(class),
                    None => Err(record.error(&column, "a tag is empty", WITHOUT)),
                };
                Ok(Some(KnownLabel::Tags(tags.iter().map(class).collect::<Result<_>>()?)))
            }
            PredictionKind::Answer => {
                let Some(column) = column(ANSWERS)? else { return Ok(None) };
                answers(record, &column).map(|answers| Some(KnownLabel::Answers(answers)))
            }
            PredictionKind::Numbers(_) | PredictionKind::Embedding(_) => Ok(None),
        }
    }

    /// The number of a class by its name, or by its number where names are no numbers; `None` of an empty label.
    fn class(&self, record: &Record<'_>, column: &str, spelled: &str) -> Result<Option<usize>> {
        if spelled.trim().is_empty() {
            return Ok(None);
        }
        // A model of one class has nothing to be wrong about.
        let Some(labels) = &self.labels else { return Ok(None) };
        let mut reader = LabelReader::new(labels)?;
        reader.class(spelled, |reason, _| record.error(column, reason, WITHOUT)).map(Some)
    }

    /// Labels as a list in a column, or a column for each label.
    fn label_set(&self, record: &Record<'_>, column: Option<String>, names: &[String]) -> Result<Option<KnownLabel>> {
        let mut values = vec![0.0; names.len()];
        match column {
            Some(column) => {
                for label in record.texts(&column)? {
                    if let Some(class) = self.class(record, &column, &label)? {
                        values[class] = 1.0;
                    }
                }
            }
            None if names.iter().all(|name| record.has_value(name)) => {
                for (value, name) in values.iter_mut().zip(names) {
                    *value = f32::from(u8::from(record.flag(name)?));
                }
            }
            None => return Ok(None),
        }
        Ok(Some(KnownLabel::Set(values)))
    }
}

const WITHOUT: &str = "correct it, name another column with `label`, name the model's classes with `labels`, or leave \
                       labels out with `without_labels`";

/// A column that a record has.
fn present(record: &Record<'_>, column: &str, option: &str) -> Result<()> {
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

/// The known answers of a question: `{"text": […]}` as in SQuAD's records, a list of texts, or a text. Without any the
/// question has no answer.
fn answers(record: &Record<'_>, column: &str) -> Result<Vec<String>> {
    let wrong = || {
        let fix = "write {\"text\": [\"…\"], \"answer_start\": […]}, a list of texts, or a text";
        Err(record.error(column, format!("{column:?} holds no answers"), fix))
    };
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Object(fields) => fields.get(TEXT).and_then(Value::as_str).map(str::to_owned),
        _ => None,
    };
    let list = |items: &[Value]| items.iter().map(text).collect::<Option<Vec<String>>>();
    let found = match record.json(column) {
        None => Some(vec![record.text(column)?.to_owned()]),
        Some(Value::String(text)) => Some(vec![text.clone()]),
        Some(Value::Array(items)) => list(items),
        Some(Value::Object(fields)) => fields.get(TEXT).and_then(Value::as_array).and_then(|items| list(items)),
        Some(_) => None,
    };
    match found {
        // A prediction without words is right.
        Some(texts) if texts.is_empty() => Ok(vec![String::new()]),
        Some(texts) => Ok(texts),
        None => wrong(),
    }
}
