//! Evaluation of a model in training: every sample once, metrics and mean loss.

use super::batches::Batches;
use super::generated_answers::GeneratedAnswers;
use super::objective::{Objective, Pass};
use super::run_data::EvalSet;
use super::run_ranks::RunRanks;
use super::setup::Setup;
use crate::{Error, Result};
use bmtrain_core::{Ctx, Device};
use bmtrain_dist::param::widen;
use bmtrain_dist::pipeline::Pipeline;
use model_center_base::batch::{Batch, LabelSpace, Labels};
use model_center_data::metrics::{Evaluator, Metric, OrderedSum, PairStatistics, argmax};
use model_center_data::{Dataset, SpanWindow, SpanWindows};
use model_center_models::{ForwardOutputs, ModelOutput, TextModel};
use model_center_recipe::{EvalMetric, Resolved};

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalResult {
    /// Samples that were evaluated.
    pub samples: u64,
    /// Mean loss over the samples; over their tokens where those are predicted.
    pub loss: f64,
    /// The task's metrics.
    pub metrics: Vec<(Metric, f64)>,
    /// The loss of each set of token files; none of records.
    pub sets: Vec<(String, f64)>,
}

/// The bound on the loss in a bounded perplexity.
const LARGEST_EXPONENT: f64 = 20.0;

impl EvalResult {
    /// The value of one metric; NaN for one that was not computed.
    pub fn value(&self, metric: EvalMetric) -> f64 {
        match metric {
            EvalMetric::Loss => self.loss,
            EvalMetric::Metric(wanted) => {
                self.metrics.iter().find(|(metric, _)| *metric == wanted).map_or(f64::NAN, |(_, value)| *value)
            }
        }
    }

    /// Names and values, the loss last. Of token files also the perplexity that early Megatron-LM reports, which is
    /// bounded, and the loss of each of several sets.
    pub fn named(&self) -> Vec<(String, f64)> {
        let metrics = self.metrics.iter().map(|(metric, value)| (metric.name().to_owned(), *value));
        let bounded = (!self.sets.is_empty()).then(|| self.loss.min(LARGEST_EXPONENT).exp());
        let bounded = bounded.map(|value| ("perplexity_bounded".to_owned(), value));
        let several = if self.sets.len() > 1 { self.sets.as_slice() } else { &[] };
        let sets = several.iter().map(|(name, loss)| (format!("loss {name}"), *loss));
        metrics.chain(bounded).chain(sets).chain([("loss".to_owned(), self.loss)]).collect()
    }

    /// Names and values on one line.
    pub fn line(&self) -> String {
        line(&self.named())
    }
}

/// Names and values on one line.
pub(super) fn line(results: &[(String, f64)]) -> String {
    results.iter().map(|(name, value)| format!("{name} {value:.4}")).collect::<Vec<_>>().join(", ")
}

/// The evaluation of a run: its data, its metrics, and how answers are generated where a metric compares texts.
#[derive(Debug)]
pub struct Evaluation {
    sets: Vec<(String, Batches)>,
    metrics: Vec<Metric>,
    answers: Option<GeneratedAnswers>,
    /// Probability above which a label is predicted, where samples have any number of them.
    threshold: f32,
}

/// Model and data of an evaluation, and its ranks.
#[derive(Clone, Copy)]
pub struct EvalContext<'a> {
    pub(crate) model: &'a dyn TextModel,
    pub(crate) device: &'a Device,
    /// Where the model is on several pipeline stages.
    pub(crate) pipeline: Option<&'a Pipeline>,
    /// The ranks; the data-parallel ones share the batches.
    pub(crate) ranks: &'a RunRanks,
    /// What the model is trained for.
    pub(crate) objective: &'a dyn Objective,
    /// Whether this rank is asked to stop.
    pub(crate) is_stopped: &'a dyn Fn() -> bool,
}

