//! Metrics of predictions whose labels are known, as an evaluation in training computes them.

use super::PredictionKind;
use super::prediction::{PredictedValue, Prediction};
use crate::{Error, Result};
use model_center_base::batch::Labels;
use model_center_data::metrics::{AnswerScores, Evaluator, LabelKind, Metric};

/// A label that a record has.
#[derive(Debug, Clone, PartialEq)]
pub enum KnownLabel {
    /// The number of a class.
    Class(usize),
    /// Whether the input has each label, 1 or 0.
    Set(Vec<f32>),
    /// A number.
    Number(f32),
    /// The number of each word's class.
    Tags(Vec<usize>),
    /// Texts: each is a right answer.
    Answers(Vec<String>),
}

/// Collects predictions with their labels.
#[derive(Debug, Clone)]
pub struct Rating {
    names: Vec<String>,
    evaluator: Evaluator,
    answers: AnswerScores,
    metrics: Vec<Metric>,
    count: u32,
}

impl Rating {
    /// The default metrics of a kind, and further ones; `None` of a kind without labels.
    ///
    /// # Errors
    /// [`Error::Argument`] for a metric that does not judge this kind.
    pub fn new(kind: &PredictionKind, threshold: f32, further: &[Metric]) -> Result<Option<Self>> {
        let labels = kind.labels();
        let fitting = labels.as_ref().map(|labels| LabelKind::of(labels).metrics()).unwrap_or_default();
        if let Some(other) = further.iter().find(|metric| !fitting.contains(&metric.name())) {
            let fix = match fitting.is_empty() {
                true => "leave it out: there are no labels to compare with".to_owned(),
                false => format!("use {}", fitting.join(", ")),
            };
            return Err(Error::argument("metric", format!("{:?} does not judge the predictions", other.name()), fix));
        }
        let Some(labels) = labels else { return Ok(None) };
        for metric in further {
            metric.check_classes(labels.classes())?;
        }
        let mut metrics = Metric::defaults(&labels).to_vec();
        for metric in further {
            if !metrics.contains(metric) {
                metrics.push(*metric);
            }
        }
        let evaluator = Evaluator::new(&labels).with_threshold(threshold);
        let names = kind.names().to_vec();
        Ok(Some(Rating { names, evaluator, answers: AnswerScores::default(), metrics, count: 0 }))
    }

    /// Adds a prediction with the outputs of its rows and its label.
    ///
    /// # Errors
    /// A label of another kind; other than one tag for each word.
    pub fn add(&mut self, prediction: &Prediction, outputs: &[Vec<f32>], label: &KnownLabel) -> Result<()> {
        let number = [self.count];
        let logits = outputs.first().map(Vec::as_slice).unwrap_or_default();
        match (label, &prediction.value) {
            (KnownLabel::Class(class), PredictedValue::Class(_)) => {
                self.evaluator.add(&number, logits, &Labels::Classes(vec![*class as i64]))?;
            }
            (KnownLabel::Set(values), PredictedValue::Labels(_)) => {
                self.evaluator.add(&number, logits, &Labels::Values(values.clone()))?;
            }
            (KnownLabel::Number(value), PredictedValue::Numbers(_)) => {
                self.evaluator.add(&number, logits, &Labels::Values(vec![*value]))?;
            }
            (KnownLabel::Tags(tags), PredictedValue::Entities { tags: Some(predicted), .. }) => {
                if tags.len() != predicted.len() {
                    let reason = format!("{} tags for {} words", tags.len(), predicted.len());
                    return Err(Error::data("", reason, "give one tag for each word"));
                }
                // A word without a token is in no entity: a number beyond the names stands for that.
                let class = |tag: &String| self.names.iter().position(|name| name == tag).unwrap_or(self.names.len());
                let predicted: Vec<f32> = predicted.iter().map(|tag| class(tag) as f32).collect();
                let tags = tags.iter().map(|tag| *tag as i64).collect();
                self.evaluator.add(&number, &predicted, &Labels::TokenClasses(tags))?;
            }
            (KnownLabel::Answers(answers), PredictedValue::Answer(answer)) => {
                let text = answer.as_ref().map_or("", |answer| answer.text.as_str());
                self.answers.add(self.count, text, answers);
            }
            (KnownLabel::Tags(_), PredictedValue::Entities { tags: None, .. }) => {
                let fix = "give the words of the sentence as a list too, with `tokens`, or leave labels out";
                return Err(Error::data("", "tags of words, and the input is a text", fix));
            }
            _ => return Err(Error::data("", "the label is of another kind than the prediction", "leave labels out")),
        }
        self.count += 1;
        Ok(())
    }

    /// Number of predictions with labels.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The metrics; `None` without labels.
    ///
    /// # Errors
    /// A metric that does not fit the labels.
    pub fn metrics(&self) -> Result<Option<Vec<(Metric, f64)>>> {
        if self.count == 0 {
            return Ok(None);
        }
        let value = |metric: &Metric| match self.answers.value(*metric).filter(|_| self.answers.count() > 0) {
            Some(value) => Ok((*metric, value)),
            None => Ok(self.evaluator.compute(&[*metric])?[0]),
        };
        self.metrics.iter().map(value).collect::<Result<_>>().map(Some)
    }
}
