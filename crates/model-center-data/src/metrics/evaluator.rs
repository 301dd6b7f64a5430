//! Collects predictions, merges them over ranks and computes metrics.

use std::sync::Arc;

use super::{
    Average, ClassCounts, EntityCounts, LabelKind, LabelSetCounts, Metric, OrderedSum, PairStatistics, Questions,
    SpanAnswers, SpanCandidate, ValuePairs,
};
use crate::{Error, Result};
use model_center_base::batch::{LabelSpace, Labels, Member};

const EARLIER: &str = "lower the learning rate, or evaluate an earlier checkpoint";

/// Collects the predictions of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub enum Evaluator {
    /// Counts of classes or choices.
    Classes(ClassCounts),
    /// Counts of classes whose samples belong to questions, with each sample's question.
    Questions(Questions, Arc<[Member]>),
    /// Pairs of numbers.
    Values(ValuePairs),
    /// Counts of tags of words, with their names.
    Tags(EntityCounts, Arc<[String]>),
    /// Answers as spans, with the question of each sample, and the number of samples.
    Spans(SpanAnswers, Arc<[Member]>, u64),
    /// Tokens: mean losses of batches, each with its number of tokens, and the number of samples.
    Tokens(OrderedSum, u64),
    /// Statistics of pairs of completions.
    Pairs(PairStatistics),
    /// Counts of any number of labels for each sample.
    LabelSets(LabelSetCounts),
}

impl Evaluator {
    /// Numbers of each sample for [`Evaluator::Spans`]: the score of no answer, the score of the best span, its first
    /// and its last token; the last two are -1 where there is no span.
    pub const SPAN_NUMBERS: usize = 4;

    /// An empty evaluator for labels of a kind. Of any number of labels the threshold is 0.5: see
    /// [`Evaluator::with_threshold`].
    pub fn new(labels: &LabelSpace) -> Evaluator {
        match (labels.classes(), labels) {
            (Some(classes), _) => Evaluator::Classes(ClassCounts::new(classes)),
            (None, labels) if labels.are_tokens() => Evaluator::Tokens(OrderedSum::default(), 0),
            (None, LabelSpace::Span) => Evaluator::Spans(SpanAnswers::default(), Arc::new([]), 0),
            (None, LabelSpace::Pairs) => Evaluator::Pairs(PairStatistics::default()),
            (None, LabelSpace::Unpaired) => Evaluator::Pairs(PairStatistics::unpaired()),
            (None, LabelSpace::LabelSets(names)) => {
                Evaluator::LabelSets(LabelSetCounts::new(names.len(), LabelSetCounts::THRESHOLD))
            }
            (None, LabelSpace::TokenClasses(names)) => Evaluator::Tags(EntityCounts::default(), names.clone().into()),
            (None, _) => Evaluator::Values(ValuePairs::default()),
        }
    }

    /// An empty evaluator for samples that are evaluated in groups; `members` is empty where each stands for itself.
    pub fn with_members(labels: &LabelSpace, members: Arc<[Member]>) -> Evaluator {
        match labels.classes() {
            Some(classes) if !members.is_empty() => Evaluator::Questions(Questions::new(classes), members),
            _ if *labels == LabelSpace::Span => Evaluator::Spans(SpanAnswers::default(), members, 0),
            _ => Evaluator::new(labels),
        }
    }

    /// The same, where nothing was added yet, with the probability above which a label is predicted; no effect where
    /// samples have one label.
    #[must_use]
    pub fn with_threshold(self, threshold: f32) -> Evaluator {
        match self {
            Evaluator::LabelSets(counts) => Evaluator::LabelSets(LabelSetCounts::new(counts.labels(), threshold)),
            other => other,
        }
    }