impl Evaluation {
    /// The evaluation that a recipe asks for; `None` without evaluation data.
    pub(crate) fn new(setup: &Setup, resolved: &Resolved) -> Result<Option<Self>> {
        Self::of(&setup.eval, setup, resolved)
    }

    /// The evaluation of these sets; `None` without any.
    pub(super) fn of(sets: &[EvalSet], setup: &Setup, resolved: &Resolved) -> Result<Option<Self>> {
        if sets.is_empty() {
            return Ok(None);
        }
        let open = |set: &EvalSet| Ok((set.name.clone(), Batches::evaluation(&set.data, resolved.eval.batch_size)?));
        let sets = sets.iter().map(open).collect::<Result<_>>()?;
        let (metrics, threshold) = (metrics(setup, resolved), resolved.eval.threshold);
        Ok(Some(Evaluation { sets, metrics, answers: setup.answers.clone(), threshold }))
    }

    /// Evaluate every sample of every set once. The data-parallel ranks take batches in turn, and all return the same
    /// result, or `None` because one of them is asked to stop.
    pub(crate) fn run(&mut self, context: EvalContext<'_>) -> Result<Option<EvalResult>> {
        let _evaluation = tracing::debug_span!("evaluation").entered();
        context.objective.evaluate(self, context)
    }

    /// The batches of the first set.
    pub(super) fn first_set(&mut self) -> Option<&mut Batches> {
        self.sets.first_mut().map(|(_, batches)| batches)
    }

    /// The loss and the metrics of what the objective computes of each batch.
    ///
    /// # Errors
    /// As [`Objective::evaluated`]; outputs that are not numbers.
    pub fn by_batch(&mut self, context: EvalContext<'_>) -> Result<Option<EvalResult>> {
        let Evaluation { sets, metrics, answers, threshold } = self;
        let (mut all, mut losses) = (None::<Evaluator>, OrderedSum::default());
        let (mut first, mut by_set) = (0, Vec::new());
        for (name, batches) in sets.iter_mut() {
            let Some((evaluator, of_set)) = forward_all(batches, context, (first, *threshold))? else {
                return Ok(None);
            };
            first += batches.per_epoch();
            by_set.push((name.clone(), of_set.mean()));
            losses.merge(&of_set);
            match &mut all {
                Some(all) => all.merge(&evaluator)?,
                None => all = Some(evaluator),
            }
        }
        let (Some(evaluator), Some((_, batches))) = (all, sets.first()) else { return Ok(None) };
        let mut by_text = None;
        if let (Some(answers), Some(records)) = (answers, batches.records())
            && metrics.iter().any(|metric| GeneratedAnswers::rates(*metric))
        {
            let Some(scores) = answers.rate(records, batches.batch_size(), context)? else { return Ok(None) };
            by_text = Some(scores);
        }
        if let (Evaluator::Spans(answers, ..), Some(records)) = (&evaluator, batches.records())
            && let Some(windows) = records.spans()
        {
            by_text = Some(windows.rate(answers, records));
        }
        let value = |metric: Metric| match by_text.as_ref().and_then(|scores| scores.value(metric)) {
            Some(value) => Ok((metric, value)),
            None => Ok(evaluator.compute(&[metric])?[0]),
        };
        let metrics = metrics.iter().map(|metric| value(*metric)).collect::<Result<_>>()?;
        let sets = if batches.records().is_none() { by_set } else { Vec::new() };
        Ok(Some(EvalResult { samples: evaluator.count(), loss: losses.mean(), metrics, sets }))
    }
}

