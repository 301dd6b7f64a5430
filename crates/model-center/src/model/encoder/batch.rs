//! A batch on the device.

use super::{EncoderHead, Layout};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::model::labels::{
    Numbers, Targets, Wanted, check_count, check_length, refuse_decoder_inputs, refuse_spans, refuse_verbalizer,
    upload_class_weights, upload_padding,
};
use bmtrain_core::{Device, Segment, Tensor};

/// Ids and masks of B sequences of L tokens.
#[derive(Debug, Clone)]
pub struct EncoderBatch {
    /// i64 `[B, L]`.
    pub input_ids: Tensor,
    /// i64 `[B, L]`.
    pub token_type_ids: Tensor,
    /// i64 `[B, L]`, rows of the table of positions.
    pub position_ids: Tensor,
    /// u8 `[B, L]`, 1 for tokens; `None` when nothing is padded.
    pub padding: Option<Tensor>,
    /// What the loss compares with.
    pub labels: Option<Targets>,
    /// i64 `[B]`, for pretraining.
    pub next_sentence: Option<Tensor>,
    /// Share of the target probability that is spread over all classes.
    pub label_smoothing: f32,
    /// f32 `[C]`, what each class weighs; `None` where all samples weigh the same.
    pub class_weights: Option<Tensor>,
    /// Rows that belong to one sample of a multiple choice; 1 otherwise.
    pub choices: usize,
    /// Whether logits are asked for; otherwise a head may leave them out where it makes the loss without them.
    pub wants_logits: bool,
}

impl EncoderBatch {
    /// Check a batch and copy it to a device, for a model of this layout and head.
    ///
    /// # Errors
    /// Ids or labels out of range, lengths that do not fit, a mask of other numbers than 0 and 1.
    pub(super) fn upload(
        device: &Device,
        batch: &Batch,
        (layout, head): (&Layout, EncoderHead),
        wants_logits: bool,
    ) -> Result<Self> {
        check(layout, head, batch)?;
        let (rows, length, ids) = (batch.rows, batch.length, &batch.input_ids);
        let grid = |values: &[i64]| Tensor::from_slice_in(device, [rows, length], values, Segment::Data);
        let padding = upload_padding(device, [rows, length], ids.len(), batch.attention_mask.as_deref())?;
        if let Some(types) = &batch.token_type_ids {
            check_count("token_type_ids", types.len(), ids.len())?;
        }
        let pad = layout.pad_token_id.map(|id| id as i64);
        let words: Vec<u8> = ids.iter().map(|id| u8::from(Some(*id) != pad)).collect();
        let zeros = || vec![0; ids.len()];
        let labels = match &batch.labels {
            None => None,
            // Without a head there is nothing that they could be compared with.
            Some(_) if matches!(head, EncoderHead::None { .. }) => None,
            Some(labels) if head.has_words() => labels.ids().map(grid).transpose()?.map(Targets::Classes),
            Some(labels) => Some(Targets::upload(device, labels, rows / batch.choices.max(1))?),
        };
        let next_sentence = batch.next_sentence.as_ref();
        let classes = match head {
            EncoderHead::Classifier { outputs } => Some(if batch.choices > 1 { batch.choices } else { outputs }),
            _ => None,
        };
        Ok(EncoderBatch {
            input_ids: grid(ids)?,
            token_type_ids: grid(&batch.token_type_ids.clone().unwrap_or_else(zeros))?,
            position_ids: grid(&layout.positions.rows_of(rows, length, Some(&words)))?,
            padding,
            labels,
            next_sentence: next_sentence
                .map(|labels| Tensor::from_slice_in(device, [rows], labels, Segment::Data))
                .transpose()?,
            label_smoothing: batch.label_smoothing,
            class_weights: upload_class_weights(device, batch, classes)?,
            choices: batch.choices,
            wants_logits,
        })
    }

    /// Labels that are class numbers.
    pub fn class_labels(&self) -> Option<&Tensor> {
        match &self.labels {
            Some(Targets::Classes(targets)) => Some(targets),
            _ => None,
        }
    }
}

/// Whether ids and labels are those of this model.
fn check(layout: &Layout, head: EncoderHead, batch: &Batch) -> Result<()> {
    check_length(batch.length, layout.max_length())?;
    refuse_decoder_inputs(batch)?;
    refuse_spans(batch)?;
    refuse_verbalizer(batch)?;
    Numbers::grid("input_ids", &batch.input_ids, batch, layout.vocab_size).check(false)?;
    if let Some(types) = &batch.token_type_ids {
        Numbers::grid("token_type_ids", types, batch, layout.type_size).check(false)?;
    }
    let wanted = match head {
        EncoderHead::Classifier { outputs } => Wanted::of_classifier(outputs, batch.choices, layout.problem_type),
        EncoderHead::NextSentence => Wanted::Classes(2),
        EncoderHead::MaskedLm | EncoderHead::Pretraining => Wanted::Words,
        EncoderHead::None { .. } => Wanted::Nothing,
    };
    wanted.check(batch, layout.vocab_size)?;
    match (&batch.next_sentence, head) {
        (None, _) | (Some(_), EncoderHead::None { .. }) => Ok(()),
        (Some(labels), EncoderHead::Pretraining) => {
            Numbers::flat("next_sentence_label", labels, batch.rows, 2).check(true)
        }
        (Some(_), _) => Err(Error::data(
            "next_sentence_label",
            "it is for pretraining, and this model has another head",
            "leave it out; the labels of every other head are called labels",
        )),
    }
}