    /// Adds the mean loss of batch `index`, whose samples have the total weight `weight`. Token labels are evaluated by
    /// it; it has no effect on others.
    pub fn add_loss(&mut self, index: u64, loss: f32, samples: u64, weight: u64) -> Result<()> {
        let Evaluator::Tokens(losses, count) = self else { return Ok(()) };
        if !loss.is_finite() {
            let reason = format!("the loss is {loss}");
            return Err(Error::diverged(format!("evaluation, batch {index}"), reason, EARLIER));
        }
        losses.add(index, f64::from(loss) * weight as f64, weight as f64);
        *count += samples;
        Ok(())
    }

    /// Adds the outputs of a model's head for a batch.
    ///
    /// Shapes: `logits` B × classes for classes, B × choices for choices (one output per row, rows of a sample
    /// together), B for numbers; `samples` and `labels` B. For tags B × any number of predicted classes at least the
    /// labels'; for spans B × [`Evaluator::SPAN_NUMBERS`], for pairs B × [`PairStatistics::NUMBERS`]. For any number of
    /// labels both `logits` and `labels` B × labels.
    ///
    /// Errors: lengths that do not agree, labels of the other kind or out of range, logits that are not numbers.
    pub fn add(&mut self, samples: &[u32], logits: &[f32], labels: &Labels) -> Result<()> {
        let wrong = |reason: String| Err(Error::data("evaluation", reason, "pass the batch's own labels and outputs"));
        let per_sample = match self {
            Evaluator::Classes(counts) => counts.classes(),
            Evaluator::Questions(questions, _) => questions.counts().classes(),
            Evaluator::Values(_) => 1,
            // They are judged by their loss.
            Evaluator::Tokens(..) => return Ok(()),
            Evaluator::Pairs(pairs) => return add_pairs(pairs, samples, logits),
            Evaluator::LabelSets(counts) => return add_sets(counts, samples, (logits, labels)),
            Evaluator::Tags(counts, names) => return add_tags(counts, names, samples.len(), (logits, labels)),
            Evaluator::Spans(answers, members, count) => {
                *count += samples.len() as u64;
                return add_spans(answers, members, samples, logits);
            }
        };
        if labels.len() != samples.len() || logits.len() != samples.len() * per_sample {
            let (outputs, labels, samples) = (logits.len(), labels.len(), samples.len());
            return wrong(format!(
                "{outputs} outputs and {labels} labels for {samples} samples of {per_sample} outputs"
            ));
        }
        match (self, labels) {
            (Evaluator::Classes(counts), Labels::Classes(labels)) => {
                let decided = decisions(samples, logits, labels, per_sample)?;
                decided.into_iter().for_each(|(label, predicted)| counts.add(label, predicted));
            }
            (Evaluator::Questions(questions, members), Labels::Classes(labels)) => {
                let decided = decisions(samples, logits, labels, per_sample)?;
                for ((sample, outputs), decision) in samples.iter().zip(logits.chunks_exact(per_sample)).zip(decided) {
                    let Some(member) = members.get(*sample as usize) else {
                        return wrong(format!("sample {sample} of {}", members.len()));
                    };
                    questions.add(*sample, *member, decision, outputs);
                }
            }
            (Evaluator::Values(pairs), Labels::Values(labels)) => {
                if let Some((sample, value)) = samples.iter().zip(logits).find(|(_, value)| !value.is_finite()) {
                    return Err(no_numbers(*sample, &[*value]));
                }
                for ((sample, predicted), label) in samples.iter().zip(logits).zip(labels) {
                    pairs.add(u64::from(*sample), *predicted, *label);
                }
            }
            (Evaluator::Classes(_) | Evaluator::Questions(..), labels) => {
                return wrong(format!("{} as labels of classes", LabelKind::by(labels).name()));
            }
            (_, labels) => return wrong(format!("{} as labels of numbers", LabelKind::by(labels).name())),
        }
        Ok(())
    }

