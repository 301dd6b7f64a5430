//! Loss targets, and range checks of ids and labels, with errors that name the value.

use super::registry::HeadInit;
use crate::config::ProblemType;
use crate::config::are_default;
pub use crate::data::IGNORED;
use crate::data::{Batch, Labels, VerbalizerBatch};
use crate::error::{Error, Result};
use crate::file::printable;
use crate::model::OpenOptions;
use bmtrain_core::{Device, Segment, Tensor};

/// Targets of the loss.
#[derive(Debug, Clone)]
pub enum Targets {
    /// Class indices i64: `[B]` for sequence and sentence-pair classes, `[B, L]` for tokens, -100 is ignored.
    Classes(Tensor),
    /// f32 `[B, outputs]`, for regression.
    Values(Tensor),
}

impl Targets {
    /// Copies the labels of samples to a device.
    ///
    /// # Errors
    /// Values that do not divide evenly among the samples, out of memory.
    pub(super) fn upload(device: &Device, labels: &Labels, samples: usize) -> Result<Self> {
        Ok(match labels {
            Labels::Values(values) => {
                let shape = [samples, values.len() / samples.max(1)];
                Targets::Values(Tensor::from_slice_in(device, shape, values, Segment::Data)?)
            }
            Labels::Classes(labels) | Labels::NextTokens(labels) | Labels::Target(labels) => {
                Targets::Classes(Tensor::from_slice_in(device, [samples], labels, Segment::Data)?)
            }
        })
    }
}

/// The kind of labels that a model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A class index below this for each sample.
    Classes(usize),
    /// A token id for each token.
    Tokens,
    /// This number of values per sample.
    Values(usize),
    /// Any number of classes per sample (multi-label), whose loss is not supported.
    Sets,
    /// There is no head.
    Nothing,
}

impl Wanted {
    /// Targets of a classifier by its `problem_type`; without one, by the rule of transformers that a single output
    /// means regression.
    pub(super) fn of_classifier(outputs: usize, choices: usize, problem: Option<ProblemType>) -> Self {
        match problem {
            _ if choices > 1 => Wanted::Classes(choices),
            Some(ProblemType::Regression) => Wanted::Values(outputs),
            None if outputs == 1 => Wanted::Values(outputs),
            Some(ProblemType::SingleLabel) | None => Wanted::Classes(outputs),
            Some(ProblemType::MultiLabel) => Wanted::Sets,
        }
    }

    /// Whether a batch has labels of this kind, complete and in range for this vocabulary size.
    ///
    /// # Errors
    /// [`Error::Data`] naming the label.
    pub(super) fn check(self, batch: &Batch, words: usize) -> Result<()> {
        let samples = batch.rows / batch.choices.max(1);
        let Some(labels) = &batch.labels else { return Ok(()) };
        match (self, labels.ids(), labels) {
            (Wanted::Nothing, ..) => Ok(()),
            (Wanted::Tokens, Some(ids), _) => Numbers::grid("labels", ids, batch, words).check(true),
            (Wanted::Classes(classes), Some(ids), _) => Numbers::flat("labels", ids, samples, classes).check(true),
            (Wanted::Values(outputs), _, Labels::Values(values)) => check_values(values, samples, outputs),
            (wanted, ..) => Err(wrong_labels(labels, wanted)),
        }
    }
}

