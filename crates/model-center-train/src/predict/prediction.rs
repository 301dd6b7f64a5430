//! Predictions, as JSON objects and as cells of a table.

use super::pass::{sigmoid, softmax};
use super::prepare::{Form, PreparedInput};
use super::{PredictionKind, Predictor};
use crate::{Error, Result};
use model_center_data::metrics::{argmax, logit};
use serde_json::{Map, Value, json};
use std::ops::Range;

/// The name of what is predicted in results.
const PREDICTION: &str = "prediction";
const SCORE: &str = "score";
const PROBABILITIES: &str = "probabilities";
const START: &str = "start";
const END: &str = "end";
const TAGS: &str = "tags_predicted";

/// Prediction of a model for an input.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// Predicted value.
    pub value: PredictedValue,
    /// The probability of a class or an answer.
    pub score: Option<f32>,
    /// The probability of each class or label, in the order of [`PredictionKind::names`]; empty of other kinds.
    pub probabilities: Vec<f32>,
}

/// The kinds of predictions.
#[derive(Debug, Clone, PartialEq)]
pub enum PredictedValue {
    /// A class.
    Class(String),
    /// Labels, in the order of their names.
    Labels(Vec<String>),
    /// Numbers.
    Numbers(Vec<f32>),
    /// Entities and, of given words, the class of each word.
    Entities {
        /// The entities.
        entities: Vec<EntityMention>,
        /// The class of each word; `None` of a text.
        tags: Option<Vec<String>>,
    },
    /// The answer; `None` for none.
    Answer(Option<AnswerSpan>),
    /// An embedding.
    Embedding(Vec<f32>),
}

/// An entity in a text or in a list of words.
#[derive(Debug, Clone, PartialEq)]
pub struct EntityMention {
    /// Its type, such as `PER`.
    pub kind: String,
    /// Its text; `None` in a list of words.
    pub text: Option<String>,
    /// Its characters in the text, or its words.
    pub place: Range<usize>,
    /// The mean probability of its words' classes.
    pub score: f32,
}

/// An answer in a passage.
#[derive(Debug, Clone, PartialEq)]
pub struct AnswerSpan {
    /// Its text.
    pub text: String,
    /// Its characters in the passage.
    pub place: Range<usize>,
}

impl Predictor {
    /// The prediction of an input with the outputs of its rows.
    ///
    /// # Errors
    /// Outputs of another number than the model's.
    pub fn finish(&self, prepared: &PreparedInput, outputs: &[Vec<f32>]) -> Result<Prediction> {
        let first = outputs.first().map(Vec::as_slice).unwrap_or_default();
        let plain = |value| Prediction { value, score: None, probabilities: Vec::new() };
        Ok(match (&self.kind, &prepared.form) {
            (_, Form::Words(rows)) => self.classes_of_words(rows, outputs)?,
            (_, Form::Passage(rows)) => self.answer(rows, outputs),
            (PredictionKind::Class(names), Form::Whole) => {
                let probabilities = softmax(first);
                let class = argmax(&probabilities).filter(|class| *class < names.len()).ok_or_else(unlike)?;
                let value = PredictedValue::Class(names[class].clone());
                Prediction { value, score: Some(probabilities[class]), probabilities }
            }
            (PredictionKind::Labels(names), Form::Whole) => {
                let probabilities = first.iter().copied().map(sigmoid).collect();
                // As the metrics decide it, whatever the rounding of probabilities.
                let least = logit(self.options.threshold);
                let is_over = |(_, logit): &(&String, &f32)| **logit > least;
                let labels = names.iter().zip(first).filter(is_over).map(|(name, _)| name.clone()).collect();
                Prediction { value: PredictedValue::Labels(labels), score: None, probabilities }
            }
            (PredictionKind::Numbers(_), Form::Whole) => plain(PredictedValue::Numbers(first.to_vec())),
            (PredictionKind::Embedding(encoder), Form::Whole) => {
                let tokens = prepared.rows().first().map_or(0, |row| row.input_ids.len());
                plain(PredictedValue::Embedding(encoder.embed(first, first.len() / tokens.max(1))))
            }
            (PredictionKind::Words(_) | PredictionKind::Answer, Form::Whole) => return Err(unlike()),
        })
    }
}

fn unlike() -> Error {
    Error::model("the model", "its outputs do not fit its head", "report this")
}