    /// Adds what another rank collected.
    pub fn merge(&mut self, other: &Evaluator) -> Result<()> {
        match (self, other) {
            (Evaluator::Classes(a), Evaluator::Classes(b)) if a.classes() == b.classes() => a.merge(b),
            (Evaluator::Values(a), Evaluator::Values(b)) => a.merge(b),
            (Evaluator::Questions(a, members), Evaluator::Questions(b, others)) if members == others => a.merge(b),
            (Evaluator::Tags(a, names), Evaluator::Tags(b, others)) if names == others => a.merge(b),
            (Evaluator::Spans(a, members, samples), Evaluator::Spans(b, others, more)) if members == others => {
                a.merge(b);
                *samples += more;
            }
            (Evaluator::Pairs(a), Evaluator::Pairs(b)) => a.merge(b),
            (Evaluator::LabelSets(a), Evaluator::LabelSets(b)) if a.labels() == b.labels() => a.merge(b),
            (Evaluator::Tokens(a, samples), Evaluator::Tokens(b, more)) => {
                a.merge(b);
                *samples += more;
            }
            _ => {
                let reason = "evaluators of different kinds";
                return Err(Error::data("evaluation", reason, "merge evaluators of one dataset"));
            }
        }
        Ok(())
    }

    /// Number of samples added.
    pub fn count(&self) -> u64 {
        match self {
            Evaluator::Classes(counts) => counts.count(),
            Evaluator::Questions(questions, _) => questions.counts().count(),
            Evaluator::Values(pairs) => pairs.len() as u64,
            Evaluator::Pairs(pairs) => pairs.len() as u64,
            Evaluator::LabelSets(counts) => counts.count(),
            Evaluator::Tags(counts, _) => counts.sequences(),
            Evaluator::Tokens(_, samples) | Evaluator::Spans(_, _, samples) => *samples,
        }
    }

    /// The figures asked for, in that order.
    ///
    /// Errors: nothing was added, or a metric that does not fit the labels.
    pub fn compute(&self, metrics: &[Metric]) -> Result<Vec<(Metric, f64)>> {
        if self.count() == 0 {
            return Err(Error::data("evaluation", "no sample was evaluated", "give a validation file with records"));
        }
        metrics.iter().map(|metric| Ok((*metric, self.value(*metric)?))).collect()
    }

    fn value(&self, metric: Metric) -> Result<f64> {
        let classes = match self {
            Evaluator::Classes(counts) => Some(counts.classes()),
            Evaluator::Questions(questions, _) => Some(questions.counts().classes()),
            _ => None,
        };
        metric.check_classes(classes)?;
        if let Metric::Own(own) = metric
            && let Some(value) = (own.value)(self)
        {
            return Ok(value);
        }
        let value = match self {
            Evaluator::Classes(counts) => of_classes(counts, metric),
            Evaluator::Questions(questions, _) => match metric {
                Metric::ExactMatch => Some(questions.exact_match()),
                Metric::TokenF1 => questions.token_f1(),
                _ => of_classes(questions.counts(), metric),
            },
            Evaluator::Values(pairs) => match metric {
                Metric::Pearson => Some(pairs.pearson()),
                Metric::Spearman => Some(pairs.spearman()),
                Metric::MeanSquaredError => Some(pairs.mean_squared_error()),
                _ => None,
            },
            Evaluator::Tags(counts, _) => {
                let [precision, recall, f1] = counts.overall();
                match metric {
                    Metric::EntityPrecision => Some(precision),
                    Metric::EntityRecall => Some(recall),
                    Metric::EntityF1 => Some(f1),
                    Metric::TagAccuracy => Some(counts.tag_accuracy()),
                    _ => None,
                }
            }
            // Their texts are rated by the evaluation, which has the passages.
            Evaluator::Spans(..) => None,
            Evaluator::LabelSets(counts) => counts.value(metric),
            Evaluator::Pairs(pairs) => pairs.value(metric).or(pairs.is_of(metric).then_some(f64::NAN)),
            Evaluator::Tokens(losses, _) => (metric == Metric::Perplexity).then(|| losses.mean().exp()),
        };
        value.ok_or_else(|| {
            let (kind, fitting) = match self {
                Evaluator::Classes(counts) => (format!("{} classes", counts.classes()), LabelKind::Classes.metrics()),
                Evaluator::Questions(..) => {
                    let both = [LabelKind::Questions.metrics(), LabelKind::Classes.metrics()];
                    ("classes of answers to questions".into(), both.concat())
                }
                Evaluator::Values(_) => ("numbers".into(), LabelKind::Values.metrics()),
                Evaluator::Tags(..) => ("tags of words".into(), LabelKind::Tags.metrics()),
                Evaluator::Spans(..) => ("spans".into(), LabelKind::Questions.metrics()),
                Evaluator::Tokens(..) => ("tokens".into(), LabelKind::Tokens.metrics()),
                Evaluator::Pairs(..) => (LabelKind::Pairs.name().into(), LabelKind::Pairs.metrics()),
                Evaluator::LabelSets(_) => (LabelKind::LabelSets.name().into(), LabelKind::LabelSets.metrics()),
            };
            let reason = format!("{:?} does not judge labels that are {kind}", metric.name());
            Error::argument("eval.metric", reason, format!("use {}", fitting.join(", ")))
        })
    }
}

