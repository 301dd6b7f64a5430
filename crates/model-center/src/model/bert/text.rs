//! BERT as a [`TextModel`]: what programs call.

use super::{Bert, BertBatch, BertHead, Labels};
use crate::config::ProblemType;
use crate::error::{Error, Result};
use crate::hf::NameTable;
use crate::model::registry::{SaveOptions, param_shapes};
use crate::model::text::{Observe, Scores, TextBatch, TextHead, TextLabels, TextModel};
use bmtrain_core::{Ctx, Segment, Tensor};
use bmtrain_dist::{Model, Parameters};
use std::path::Path;

/// The label of what does not count, as in transformers.
const IGNORED: i64 = -100;

impl From<TextHead> for BertHead {
    fn from(head: TextHead) -> Self {
        match head {
            TextHead::None => BertHead::None { with_pooler: true },
            TextHead::Classification { outputs } => BertHead::Classifier { outputs },
            TextHead::MaskedLm => BertHead::MaskedLm,
            TextHead::NextSentence => BertHead::NextSentence,
            TextHead::Pretraining => BertHead::Pretraining,
        }
    }
}

impl TextModel for Bert {
    fn parameters(&self) -> &Parameters {
        Model::parameters(self)
    }

    fn vocab_size(&self) -> usize {
        self.config().vocab_size
    }

    fn max_length(&self) -> usize {
        self.config().position_size
    }

    fn names(&self) -> &NameTable {
        &super::names::NAMES
    }

    fn label_names(&self) -> &[String] {
        &self.config().labels
    }

    fn multiplied_values(&self) -> usize {
        Model::parameters(self).count() - self.looked_up_values()
    }

    fn check_save(&self, options: &SaveOptions<'_>) -> Result<()> {
        super::names::written(self, options).check(&param_shapes(Model::parameters(self)))
    }

    fn save(&self, folder: &Path, options: &SaveOptions<'_>) -> Result<()> {
        super::names::save(self, folder, options)
    }

    fn score(&self, batch: &TextBatch, observe: Option<Observe<'_>>, cx: &mut Ctx) -> Result<Scores> {
        let batch = upload(self, batch, cx)?;
        let output = match observe {
            None => self.forward(&batch, cx)?,
            Some(observe) => {
                self.forward_observed(&batch, cx, &mut |index, flow| observe(index, flow.hidden.value()))?
            }
        };
        let mut extra = Vec::new();
        extra.extend(output.pooled.map(|pooled| ("pooler", pooled)));
        extra.extend(output.sentence_logits.map(|logits| ("seq_relationship_logits", logits)));
        Ok(Scores { logits: output.logits, extra, loss: output.loss })
    }
}

fn upload(model: &Bert, batch: &TextBatch, cx: &Ctx) -> Result<BertBatch> {
    let (device, shape) = (cx.device(), (batch.rows, batch.length));
    if batch.length > model.max_length() {
        let reason = format!("{} tokens in a row, the model has {} positions", batch.length, model.max_length());
        return Err(Error::data("batch", reason, "shorten the rows or set data.max_length"));
    }
    check(model, batch)?;
    let types = batch.token_type_ids.as_deref();
    let mut uploaded = BertBatch::upload(device, shape, &batch.input_ids, batch.attention_mask.as_deref(), types)?;
    uploaded.choices = batch.choices;
    uploaded.label_smoothing = batch.label_smoothing;
    let samples = batch.rows / batch.choices.max(1);
    uploaded.labels = match &batch.labels {
        None => None,
        Some(TextLabels::Classes(labels)) if model.head_kind().has_words() => {
            let shape = [batch.rows, batch.length];
            Some(Labels::Classes(Tensor::from_slice(device, shape, labels, Segment::Data)?))
        }
        Some(TextLabels::Classes(labels)) => {
            Some(Labels::Classes(Tensor::from_slice(device, [samples], labels, Segment::Data)?))
        }
        Some(TextLabels::Values(values)) => {
            let shape = [samples, values.len() / samples.max(1)];
            Some(Labels::Values(Tensor::from_slice(device, shape, values, Segment::Data)?))
        }
    };
    uploaded.next_sentence = match &batch.next_sentence {
        Some(labels) => Some(Tensor::from_slice(device, [batch.rows], labels, Segment::Data)?),
        None => None,
    };
    Ok(uploaded)
}

