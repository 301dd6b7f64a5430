//! Judging a model on labelled data: every sample once, metrics and mean loss.

use bmtrain_core::{Ctx, Device};
use bmtrain_dist::param::widen;
use model_center::data::{Loader, LoaderOptions};
use model_center::metrics::{Evaluator, Metric, OrderedSum};
use model_center::model::{TextBatch, TextModel};
use model_center::recipe::EvalMetric;
use model_center::{Error, Result};

/// What an evaluation found.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// Samples.
    pub samples: u64,
    /// Mean loss over the samples.
    pub loss: f64,
    /// The task's metrics.
    pub metrics: Vec<(Metric, f64)>,
}

impl Judgement {
    /// The value of one metric; NaN for one that was not computed.
    pub fn value(&self, metric: EvalMetric) -> f64 {
        match metric {
            EvalMetric::Loss => self.loss,
            EvalMetric::Metric(wanted) => {
                self.metrics.iter().find(|(metric, _)| *metric == wanted).map_or(f64::NAN, |(_, value)| *value)
            }
        }
    }

    /// Names and values, the loss last.
    pub fn named(&self) -> Vec<(String, f64)> {
        let metrics = self.metrics.iter().map(|(metric, value)| (metric.name().to_owned(), *value));
        metrics.chain([("loss".to_owned(), self.loss)]).collect()
    }

    /// One line for people.
    pub fn line(&self) -> String {
        self.named().iter().map(|(name, value)| format!("{name} {value:.4}")).collect::<Vec<_>>().join(", ")
    }
}

/// Judge `model` on the data of `loader`.
///
/// # Errors
/// Labels that do not fit the model, a failing device.
pub fn evaluate(model: &dyn TextModel, loader: &mut Loader, wanted: &[Metric], device: &Device) -> Result<Judgement> {
    let mut evaluator = Evaluator::new(loader.dataset().labels());
    let mut losses = OrderedSum::default();
    for batch in loader.epoch(0) {
        let batch = batch?;
        let index = batch.position.index;
        let (samples, labels) = (batch.samples.clone(), batch.labels.clone());
        let mut cx = Ctx::inference(device);
        let scores = model.score(&TextBatch::of(batch, 0.0), None, &mut cx)?;
        let (Some(logits), Some(loss)) = (scores.logits, scores.loss) else {
            return Err(Error::model(
                "evaluation",
                "the model has no head for labels",
                "open it with a classification head",
            ));
        };
        evaluator.add(&samples, &widen(logits.value())?, &labels)?;
        let count = samples.len() as f64;
        losses.add(index, f64::from(loss.value().item()?) * count, count);
    }
    Ok(Judgement { samples: evaluator.count(), loss: losses.mean(), metrics: evaluator.compute(wanted)? })
}

/// A loader over evaluation data.
///
/// # Errors
/// A batch size of 0.
pub fn loader(data: &std::sync::Arc<model_center::data::Dataset>, batch_size: usize) -> Result<Loader> {
    Loader::new(std::sync::Arc::clone(data), LoaderOptions::evaluation(batch_size))
}