/// Adds predicted classes of the words that have a label.
fn add_tags(
    counts: &mut EntityCounts,
    names: &[String],
    samples: usize,
    (predicted, labels): (&[f32], &Labels),
) -> Result<()> {
    let Labels::TokenClasses(labels) = labels else {
        let reason = format!("{} as labels of words", LabelKind::by(labels).name());
        return Err(Error::data("evaluation", reason, "pass the batch's own labels and outputs"));
    };
    let (length, width) = (labels.len() / samples.max(1), predicted.len() / samples.max(1));
    if length == 0 || width < length {
        let reason = format!("{width} predictions of {length} tokens");
        return Err(Error::data("evaluation", reason, "pass the batch's own labels and outputs"));
    }
    let name = |class: usize| names.get(class).map_or("O", String::as_str);
    for (labels, predicted) in labels.chunks_exact(length).zip(predicted.chunks_exact(width)) {
        let words = labels
            .iter()
            .zip(predicted)
            .filter_map(|(label, predicted)| Some((name(usize::try_from(*label).ok()?), name(*predicted as usize))));
        let (labels, predicted): (Vec<&str>, Vec<&str>) = words.unzip();
        counts.add(&labels, &predicted);
    }
    Ok(())
}

/// Adds the logits and labels of samples with any number of labels.
fn add_sets(counts: &mut LabelSetCounts, samples: &[u32], (logits, labels): (&[f32], &Labels)) -> Result<()> {
    let Labels::Values(labels) = labels else {
        let reason = format!("{} as any number of labels", LabelKind::by(labels).name());
        return Err(Error::data("evaluation", reason, "pass the batch's own labels and outputs"));
    };
    let width = counts.labels();
    if width == 0 || labels.len() != samples.len() * width || logits.len() != labels.len() {
        let (logits, labels, samples) = (logits.len(), labels.len(), samples.len());
        let reason = format!("{logits} outputs and {labels} labels for {samples} samples of {width} labels");
        return Err(Error::data("evaluation", reason, "pass the batch's own labels and outputs"));
    }
    for ((sample, logits), labels) in samples.iter().zip(logits.chunks(width)).zip(labels.chunks(width)) {
        if logits.iter().any(|logit| !logit.is_finite()) {
            return Err(no_numbers(*sample, logits));
        }
        counts.add(logits, labels);
    }
    Ok(())
}

/// Adds rewards and log-probabilities of pairs.
fn add_pairs(pairs: &mut PairStatistics, samples: &[u32], numbers: &[f32]) -> Result<()> {
    let (numbers, rest) = numbers.as_chunks::<{ PairStatistics::NUMBERS }>();
    if numbers.len() != samples.len() || !rest.is_empty() {
        let reason = format!("numbers of {} pairs for {} samples", numbers.len(), samples.len());
        return Err(Error::data("evaluation", reason, "pass the batch's own labels and outputs"));
    }
    for (sample, numbers) in samples.iter().zip(numbers) {
        if numbers.iter().any(|number| !number.is_finite()) {
            return Err(no_numbers(*sample, numbers));
        }
        pairs.add(u64::from(*sample), *numbers);
    }
    Ok(())
}

