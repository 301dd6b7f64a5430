//! Loss targets, and range checks of ids and labels, with errors that name the value.

use super::checks::{check_count, refuse_given};
use super::loss_settings::LossSettings;
use crate::model::transformer::prefix;
use bmtrain_core::{Device, Segment, Tensor};
pub use model_center_base::batch::IGNORED;
use model_center_base::batch::{Batch, Labels, VerbalizerBatch};
use model_center_base::error::{Error, Result};
use model_center_formats::config::ProblemType;

/// Targets of the loss.
#[derive(Debug, Clone)]
pub enum Targets {
    /// Class indices i64: `[B]` for sequence and sentence-pair classes, `[B, L]` for tokens, -100 is ignored.
    Classes(Tensor),
    /// f32 `[B, outputs]`, for regression.
    Values(Tensor),
    /// f32 `[B, outputs]`, from 0 to 1: the probability of each label, where a sample has any number of them.
    Sets(Tensor),
}

impl Targets {
    /// Copies the labels of samples to a device, for a model of this problem type.
    ///
    /// # Errors
    /// Values that do not divide evenly among the samples, out of memory.
    pub(in crate::model) fn upload(
        device: &Device,
        labels: &Labels,
        samples: usize,
        problem: Option<ProblemType>,
    ) -> Result<Self> {
        Ok(match labels {
            Labels::Values(values) => {
                let shape = [samples, values.len() / samples.max(1)];
                let values = Tensor::from_slice_in(device, shape, values, Segment::Data)?;
                match problem {
                    Some(ProblemType::MultiLabel) => Targets::Sets(values),
                    _ => Targets::Values(values),
                }
            }
            Labels::Classes(labels)
            | Labels::NextTokens(labels)
            | Labels::TokenClasses(labels)
            | Labels::Target(labels)
            | Labels::Predicted(labels) => {
                Targets::Classes(Tensor::from_slice_in(device, [samples], labels, Segment::Data)?)
            }
            Labels::Spans(_) => return Err(wrong_labels(labels, Wanted::Classes(0))),
        })
    }
}

/// The kind of labels that a model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) enum Wanted {
    /// A class index below this for each sample.
    Classes(usize),
    /// A token id for each token.
    Tokens,
    /// A class index below this for each token.
    TokenClasses(usize),
    /// The positions of the first and the last token of each sequence's answer.
    Spans,
    /// This number of values per sample.
    Values(usize),
    /// Any number of this number of labels per sample (multi-label), as a value from 0 to 1 for each.
    Sets(usize),
    /// There is no head.
    Nothing,
}

impl Wanted {
    /// Targets of a classifier by its `problem_type`; without one, by the rule of transformers that a single output
    /// means regression.
    pub(in crate::model) fn of_classifier(outputs: usize, choices: usize, problem: Option<ProblemType>) -> Self {
        match problem {
            _ if choices > 1 => Wanted::Classes(choices),
            Some(ProblemType::Regression) => Wanted::Values(outputs),
            None if outputs == 1 => Wanted::Values(outputs),
            Some(ProblemType::SingleLabel) | None => Wanted::Classes(outputs),
            Some(ProblemType::MultiLabel) => Wanted::Sets(outputs),
        }
    }

    /// Whether a batch has labels of this kind, complete and in range for this vocabulary size.
    ///
    /// # Errors
    /// [`Error::Data`] naming the label.
    pub(in crate::model) fn check(self, batch: &Batch, vocab_size: usize) -> Result<()> {
        let samples = batch.rows / batch.choices.max(1);
        let Some(labels) = &batch.labels else { return Ok(()) };
        match (self, labels.ids(), labels) {
            (Wanted::Nothing, ..) => Ok(()),
            (Wanted::TokenClasses(classes), Some(ids), _) => Numbers::grid("labels", ids, batch, classes).check(true),
            (Wanted::Spans, _, Labels::Spans(spans)) => {
                Numbers::flat("labels", spans.as_flattened(), 2 * samples, batch.length).check(true)
            }
            (Wanted::Tokens, Some(ids), _) => Numbers::grid("labels", ids, batch, vocab_size).check(true),
            (Wanted::Classes(classes), Some(ids), _) => Numbers::flat("labels", ids, samples, classes).check(true),
            (Wanted::Values(outputs), _, Labels::Values(values)) => check_values(values, samples, outputs),
            (Wanted::Sets(outputs), _, Labels::Values(values)) => {
                check_values(values, samples, outputs)?;
                match values.iter().position(|value| !(0.0..=1.0).contains(value)) {
                    Some(at) => {
                        let fix = "write 1 for each label of a sample, else 0";
                        Err(Error::data(format!("labels[{at}]"), format!("{} is not from 0 to 1", values[at]), fix))
                    }
                    None => Ok(()),
                }
            }
            (wanted, ..) => Err(wrong_labels(labels, wanted)),
        }
    }
}

pub(in crate::model) fn wrong_labels(labels: &Labels, wanted: Wanted) -> Error {
    let got = match labels {
        Labels::Values(_) => "numbers to predict",
        Labels::Spans(_) => "spans of tokens",
        _ => "class numbers",
    };
    let (reason, fix) = match wanted {
        Wanted::Values(_) => (
            format!("the labels are {got}, and this model predicts numbers (problem_type regression)"),
            "write them as f32 [B], or [B, outputs] for several outputs",
        ),
        Wanted::Spans => (
            format!("the labels are {got}, and this model predicts the first and the last token of an answer"),
            "give start_positions and end_positions",
        ),
        Wanted::Sets(_) => (
            format!(
                "the labels are {got}, and a sample of this model has any number of labels (problem_type \
                 multi_label_classification)"
            ),
            "write f32 [B, outputs], 1 for each label of a sample, else 0",
        ),
        _ => (format!("the labels are {got}, and this model tells classes apart"), "write them as i64"),
    };
    Error::data("labels", reason, fix)
}