/// Losses and outputs of all samples of a set, and its losses; its batches are numbered from `begin` on. `None` where a
/// rank is asked to stop.
fn forward_all(
    loader: &mut Batches,
    context: EvalContext<'_>,
    (begin, threshold): (u64, f32),
) -> Result<Option<(Evaluator, OrderedSum)>> {
    let evaluator = match loader.records() {
        Some(records) => records.evaluator(),
        None => Evaluator::new(loader.labels()),
    };
    let mut evaluator = evaluator.with_threshold(threshold);
    let mut losses = OrderedSum::default();
    let records = loader.records().cloned();
    let outputs = records.as_deref().map_or_else(|| loader.labels().outputs(), numbers_by_row);
    let len = |batch: &Batch| numbers_in(batch, outputs);
    let compute = |batches: &[Batch]| match own_numbers(context, batches, outputs)? {
        Some(own) => Ok(own),
        None => losses_and_outputs(context, records.as_deref(), batches),
    };
    let take = |loader: &Batches, batch: &Batch, numbers: &[f32]| {
        let (loss, logits) = numbers.split_first().unwrap_or((&f32::NAN, &[]));
        if let Some(labels) = &batch.labels {
            evaluator.add(&batch.samples, logits, labels)?;
        }
        let (samples, weight) = (batch.samples.len() as u64, loader.weight_of(batch));
        // A batch without targets has no mean loss.
        if weight > 0 {
            evaluator.add_loss(begin + batch.position.index, *loss, samples, weight)?;
            losses.add(begin + batch.position.index, f64::from(*loss) * weight as f64, weight as f64);
        }
        Ok(())
    };
    let is_complete = context.each_batch(("evaluation", loader), len, compute, take)?;
    Ok(is_complete.then_some((evaluator, losses)))
}

/// Numbers of each row besides the loss of its batch: logits, of classes of tokens the predicted class of each token,
/// of spans the best one, of pairs rewards and log-probabilities.
fn numbers_by_row(dataset: &Dataset) -> usize {
    match dataset.labels() {
        LabelSpace::TokenClasses(_) => dataset.max_length(),
        LabelSpace::Span => Evaluator::SPAN_NUMBERS,
        LabelSpace::Pairs | LabelSpace::Unpaired => PairStatistics::NUMBERS / 2,
        labels => labels.outputs(),
    }
}

/// Numbers of a batch: its loss, and `outputs` for each row.
fn numbers_in(batch: &Batch, outputs: usize) -> usize {
    1 + batch.rows * outputs
}

/// The objective's own numbers of each batch, if it has some: [`numbers_in`] it.
///
/// # Errors
/// As [`Objective::evaluated`]; another number of numbers.
fn own_numbers(context: EvalContext<'_>, batches: &[Batch], outputs: usize) -> Result<Option<Vec<Vec<f32>>>> {
    let EvalContext { model, device, objective, .. } = context;
    let of_batch = |batch: &Batch| {
        let own = objective.evaluated(&Pass::evaluation(model, batch), device)?;
        let needed = numbers_in(batch, outputs);
        let Some(wrong) = own.as_ref().map(Vec::len).filter(|len| *len != needed) else { return Ok(own) };
        let reason = format!(
            "Objective::evaluated gave {wrong} numbers of a batch of {} rows, and {needed} are needed: the loss, and \
             {outputs} for each row",
            batch.rows
        );
        let name = format!("{objective:?}");
        let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        Err(Error::argument(format!("objective {name}"), reason, "give as many, in the order of the samples"))
    };
    Ok(batches.iter().map(of_batch).collect::<Result<Vec<_>>>()?.into_iter().collect())
}

/// Loss of each batch and, unless tokens of the vocabulary are predicted, the numbers of its rows.
fn losses_and_outputs(context: EvalContext<'_>, dataset: Option<&Dataset>, batches: &[Batch]) -> Result<Vec<Vec<f32>>> {
    let EvalContext { model, device, pipeline, .. } = context;
    let Some(pipeline) = pipeline else {
        return batches.iter().map(|batch| loss_and_outputs(model, dataset, batch, device)).collect();
    };
    let wants = if has_token_labels(batches) { ForwardOutputs::Loss } else { ForwardOutputs::All };
    let outputs = model.forward_stages(pipeline, batches, wants)?;
    let wanted = if wants == ForwardOutputs::All { dataset } else { None };
    outputs.into_iter().zip(batches).map(|(output, batch)| numbers_of(output, batch, wanted)).collect()
}