pub(super) fn wrong_labels(labels: &Labels, wanted: Wanted) -> Error {
    let got = match labels {
        Labels::Values(_) => "numbers to predict",
        _ => "class numbers",
    };
    let (reason, fix) = match wanted {
        Wanted::Values(_) => (
            format!("the labels are {got}, and this model predicts numbers (problem_type regression)"),
            "write them as f32 [B], or [B, outputs] for several outputs",
        ),
        Wanted::Sets => (
            "multi-label classification (problem_type multi_label_classification) has no loss here".to_owned(),
            "leave the labels out for logits alone, or use a model with one class for each row",
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

/// Refuses decoder inputs, for a model that is not an encoder-decoder.
///
/// # Errors
/// [`Error::Data`] naming the field.
pub(super) fn refuse_decoder_inputs(batch: &Batch) -> Result<()> {
    let given = [
        ("decoder_input_ids", batch.decoder_input_ids.is_some()),
        ("decoder_attention_mask", batch.decoder_attention_mask.is_some()),
    ];
    refuse_given(given, "it is for models with an encoder and a decoder, and this model has one stack")
}

/// Refuses fields that only families with contexts and spans support.
///
/// # Errors
/// [`Error::Data`] naming the field.
pub(super) fn refuse_spans(batch: &Batch) -> Result<()> {
    let given = [("context", batch.context.is_some()), ("span", batch.span.is_some())];
    refuse_given(given, "it selects the attention mask of models such as CPM-1, and this model has one mask")
}

/// Refuses fields that only a language-modelling head supports.
///
/// # Errors
/// [`Error::Data`] naming the field.
pub(super) fn refuse_verbalizer(batch: &Batch) -> Result<()> {
    let given = [("verbalizer", batch.verbalizer.is_some())];
    refuse_given(given, "they are compared by a language-modelling head, and this model has none")
}

/// The class weights of a batch, `[C]`; `classes` is the number of classes of the head, `None` for a head that is
/// not a classifier.
///
/// # Errors
/// [`Error::Data`] for weights that are not above 0, or not one for each class; out of memory.
pub(super) fn upload_class_weights(device: &Device, batch: &Batch, classes: Option<usize>) -> Result<Option<Tensor>> {
    let Some(weights) = &batch.class_weights else { return Ok(None) };
    refuse_given([("class_weights", classes.is_none())], "they are for a classifier, and this model has none")?;
    if classes != Some(weights.len()) || !weights.iter().all(|weight| weight.is_finite() && *weight > 0.0) {
        let reason = format!("{} weights for {} classes", weights.len(), classes.unwrap_or(0));
        return Err(Error::data("class_weights", reason, "give one number above 0 for each class"));
    }
    Ok(Some(Tensor::from_slice_in(device, [weights.len()], weights, Segment::Data)?))
}

/// Checks the verbalizer's token ids against the vocabulary size, and its positions, one per sequence, against the
/// number of tokens in the batch.
///
/// # Errors
/// [`Error::Data`] naming what is out of range.
pub(super) fn check_verbalizer(
    verbalizer: &VerbalizerBatch,
    (rows, tokens): (usize, usize),
    vocab_size: usize,
) -> Result<()> {
    let VerbalizerBatch { label_words: words, positions: places, prompt_loss } = verbalizer;
    Numbers::flat("verbalizer.label_words", words, words.len(), vocab_size).check(false)?;
    Numbers::flat("verbalizer.positions", places, rows, tokens).check(false)?;
    if words.len() < 2 || !prompt_loss.is_finite() || *prompt_loss < 0.0 {
        let reason = format!("{} label words, and a prompt_loss of {prompt_loss}", words.len());
        return Err(Error::data("verbalizer", reason, "give at least two label words, and a number from 0 on"));
    }
    Ok(())
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
    pub(super) fn upload(device: &Device, verbalizer: &VerbalizerBatch) -> Result<Self> {
        let upload = |values: &[i64]| Tensor::from_slice_in(device, [values.len()], values, Segment::Data);
        Ok(VerbalizerTensors {
            label_words: upload(&verbalizer.label_words)?,
            positions: upload(&verbalizer.positions)?,
        })
    }
}

fn refuse_given<const N: usize>(given: [(&str, bool); N], reason: &str) -> Result<()> {
    match given.iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((name, _)) => Err(Error::data(*name, reason, "leave it out")),
    }
}

/// Checks context and spans, one value for each token.
///
/// # Errors
/// [`Error::Data`] naming the field.
pub(super) fn check_spans(batch: &Batch) -> Result<()> {
    let (context, span) = (batch.context.as_ref(), batch.span.as_ref());
    for (name, values) in [("context", context.map(Vec::len)), ("span", span.map(Vec::len))] {
        values.map_or(Ok(()), |values| check_count(name, values, batch.input_ids.len()))?;
    }
    match context.is_some_and(|context| context.iter().any(|&value| value > 1)) {
        false => Ok(()),
        true => {
            let fix = "use 1 for tokens of the context and 0 for all others";
            Err(Error::data("batch", "context has values other than 0 and 1", fix))
        }
    }
}

/// One tensor of integers from the caller, with its valid range.
pub(super) struct Numbers<'a> {
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
    pub(super) fn grid(name: &'static str, values: &'a [i64], batch: &Batch, entries: usize) -> Self {
        Numbers::table(name, values, [batch.rows, batch.length], entries)
    }

    /// One for each token of sequences of this shape.
    pub(super) fn table(name: &'static str, values: &'a [i64], shape: [usize; 2], entries: usize) -> Self {
        Numbers { name, values, count: shape[0].saturating_mul(shape[1]), columns: Some(shape[1]), entries }
    }

    /// One for each of `count` samples.
    pub(super) fn flat(name: &'static str, values: &'a [i64], count: usize, entries: usize) -> Self {
        Numbers { name, values, count, columns: None, entries }
    }

    /// Whether all values are present and in range or, if `may_be_ignored`, -100.
    pub(super) fn check(&self, may_be_ignored: bool) -> Result<()> {
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

/// Whether a sequence is no longer than the model's maximum.
///
/// # Errors
/// [`Error::Data`] with both lengths.
pub(super) fn check_length(length: usize, positions: usize) -> Result<()> {
    if length <= positions {
        return Ok(());
    }
    let reason = format!("{length} tokens in a row, the model has {positions} positions");
    Err(Error::data("batch", reason, "shorten the rows or set data.max_length"))
}

/// A mask on a device; `None` when nothing is padded.
///
/// # Errors
/// A length other than the number of ids, or values other than 0 and 1.
pub(super) fn upload_mask(
    device: &Device,
    name: &str,
    shape: [usize; 2],
    ids: usize,
    mask: Option<&[u8]>,
) -> Result<Option<Tensor>> {
    let Some(mask) = mask else { return Ok(None) };
    check_count(name, mask.len(), ids)?;
    if mask.iter().any(|&value| value > 1) {
        let reason = format!("{name} has values other than 0 and 1");
        return Err(Error::data("batch", reason, "use 1 for tokens and 0 for padding"));
    }
    let padded = mask.contains(&0);
    Ok(padded.then(|| Tensor::from_slice_in(device, shape, mask, Segment::Data)).transpose()?)
}

/// Whether there are as many values as ids.
///
/// # Errors
/// [`Error::Data`] with both counts.
pub(super) fn check_count(name: &str, values: usize, ids: usize) -> Result<()> {
    if values == ids {
        return Ok(());
    }
    let reason = format!("{name} has {values} values for {ids} input ids");
    Err(Error::data("batch", reason, "give one value for each token"))
}

/// The labels of a classifier opened with this number of outputs: the labels of the directory's own classifier, with
/// `trained` outputs, if it is reused, and otherwise the labels of the options. A reused classifier keeps the order of
/// its outputs; a caller whose labels are in another order reads the names, see [`TextModel::label_names`].
///
/// # Errors
/// The classifier's labels or outputs do not match.
///
/// [`TextModel::label_names`]: super::TextModel::label_names
pub(super) fn take_over(
    (names, problem): (&mut Vec<String>, &mut Option<ProblemType>),
    place: &str,
    (trained, outputs): (Option<usize>, usize),
    options: &OpenOptions,
) -> Result<()> {
    let Some(trained) = trained.filter(|_| options.head_values != HeadInit::Random) else {
        // Labels in the file, if any, belong to another classifier.
        names.clone_from(&options.labels);
        *problem = options.problem;
        return Ok(());
    };
    let fix = "use data with the same labels, or begin with a new classifier: model.head = \"new\"";
    let refuse = |reason: String| Err(Error::model(place, reason, fix));
    if trained != outputs {
        return refuse(format!("the directory is a classifier with {trained} outputs, and the data need {outputs}"));
    }
    if let (Some(theirs), Some(ours)) = (*problem, options.problem)
        && theirs != ours
    {
        let (theirs, ours) = (theirs.name(), ours.name());
        return refuse(format!("the directory's classifier is for {theirs}, and the data are for {ours}"));
    }
    *problem = options.problem.or(*problem);
    if are_default(names) {
        if !options.labels.is_empty() {
            names.clone_from(&options.labels);
        } else if names.len() != trained {
            names.clear();
        }
    }
    let sorted = |names: &[String]| {
        let mut names = names.to_vec();
        names.sort();
        names
    };
    if !options.labels.is_empty() && sorted(names) != sorted(&options.labels) {
        let list = |names: &[String]| printable(&names.join(", "), 120);
        let (theirs, ours) = (list(names), list(&options.labels));
        return refuse(format!("the directory's classifier is for the labels {theirs}, and the data have {ours}"));
    }
    Ok(())
}
