//! A batch for both stacks on the device, with decoder inputs made from labels where nobody gives them.

use crate::error::{Error, Result};
use crate::model::labels::{IGNORED, Numbers, Wanted, refuse_spans, upload_mask, upload_padding, wrong_labels};
use crate::model::text::{TextBatch, TextLabels};
use bmtrain_core::{Device, Segment, Tensor};
use std::borrow::Cow;

/// Ids and masks of B pairs of S tokens for the encoder and L for the decoder.
#[derive(Debug, Clone)]
pub struct Seq2SeqBatch {
    /// i64 `[B, S]`.
    pub input_ids: Tensor,
    /// u8 `[B, S]`, 1 for tokens; `None` when nothing is padded.
    pub padding: Option<Tensor>,
    /// i64 `[B, L]`.
    pub decoder_input_ids: Tensor,
    /// u8 `[B, L]`, 1 for tokens; `None` when nothing is padded.
    pub decoder_padding: Option<Tensor>,
    /// i64 `[B, L]`, the word that each position of the decoder is to predict, -100 where nothing counts.
    pub labels: Option<Tensor>,
    /// Share of the target probability that is spread over all classes.
    pub label_smoothing: f32,
    /// Whether logits are asked for; otherwise a head may leave them out where it makes the loss without them.
    pub wants_logits: bool,
}

/// What making a batch goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Words {
    /// V.
    pub(super) vocab_size: usize,
    /// The longest row, in tokens.
    pub(super) max_length: usize,
    /// In front of the first label.
    pub(super) first: Option<usize>,
    /// In the place of a label that does not count.
    pub(super) pad: Option<usize>,
    /// Whether there is a head that labels are for.
    pub(super) has_labels: bool,
}

impl Seq2SeqBatch {
    /// Check a batch and bring it onto a device.
    ///
    /// # Errors
    /// Ids or labels out of range, lengths that do not fit, nothing for the decoder to read; no memory left.
    pub(super) fn upload(device: &Device, batch: &TextBatch, words: Words) -> Result<Self> {
        let labels = check(batch, words)?;
        let shape = [batch.rows, batch.length];
        let target = [batch.rows, target_length(batch, labels)?];
        check_lengths([shape[1], target[1]], words.max_length)?;
        if let Some(labels) = labels {
            Numbers::table("labels", labels, target, words.vocab_size).check(true)?;
        }
        let decoder_ids = match (&batch.decoder_input_ids, labels) {
            (Some(ids), _) => Cow::Borrowed(ids.as_slice()),
            (None, labels) => Cow::Owned(shifted(labels.unwrap_or_default(), target[1], words)?),
        };
        Numbers::table("decoder_input_ids", &decoder_ids, target, words.vocab_size).check(false)?;
        let count = decoder_ids.len();
        let (mask, decoder_mask) = (batch.attention_mask.as_deref(), batch.decoder_attention_mask.as_deref());
        let ids = |shape: [usize; 2], values: &[i64]| Tensor::from_slice(device, shape, values, Segment::Data);
        Ok(Seq2SeqBatch {
            input_ids: ids(shape, &batch.input_ids)?,
            padding: upload_padding(device, shape, batch.input_ids.len(), mask)?,
            decoder_input_ids: ids(target, &decoder_ids)?,
            decoder_padding: upload_mask(device, "decoder_attention_mask", target, count, decoder_mask)?,
            labels: labels.filter(|_| words.has_labels).map(|labels| ids(target, labels)).transpose()?,
            label_smoothing: batch.label_smoothing,
            wants_logits: true,
        })
    }
}

