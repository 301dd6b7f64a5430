//! Judging a model: every sample once, metrics and mean loss.

use super::waiting::Progress;
use super::written::Written;
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::ControlGroup;
use bmtrain_dist::param::widen;
use model_center::data::{Batch, Labels, Loader, LoaderOptions, Position};
use model_center::metrics::{Evaluator, Metric, OrderedSum};
use model_center::model::TextModel;
use model_center::recipe::EvalMetric;
use model_center::{Error, Result};

/// What an evaluation found.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// Samples.
    pub samples: u64,
    /// Mean loss over the samples; over their words where those are predicted.
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

/// What is judged, and how.
pub struct Judge<'a> {
    /// The model.
    pub model: &'a dyn TextModel,
    /// What is reported.
    pub wanted: &'a [Metric],
    /// How answers are written, where some metric judges these.
    pub written: Option<&'a Written>,
    /// Where.
    pub device: &'a Device,
    /// The ranks that share the work.
    pub team: &'a ControlGroup,
    /// Whether somebody asks for an end.
    pub is_stopped: &'a dyn Fn() -> bool,
}

impl Judge<'_> {
    /// Judge the data of `loader`. The ranks of the team take its batches in turn, and all come to the same judgement,
    /// or to `None` because somebody asks for an end on one of them.
    ///
    /// # Errors
    /// Labels that do not fit the model, a failing device.
    pub fn evaluate(&self, loader: &mut Loader) -> Result<Option<Judgement>> {
        let Some((evaluator, loss)) = self.score_all(loader)? else { return Ok(None) };
        let mut by_texts = None;
        if let Some(written) = self.written.filter(|_| self.wanted.iter().any(|metric| Written::judges(*metric))) {
            let at = (self.device, self.team);
            let scores = written.judge(self.model, loader.dataset(), loader.batch_size(), at, self.is_stopped)?;
            let Some(scores) = scores else { return Ok(None) };
            by_texts = Some(scores);
        }
        let value = |metric: Metric| match by_texts.as_ref().and_then(|scores| Written::value(scores, metric)) {
            Some(value) => Ok((metric, value)),
            None => Ok(evaluator.compute(&[metric])?[0]),
        };
        let metrics = self.wanted.iter().map(|metric| value(*metric)).collect::<Result<_>>()?;
        Ok(Some(Judgement { samples: evaluator.count(), loss, metrics }))
    }

    /// Losses and outputs of all samples, and the mean loss.
    fn score_all(&self, loader: &mut Loader) -> Result<Option<(Evaluator, f64)>> {
        let Judge { model, device, team, is_stopped, .. } = *self;
        let mut evaluator = Evaluator::of(loader.dataset());
        let mut losses = OrderedSum::default();
        let (ranks, batches, outputs) =
            (team.size() as u64, loader.batches_per_epoch(), loader.dataset().labels().outputs());
        let mut progress = Progress::new("evaluation");
        for first in (0..batches).step_by(team.size()) {
            if team.is_first() {
                progress.report(first, batches);
            }
            let round: Vec<Batch> = (first..(first + ranks).min(batches))
                .map(|index| loader.batch(Position { epoch: 0, index }))
                .collect::<Result<_>>()?;
            let longest = round.iter().map(|batch| 1 + batch.rows * outputs).max().unwrap_or(1);
            // A rank for which there is no batch left looks at another one's: where parameters are gathered, a forward
            // pass is a matter of all ranks. Its numbers are not asked for.
            let Some(mine) = round.get(team.rank()).or(round.last()) else { break };
            // Loss, then logits.
            let mut numbers = score(model, mine, device)?;
            numbers.resize(longest, 0.0);
            numbers.push(f32::from(u8::from(is_stopped())));
            let all = team.gather(&numbers)?;
            if all.iter().any(|numbers| numbers.last() == Some(&1.0)) {
                return Ok(None);
            }
            for (batch, numbers) in round.iter().zip(all) {
                let (loss, logits) = numbers.split_first().unwrap_or((&f32::NAN, &[]));
                let logits = logits.get(..batch.rows * outputs).unwrap_or(logits);
                if let Some(labels) = &batch.labels {
                    evaluator.add(&batch.samples, logits, labels)?;
                }
                let (samples, weight) = (batch.samples.len() as u64, loader.dataset().weight_of(&batch.samples));
                evaluator.add_loss(batch.position.index, *loss, samples, weight)?;
                losses.add(batch.position.index, f64::from(*loss) * weight as f64, weight as f64);
            }
        }
        Ok(Some((evaluator, losses.mean())))
    }
}

/// Loss of a batch and, where it is not words that are predicted, logits.
fn score(model: &dyn TextModel, batch: &Batch, device: &Device) -> Result<Vec<f32>> {
    let mut cx = Ctx::inference(device);
    let no_head =
        || Error::model("evaluation", "the model has no head for labels", "open it with the head of the task");
    if batch.labels.as_ref().is_some_and(Labels::are_tokens) {
        let loss = model.loss(batch, &mut cx)?.ok_or_else(no_head)?;
        return Ok(vec![loss.value().item()?]);
    }
    let scores = model.forward(batch, None, &mut cx)?;
    let (Some(logits), Some(loss)) = (scores.logits, scores.loss) else { return Err(no_head()) };
    let mut numbers = vec![loss.value().item()?];
    numbers.extend(widen(logits.value())?);
    Ok(numbers)
}

/// A loader over evaluation data.
///
/// # Errors
/// A batch size of 0.
pub fn loader(data: &std::sync::Arc<model_center::data::Dataset>, batch_size: usize) -> Result<Loader> {
    Loader::new(std::sync::Arc::clone(data), LoaderOptions::evaluation(batch_size))
}
