//! Known labels of records, by columns.

use super::PredictionKind;
use super::rating::KnownLabel;
use super::records::present;
use crate::{Error, Result};
use model_center_base::batch::Label;
use model_center_data::{LabelReader, LabelSpec, Record};
use serde_json::Value;
use std::borrow::Cow;

const LABEL: &str = "label";
const LABELS: &str = "labels";
const TAGS: &str = "tags";
/// The default of recipes.
const NER_TAGS: &str = "ner_tags";
const ANSWERS: &str = "answers";

const WITHOUT: &str = "correct it, name another column with `label`, name the model's classes with `labels`, or leave \
                       labels out with `without_labels`";

/// Reads the labels of records for a model of one kind.
pub(super) struct LabelFields<'p> {
    kind: &'p PredictionKind,
    /// The column, where it is named.
    column: Option<&'p str>,
    /// Reader of classes and numbers.
    reader: Option<LabelReader<'static>>,
}

impl<'p> LabelFields<'p> {
    /// The reader of a kind, of the named column or of the ones that are usual.
    ///
    /// # Errors
    /// Names of classes that repeat.
    pub(super) fn new(kind: &'p PredictionKind, column: Option<&'p str>) -> Result<Self> {
        let spec = match kind {
            PredictionKind::Numbers(1) => Some(LabelSpec::Value),
            // A model of one class has nothing to be wrong about.
            _ => Some(kind.names()).filter(|names| names.len() > 1).map(|names| LabelSpec::Names(names.to_vec())),
        };
        let reader = spec.map(|spec| LabelReader::of(Cow::Owned(spec))).transpose()?;
        Ok(LabelFields { kind, column, reader })
    }

    /// The label of a record. Without a name of its column, records need none; an empty one is none.
    ///
    /// # Errors
    /// A named column that the record does not have; a label that the model does not know.
    pub(super) fn read(&mut self, record: &Record<'_>) -> Result<Option<KnownLabel>> {
        // As recipes have them: a list in the column of labels, and tags by the name of published data.
        let is_list = record.json(LABEL).is_some_and(Value::is_array) && !record.has_value(LABELS);
        let usual = match self.kind {
            PredictionKind::Class(_) | PredictionKind::Numbers(1) => LABEL,
            PredictionKind::Labels(_) if is_list => LABEL,
            PredictionKind::Labels(_) => LABELS,
            PredictionKind::Words(_) if record.has_value(NER_TAGS) => NER_TAGS,
            PredictionKind::Words(_) => TAGS,
            PredictionKind::Answer => ANSWERS,
            PredictionKind::Numbers(_) | PredictionKind::Embedding(_) => return Ok(None),
        };
        if let Some(column) = self.column {
            present(record, column, "label")?;
        }
        let column = Some(self.column.unwrap_or(usual)).filter(|column| record.has_value(column));
        match (self.kind, column) {
            (PredictionKind::Labels(names), None) => flags(record, names),
            (_, None) => Ok(None),
            (PredictionKind::Labels(names), Some(column)) => {
                let mut values = vec![0.0; names.len()];
                for class in self.classes(record, column)? {
                    values[class] = 1.0;
                }
                Ok(Some(KnownLabel::Set(values)))
            }
            (PredictionKind::Words(_), Some(column)) => self.classes(record, column).map(KnownLabel::Tags).map(Some),
            (PredictionKind::Answer, Some(column)) => answers(record, column).map(KnownLabel::Answers).map(Some),
            (_, Some(column)) => self.one(record, column),
        }
    }

    /// The class or the number in a column; `None` of an empty one.
    fn one(&mut self, record: &Record<'_>, column: &str) -> Result<Option<KnownLabel>> {
        let is_empty = record.scalar(column)?.spelled().trim().is_empty();
        let Some(reader) = self.reader.as_mut().filter(|_| !is_empty) else { return Ok(None) };
        let label = reader.label(record, column).map_err(|error| match error {
            Error::Data { place, reason, .. } => Error::data(place, reason, WITHOUT),
            other => other,
        })?;
        Ok(match label {
            Label::Class(class) => Some(KnownLabel::Class(class)),
            Label::Value(value) => Some(KnownLabel::Number(value)),
            _ => None,
        })
    }

    /// The classes in a list.
    fn classes(&mut self, record: &Record<'_>, column: &str) -> Result<Vec<usize>> {
        let Some(reader) = &mut self.reader else { return Ok(Vec::new()) };
        let mut class = |label: &String| reader.class(label, |reason, _| record.error(column, reason, WITHOUT));
        record.texts(column)?.iter().map(&mut class).collect()
    }
}

/// The labels of a record with a column for each; `None` where one is missing.
fn flags(record: &Record<'_>, names: &[String]) -> Result<Option<KnownLabel>> {
    if !names.iter().all(|name| record.has_value(name)) {
        return Ok(None);
    }
    let values = names.iter().map(|name| Ok(f32::from(u8::from(record.flag(name)?))));
    values.collect::<Result<_>>().map(KnownLabel::Set).map(Some)
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
        Value::Object(fields) => fields.get("text").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    };
    let list = |items: &[Value]| items.iter().map(text).collect::<Option<Vec<String>>>();
    let found = match record.json(column) {
        None => Some(vec![record.text(column)?.to_owned()]),
        Some(Value::String(text)) => Some(vec![text.clone()]),
        Some(Value::Array(items)) => list(items),
        Some(Value::Object(fields)) => fields.get("text").and_then(Value::as_array).and_then(|items| list(items)),
        Some(_) => None,
    };
    match found {
        // A prediction without words is right.
        Some(texts) if texts.is_empty() => Ok(vec![String::new()]),
        Some(texts) => Ok(texts),
        None => wrong(),
    }
}