fn check_values(values: &[f32], samples: usize, outputs: usize) -> Result<()> {
    if values.len() != samples * outputs {
        let reason = format!("labels has {} values, and {} are needed", values.len(), samples * outputs);
        return Err(Error::data("labels", reason, "give one value for each output of each sample"));
    }
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(Error::data(format!("labels[{at}]"), format!("{} is not finite", values[at]), "correct it")),
        None => Ok(()),
    }
}

/// The class weights of a loss, `[C]`; `classes` is the number of classes of the head, `None` for a head that is not a
/// classifier.
///
/// # Errors
/// [`Error::Data`] for weights that are not above 0, or not one for each class; out of memory.
pub(in crate::model) fn upload_class_weights(
    device: &Device,
    settings: LossSettings<'_>,
    classes: Option<usize>,
) -> Result<Option<Tensor>> {
    let Some(weights) = settings.class_weights else { return Ok(None) };
    refuse_given([("class_weights", classes.is_none())], "they are for a classifier, and this model has none")?;
    if classes != Some(weights.len()) || !weights.iter().all(|weight| weight.is_finite() && *weight > 0.0) {
        let reason = format!("{} weights for {} classes", weights.len(), classes.unwrap_or(0));
        return Err(Error::data("class_weights", reason, "give one number above 0 for each class"));
    }
    Ok(Some(Tensor::from_slice_in(device, [weights.len()], weights, Segment::Data)?))
}

/// Verbalizer token ids and positions on a device, i64 `[K]` and `[B]`.
#[derive(Debug, Clone)]
pub struct VerbalizerTensors {
    /// The label words.
    pub label_words: Tensor,
    /// The positions in the batch, among all tokens.
    pub positions: Tensor,
}

impl VerbalizerTensors {
    /// Copies them to a device.
    ///
    /// # Errors
    /// Out of memory.
    pub(in crate::model) fn upload(device: &Device, verbalizer: &VerbalizerBatch) -> Result<Self> {
        let upload = |values: &[i64]| Tensor::from_slice_in(device, [values.len()], values, Segment::Data);
        Ok(VerbalizerTensors {
            label_words: upload(&verbalizer.label_words)?,
            positions: upload(&verbalizer.positions)?,
        })
    }
}

/// One tensor of integers from the caller, with its valid range.
pub(in crate::model) struct Numbers<'a> {
    name: &'static str,
    values: &'a [i64],
    /// The expected number of values.
    count: usize,
    /// Columns of a matrix; `None` for a vector.
    columns: Option<usize>,
    /// Values are below this.
    entries: usize,
}

impl<'a> Numbers<'a> {
    /// One for each token of a batch.
    pub(in crate::model) fn grid(name: &'static str, values: &'a [i64], batch: &Batch, entries: usize) -> Self {
        Numbers::table(name, values, [batch.rows, batch.length], entries)
    }

    /// One for each token of sequences of this shape.
    pub(in crate::model) fn table(name: &'static str, values: &'a [i64], shape: [usize; 2], entries: usize) -> Self {
        Numbers { name, values, count: shape[0].saturating_mul(shape[1]), columns: Some(shape[1]), entries }
    }

    /// One for each of `count` samples.
    pub(in crate::model) fn flat(name: &'static str, values: &'a [i64], count: usize, entries: usize) -> Self {
        Numbers { name, values, count, columns: None, entries }
    }

    /// Whether all values are present and in range or, if `may_be_ignored`, -100.
    pub(in crate::model) fn check(&self, may_be_ignored: bool) -> Result<()> {
        let Numbers { name, values, count, columns, entries } = *self;
        if values.len() != count {
            let reason = format!("{name} has {} values, and {count} are needed", values.len());
            let fix =
                if columns.is_some() { "give one value for each token" } else { "give one value for each sample" };
            return Err(Error::data(name, reason, fix));
        }
        let is_wrong = |value: i64| {
            !(may_be_ignored && value == IGNORED) && usize::try_from(value).map_or(true, |value| value >= entries)
        };
        let Some(at) = values.iter().position(|&value| is_wrong(value)) else { return Ok(()) };
        let place = match columns {
            Some(columns) => format!("{name}[{}, {}]", at / columns, at % columns),
            None => format!("{name}[{at}]"),
        };
        let reason = format!("{} is out of range: this model takes 0 to {}", values[at], entries.saturating_sub(1));
        let fix = match may_be_ignored {
            true => "correct it, or write -100 where nothing counts",
            false => "use the tokenizer files that belong to this model",
        };
        Err(Error::data(place, reason, fix))
    }
}

/// A mask on a device, with ones for `prefix` virtual tokens before each row; `None` when nothing is padded.
///
/// # Errors
/// A length other than the number of ids, or values other than 0 and 1.
pub(in crate::model) fn upload_mask(
    device: &Device,
    name: &str,
    [rows, length, prefix]: [usize; 3],
    mask: Option<&[u8]>,
) -> Result<Option<Tensor>> {
    let Some(mask) = mask else { return Ok(None) };
    check_count(name, mask.len(), rows * length)?;
    if mask.iter().any(|&value| value > 1) {
        let reason = format!("{name} has values other than 0 and 1");
        return Err(Error::data("batch", reason, "use 1 for tokens and 0 for padding"));
    }
    if !mask.contains(&0) {
        return Ok(None);
    }
    let mask = prefix::masked(mask, length, prefix);
    Ok(Some(Tensor::from_slice_in(device, [rows, prefix + length], &mask, Segment::Data)?))
}