/// Adds the best spans of windows.
fn add_spans(answers: &mut SpanAnswers, members: &[Member], samples: &[u32], numbers: &[f32]) -> Result<()> {
    let numbers = numbers.chunks_exact(Evaluator::SPAN_NUMBERS);
    if numbers.len() != samples.len() {
        let reason = format!("numbers of {} windows for {} samples", numbers.len(), samples.len());
        return Err(Error::data("evaluation", reason, "pass the batch's own labels and outputs"));
    }
    for (sample, numbers) in samples.iter().zip(numbers) {
        let (Some(member), &[none, score, start, end]) = (members.get(*sample as usize), numbers) else {
            let reason = format!("sample {sample} of {}", members.len());
            return Err(Error::data("evaluation", reason, "pass the batch's own samples"));
        };
        if !none.is_finite() || !score.is_finite() {
            return Err(no_numbers(*sample, &[none, score]));
        }
        let span = (start >= 0.0).then_some(SpanCandidate { score, start: start as usize, end: end as usize });
        answers.add(member.question, *sample, none, span);
    }
    Ok(())
}

fn no_numbers(sample: u32, outputs: &[f32]) -> Error {
    let reason = format!("the model's outputs are not numbers: {outputs:?}");
    Error::diverged(format!("evaluation, sample {sample}"), reason, EARLIER)
}

/// Label and prediction of each sample.
fn decisions(samples: &[u32], logits: &[f32], labels: &[i64], classes: usize) -> Result<Vec<(usize, usize)>> {
    let rows = labels.iter().zip(logits.chunks_exact(classes)).zip(samples);
    let decide = |((label, logits), sample): ((&i64, &[f32]), &u32)| {
        let Some(label) = usize::try_from(*label).ok().filter(|label| *label < classes) else {
            let reason = format!("label {label} of sample {sample} with {classes} classes");
            return Err(Error::data("evaluation", reason, "pass the batch's own labels and outputs"));
        };
        let predicted = argmax(logits).ok_or_else(|| no_numbers(*sample, logits))?;
        Ok((label, predicted))
    };
    rows.map(decide).collect()
}

fn of_classes(counts: &ClassCounts, metric: Metric) -> Option<f64> {
    match metric {
        Metric::Accuracy => Some(counts.accuracy()),
        Metric::Precision => counts.precision(Average::Class(1)),
        Metric::Recall => counts.recall(Average::Class(1)),
        Metric::F1 => counts.f1(Average::Class(1)),
        Metric::PrecisionMacro => counts.precision(Average::Macro),
        Metric::RecallMacro => counts.recall(Average::Macro),
        Metric::F1Macro => counts.f1(Average::Macro),
        Metric::PrecisionMicro => counts.precision(Average::Micro),
        Metric::RecallMicro => counts.recall(Average::Micro),
        Metric::F1Micro => counts.f1(Average::Micro),
        Metric::PrecisionWeighted => counts.precision(Average::Weighted),
        Metric::RecallWeighted => counts.recall(Average::Weighted),
        Metric::F1Weighted => counts.f1(Average::Weighted),
        Metric::Matthews => Some(counts.matthews()),
        _ => None,
    }
}

/// The index of the largest number, the first of equal ones; `None` if there is none or one is not a number.
pub fn argmax(values: &[f32]) -> Option<usize> {
    let mut best = 0;
    for (index, value) in values.iter().enumerate() {
        if value.is_nan() {
            return None;
        }
        if *value > values[best] {
            best = index;
        }
    }
    (!values.is_empty()).then_some(best)
}