/// A number as JSON has it, with the digits of an f32.
fn number(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

impl Prediction {
    /// The prediction as fields of a JSON object: `prediction`, and as the kind has them `score`, `probabilities`,
    /// `start`, `end`, `tags_predicted`.
    pub fn fields(&self, names: &[String]) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert(PREDICTION.to_owned(), self.value.json());
        if let Some(score) = self.score {
            fields.insert(SCORE.to_owned(), number(score));
        }
        if !self.probabilities.is_empty() {
            let named = names.iter().zip(&self.probabilities).map(|(name, value)| (name.clone(), number(*value)));
            fields.insert(PROBABILITIES.to_owned(), Value::Object(named.collect()));
        }
        match &self.value {
            PredictedValue::Answer(Some(answer)) => {
                fields.insert(START.to_owned(), answer.place.start.into());
                fields.insert(END.to_owned(), answer.place.end.into());
            }
            PredictedValue::Entities { tags: Some(tags), .. } => {
                fields.insert(TAGS.to_owned(), tags.clone().into());
            }
            _ => {}
        }
        fields
    }

    /// The same as cells of a table with the columns of [`PredictionKind::columns`].
    pub fn cells(&self, names: &[String]) -> Vec<String> {
        let text = |value: Option<&Value>| match value {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let fields = self.fields(names);
        let value = match &self.value {
            PredictedValue::Numbers(numbers) if numbers.len() == 1 => numbers[0].to_string(),
            _ => text(fields.get(PREDICTION)),
        };
        let mut cells = vec![value];
        match &self.value {
            PredictedValue::Class(_) => cells.push(text(fields.get(SCORE))),
            PredictedValue::Answer(_) => cells.extend([SCORE, START, END].map(|name| text(fields.get(name)))),
            _ => {}
        }
        cells.extend(self.probabilities.iter().map(f32::to_string));
        cells
    }
}

impl PredictionKind {
    /// The columns of predictions in a table: `prediction`, and as the kind has them `score`, `start`, `end` and
    /// `probability NAME` for each class.
    pub fn columns(&self) -> Vec<String> {
        let further: &[&str] = match self {
            PredictionKind::Class(_) => &[SCORE],
            PredictionKind::Answer => &[SCORE, START, END],
            _ => &[],
        };
        let probabilities = match self {
            PredictionKind::Class(names) | PredictionKind::Labels(names) => names.as_slice(),
            _ => &[],
        };
        let first = std::iter::once(PREDICTION).chain(further.iter().copied()).map(str::to_owned);
        first.chain(probabilities.iter().map(|name| format!("probability {name}"))).collect()
    }

    /// The names of the fields that a prediction adds to a JSON object.
    pub fn field_names(&self) -> &'static [&'static str] {
        match self {
            PredictionKind::Class(_) => &[PREDICTION, SCORE, PROBABILITIES],
            PredictionKind::Labels(_) => &[PREDICTION, PROBABILITIES],
            PredictionKind::Words(_) => &[PREDICTION, TAGS],
            PredictionKind::Answer => &[PREDICTION, SCORE, START, END],
            PredictionKind::Numbers(_) | PredictionKind::Embedding(_) => &[PREDICTION],
        }
    }
}

impl PredictedValue {
    /// As JSON: a class as a text, labels as a list, one number as such, entities as a list of objects, an answer as a
    /// text, empty for none, an embedding as a list.
    pub fn json(&self) -> Value {
        match self {
            PredictedValue::Class(class) => class.clone().into(),
            PredictedValue::Labels(labels) => labels.clone().into(),
            PredictedValue::Numbers(numbers) => match numbers.as_slice() {
                [one] => number(*one),
                several => several.iter().copied().map(number).collect(),
            },
            PredictedValue::Embedding(values) => values.iter().copied().map(number).collect(),
            PredictedValue::Answer(answer) => answer.as_ref().map_or("", |answer| answer.text.as_str()).into(),
            PredictedValue::Entities { entities, .. } => entities.iter().map(EntityMention::json).collect(),
        }
    }
}

impl EntityMention {
    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("entity".to_owned(), self.kind.clone().into());
        if let Some(text) = &self.text {
            object.insert("text".to_owned(), text.clone().into());
        }
        object.extend(
            [(START, json!(self.place.start)), (END, json!(self.place.end)), (SCORE, number(self.score))]
                .map(|(name, value)| (name.to_owned(), value)),
        );
        Value::Object(object)
    }
}