fn loss_and_outputs(
    model: &dyn TextModel,
    dataset: Option<&Dataset>,
    batch: &Batch,
    device: &Device,
) -> Result<Vec<f32>> {
    let mut cx = Ctx::inference(device);
    if has_token_labels(std::slice::from_ref(batch)) {
        let loss = model.loss(batch, &mut cx)?;
        return numbers_of(ModelOutput { logits: None, extra: Vec::new(), loss }, batch, None);
    }
    numbers_of(model.forward(batch, None, &mut cx)?, batch, dataset)
}

fn has_token_labels(batches: &[Batch]) -> bool {
    batches.iter().any(|batch| batch.labels.as_ref().is_some_and(Labels::are_tokens))
}

/// The loss and, of a dataset, the numbers of each row.
fn numbers_of(output: ModelOutput, batch: &Batch, dataset: Option<&Dataset>) -> Result<Vec<f32>> {
    let no_head =
        || Error::model("evaluation", "the model has no head for labels", "open it with the head of the task");
    let mut numbers = vec![output.loss.as_ref().ok_or_else(no_head)?.value().item()?];
    let Some(dataset) = dataset else { return Ok(numbers) };
    if let Some(windows) = dataset.spans() {
        let [starts, ends] = output.span_logits().ok_or_else(no_head)?;
        let (starts, ends) = (widen(starts.value())?, widen(ends.value())?);
        let rows = starts.chunks(batch.length).zip(ends.chunks(batch.length)).zip(&batch.samples);
        numbers.extend(rows.flat_map(|((starts, ends), sample)| best_span(windows, (starts, ends), *sample)));
        return Ok(numbers);
    }
    let logits = widen(output.logits.ok_or_else(no_head)?.value())?;
    match dataset.labels() {
        LabelSpace::TokenClasses(names) => {
            let classes = names.len().max(1);
            for (row, sample) in logits.chunks(classes * batch.length).zip(&batch.samples) {
                for logits in row.chunks(classes) {
                    let class = argmax(logits).ok_or_else(|| not_numbers(*sample))?;
                    numbers.push(class as f32);
                }
                numbers.resize(numbers.len() + dataset.max_length().saturating_sub(batch.length), 0.0);
            }
        }
        _ => numbers.extend(logits),
    }
    Ok(numbers)
}

fn not_numbers(sample: u32) -> Error {
    let reason = "the model's outputs are not numbers";
    let fix = "lower the learning rate, or evaluate an earlier checkpoint";
    Error::diverged(format!("evaluation, sample {sample}"), reason, fix)
}

/// A window's score of no answer, and score, first and last token of its best span.
fn best_span(windows: &SpanWindows, (starts, ends): (&[f32], &[f32]), sample: u32) -> [f32; Evaluator::SPAN_NUMBERS] {
    let none = starts.first().zip(ends.first()).map_or(f32::NAN, |(start, end)| start + end);
    let positions = windows.windows.get(sample as usize).map(SpanWindow::positions).unwrap_or_default();
    match windows.search.best(starts, ends, positions) {
        Some(best) => [none, best.score, best.start as f32, best.end as f32],
        None => [none, 0.0, -1.0, -1.0],
    }
}

/// The metrics of an evaluation: the task's or the labels' default ones, and those that the recipe names.
fn metrics(setup: &Setup, resolved: &Resolved) -> Vec<Metric> {
    let mut metrics =
        resolved.data.source.task().metrics().unwrap_or_else(|| Metric::defaults(setup.train.labels())).to_vec();
    for wanted in std::iter::once(resolved.eval.metric).chain(resolved.train.early_stop.map(|early| early.metric)) {
        if let EvalMetric::Metric(metric) = wanted
            && !metrics.contains(&metric)
        {
            metrics.push(metric);
        }
    }
    metrics
}