/// The labels, if the rest of the batch is for a model with two stacks.
fn check(batch: &TextBatch, words: Words) -> Result<Option<&[i64]>> {
    Numbers::grid("input_ids", &batch.input_ids, batch, words.vocab_size).check(false)?;
    refuse_spans(batch)?;
    if batch.next_sentence.is_some() {
        let reason = "it is for the pretraining of encoders, and this model has a decoder too";
        return Err(Error::data("next_sentence_label", reason, "leave it out"));
    }
    if batch.choices > 1 {
        let reason = format!("{} choices of a sample, and this model predicts words", batch.choices);
        return Err(Error::data("batch", reason, "give one row for each sample"));
    }
    match &batch.labels {
        None => Ok(None),
        Some(TextLabels::Classes(labels)) => Ok(Some(labels)),
        Some(labels) => Err(wrong_labels(labels, Wanted::Words)),
    }
}

/// L: tokens of a row of the decoder.
fn target_length(batch: &TextBatch, labels: Option<&[i64]>) -> Result<usize> {
    let given = batch.decoder_input_ids.as_deref().map(|ids| ("decoder_input_ids", ids));
    let Some((name, values)) = given.or(labels.map(|labels| ("labels", labels))) else {
        let reason = "there are neither decoder_input_ids nor labels, so the decoder has nothing to read";
        return Err(Error::data("batch", reason, "give the words that the decoder is to read, i64 [B, L]"));
    };
    match values.len().checked_div(batch.rows) {
        Some(length) if length > 0 && length * batch.rows == values.len() => Ok(length),
        _ => {
            let reason = format!("{name} has {} values for {} rows", values.len(), batch.rows);
            Err(Error::data("batch", reason, "give as many values for each row, at least one"))
        }
    }
}

/// Rows no longer than the model's positions.
fn check_lengths(lengths: [usize; 2], most: usize) -> Result<()> {
    match lengths.into_iter().find(|&length| length > most) {
        None => Ok(()),
        Some(length) => {
            let reason = format!("{length} tokens in a row, the model has {most} positions");
            Err(Error::data("batch", reason, "shorten the rows"))
        }
    }
}

/// What the decoder reads when it is to predict these labels: each row moved by one behind the model's first word, with the
/// padding word where a label does not count.
///
/// Source: transformers moves labels the same way.
fn shifted(labels: &[i64], length: usize, words: Words) -> Result<Vec<i64>> {
    let missing = |name: &str| {
        let reason = "decoder inputs are made from labels with it, and the configuration does not say it";
        Error::model(format!("config.json, field {name}"), reason, format!("add {name}, or give decoder_input_ids"))
    };
    let first = words.first.ok_or_else(|| missing("decoder_start_token_id"))? as i64;
    let mut ids = Vec::with_capacity(labels.len());
    for row in labels.chunks(length.max(1)) {
        ids.push(first);
        for &label in &row[..row.len() - 1] {
            ids.push(match label {
                IGNORED => words.pad.ok_or_else(|| missing("pad_token_id"))? as i64,
                word => word,
            });
        }
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{Words, shifted};

    const WORDS: Words = Words { vocab_size: 50, max_length: 9, first: Some(3), pad: Some(0), has_labels: true };

    #[test]
    fn decoder_inputs_are_the_labels_behind_a_first_word() {
        let labels = [10, 11, 12, 20, -100, 22, -100, 31, -100];
        assert_eq!(shifted(&labels, 3, WORDS).unwrap(), [3, 10, 11, 3, 20, 0, 3, 0, 31]);
        assert_eq!(shifted(&[7, 8], 1, WORDS).unwrap(), [3, 3]);
    }

    #[test]
    fn words_that_the_configuration_does_not_say_are_asked_for_where_they_are_needed() {
        let error = |words| shifted(&[5, -100, 6], 3, words).unwrap_err().to_string();
        assert!(error(Words { first: None, ..WORDS }).contains("decoder_start_token_id"));
        assert!(error(Words { pad: None, ..WORDS }).contains("pad_token_id"));
        assert_eq!(shifted(&[5, 6], 2, Words { pad: None, ..WORDS }).unwrap(), [3, 5]);
    }
}