/// Whether ids and labels are those of this model. A kernel would find a wrong one too, but could not say what it is.
fn check(model: &Bert, batch: &TextBatch) -> Result<()> {
    let (rows, tokens) = (batch.rows, batch.rows * batch.length);
    let samples = rows / batch.choices.max(1);
    let grid = |name, values, entries| Numbers { name, values, count: tokens, columns: Some(batch.length), entries };
    let flat = |name, values, count, entries| Numbers { name, values, count, columns: None, entries };
    grid("input_ids", &batch.input_ids, model.config().vocab_size).check(false)?;
    if let Some(types) = &batch.token_type_ids {
        grid("token_type_ids", types, model.config().type_size).check(false)?;
    }
    match (&batch.labels, wanted(model, batch.choices)) {
        (None, _) | (Some(_), Wanted::Nothing) => {}
        (Some(TextLabels::Classes(labels)), Wanted::Words) => {
            grid("labels", labels, model.config().vocab_size).check(true)?;
        }
        (Some(TextLabels::Classes(labels)), Wanted::Classes(classes)) => {
            flat("labels", labels, samples, classes).check(true)?;
        }
        (Some(TextLabels::Values(labels)), Wanted::Values(outputs)) => check_values(labels, samples, outputs)?,
        (Some(labels), wanted) => return Err(wrong_labels(labels, &wanted)),
    }
    match (&batch.next_sentence, model.head_kind()) {
        (None, _) | (Some(_), BertHead::None { .. }) => Ok(()),
        (Some(labels), BertHead::Pretraining) => flat("next_sentence_label", labels, rows, 2).check(true),
        (Some(_), _) => Err(Error::data(
            "next_sentence_label",
            "it is for pretraining, and this model has another head",
            "leave it out; the labels of every other head are called labels",
        )),
    }
}

/// What the labels of a model are.
enum Wanted {
    /// A class for each sample.
    Classes(usize),
    /// A word for each token.
    Words,
    /// So many numbers for each sample.
    Values(usize),
    /// Any number of classes at once, for which there is no loss here.
    Sets,
    /// There is no head.
    Nothing,
}

/// A classifier goes by its `problem_type`; without one, by transformers' rule that one output is a number to predict.
fn wanted(model: &Bert, choices: usize) -> Wanted {
    match model.head_kind() {
        BertHead::Classifier { .. } if choices > 1 => Wanted::Classes(choices),
        BertHead::Classifier { outputs } => match model.config().problem_type {
            Some(ProblemType::Regression) => Wanted::Values(outputs),
            None if outputs == 1 => Wanted::Values(outputs),
            Some(ProblemType::SingleLabel) | None => Wanted::Classes(outputs),
            Some(ProblemType::MultiLabel) => Wanted::Sets,
        },
        BertHead::NextSentence => Wanted::Classes(2),
        BertHead::MaskedLm | BertHead::Pretraining => Wanted::Words,
        BertHead::None { .. } => Wanted::Nothing,
    }
}

fn wrong_labels(labels: &TextLabels, wanted: &Wanted) -> Error {
    let got = match labels {
        TextLabels::Classes(_) => "class numbers",
        TextLabels::Values(_) => "numbers to predict",
    };
    let (reason, fix) = match wanted {
        Wanted::Values(_) => (
            format!("the labels are {got}, and this model predicts numbers (problem_type regression)"),
            "write them as f32 [B], or [B, outputs] for several outputs",
        ),
        Wanted::Sets => (
            "this model is for several classes at once (problem_type multi_label_classification), whose loss is not supported"
                .to_owned(),
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

/// One tensor of numbers from outside.
struct Numbers<'a> {
    name: &'static str,
    values: &'a [i64],
    /// How many there must be.
    count: usize,
    /// Columns of a matrix; `None` for a vector.
    columns: Option<usize>,
    /// Values are below this.
    entries: usize,
}

impl Numbers<'_> {
    /// All there and in range, or, where `may_be_ignored`, the number of what does not count.
    fn check(&self, may_be_ignored: bool) -> Result<()> {
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
