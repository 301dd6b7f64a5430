//! BERT as a [`TextModel`]: what programs call.

use super::{Bert, BertBatch, BertHead, Labels};
use crate::error::{Error, Result};
use crate::hf::NameTable;
use crate::model::registry::SaveOptions;
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
            Some(Labels::Values(Tensor::from_slice(device, [samples], values, Segment::Data)?))
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
    if let Some(TextLabels::Classes(labels)) = &batch.labels {
        match model.head_kind() {
            BertHead::Classifier { .. } if batch.choices > 1 => {
                flat("labels", labels, samples, batch.choices).check(true)?
            }
            BertHead::Classifier { outputs } => flat("labels", labels, samples, outputs).check(true)?,
            BertHead::NextSentence => flat("labels", labels, samples, 2).check(true)?,
            BertHead::MaskedLm | BertHead::Pretraining => {
                grid("labels", labels, model.config().vocab_size).check(true)?;
            }
            BertHead::None { .. } => {}
        }
    }
    match &batch.next_sentence {
        Some(labels) => flat("next_sentence_label", labels, rows, 2).check(true),
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
