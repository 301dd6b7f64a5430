//! A batch for both stacks on the device, with decoder inputs made from labels where nobody gives them.

use super::Seq2SeqHead;
use crate::config::ProblemType;
use crate::data::{Batch, VerbalizerBatch};
use crate::error::{Error, Result};
use crate::model::labels::{
    IGNORED, Numbers, Targets, VerbalizerTensors, Wanted, check_length, check_verbalizer, refuse_spans,
    refuse_verbalizer, upload_class_weights, upload_mask, upload_padding, wrong_labels,
};
use crate::model::position_table::PositionTable;
use bmtrain_core::{Device, Segment, Tensor};
use std::borrow::Cow;

/// Why a word is asked for.
const FOR_DECODER: &str = "decoder inputs are made with it";

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
    /// Rows of positions, i64 `[B, S]`; `None` where none are added.
    pub position_ids: Option<Tensor>,
    /// The same of the decoder, i64 `[B, L]`.
    pub decoder_position_ids: Option<Tensor>,
    /// i64 `[B]`: the place of each row's last word among all `B * S`, for a classifier.
    pub last: Option<Tensor>,
    /// What the loss compares with. Words are those that each position of the decoder is to predict, `[B, L]`.
    pub labels: Option<Targets>,
    /// Words and places of answers, whose classes the labels are; `None` where they are none.
    pub verbalizer: Option<VerbalizerTensors>,
    /// Share of the target probability that is spread over all classes.
    pub label_smoothing: f32,
    /// f32 `[C]`, what each class weighs; `None` where all samples weigh the same.
    pub class_weights: Option<Tensor>,
    /// Whether logits are asked for; otherwise a head may leave them out where it makes the loss without them.
    pub wants_logits: bool,
}

/// What making a batch goes by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Words {
    /// V.
    pub(super) vocab_size: usize,
    /// The longest row, in tokens.
    pub(super) max_length: usize,
    /// In front of the first label.
    pub(super) first: Option<usize>,
    /// In the place of a label that does not count.
    pub(super) pad: Option<usize>,
    /// What labels are for.
    pub(super) head: Seq2SeqHead,
    /// What the labels of a classifier are, if the configuration says.
    pub(super) problem: Option<ProblemType>,
    /// The word that ends a text.
    pub(super) last: Option<usize>,
    /// Positions that are added to the words of the encoder and of the decoder.
    pub(super) tables: [Option<PositionTable>; 2],
}

impl Words {
    /// Whether there is what decoder inputs are made with, whichever lengths their labels have.
    ///
    /// # Errors
    /// A word that the configuration does not say.
    pub(super) fn check_targets(&self) -> Result<()> {
        let needed = [("decoder_start_token_id", self.first), ("pad_token_id", self.pad)];
        match needed.into_iter().find(|(_, word)| word.is_none()) {
            None => Ok(()),
            Some((name, _)) => Err(missing(name, FOR_DECODER, &format!("add {name}, a word of the vocabulary"))),
        }
    }
}

impl Seq2SeqBatch {
    /// Check a batch and bring it onto a device.
    ///
    /// # Errors
    /// Ids or labels out of range, lengths that do not fit, nothing for the decoder to read; no memory left.
    pub(super) fn upload(device: &Device, batch: &Batch, words: Words) -> Result<Self> {
        check(batch, words)?;
        let shape = [batch.rows, batch.length];
        let classes = match words.head {
            Seq2SeqHead::Classifier { outputs } => Some(outputs),
            Seq2SeqHead::None | Seq2SeqHead::Words { .. } => None,
        };
        let (target, decoder_ids) = match (classes, &batch.verbalizer) {
            (Some(outputs), _) => (shape, Cow::Owned(read_by_classifier(batch, outputs, words)?)),
            (None, Some(verbalizer)) => verbalizer_decoder_ids(batch, verbalizer, words)?,
            (None, None) => read_by_decoder(batch, words)?,
        };
        let count = decoder_ids.len();
        let (mask, decoder_mask) = (batch.attention_mask.as_deref(), batch.decoder_attention_mask.as_deref());
        let ids = |shape: [usize; 2], values: &[i64]| Tensor::from_slice_in(device, shape, values, Segment::Data);
        let positions = |table: Option<PositionTable>, shape: [usize; 2], mask: Option<&[u8]>| {
            table.map(|table| ids(shape, &table.rows_of(shape[0], shape[1], mask))).transpose()
        };
        Ok(Seq2SeqBatch {
            input_ids: ids(shape, &batch.input_ids)?,
            padding: upload_padding(device, shape, batch.input_ids.len(), mask)?,
            position_ids: positions(words.tables[0], shape, mask)?,
            decoder_position_ids: positions(words.tables[1], target, decoder_mask)?,
            decoder_input_ids: ids(target, &decoder_ids)?,
            decoder_padding: upload_mask(device, "decoder_attention_mask", target, count, decoder_mask)?,
            last: match classes {
                Some(_) => {
                    Some(Tensor::from_slice_in(device, [batch.rows], &last_words(batch, words)?, Segment::Data)?)
                }
                None => None,
            },
            labels: match (&batch.labels, words.head) {
                (None, _) | (_, Seq2SeqHead::None) => None,
                (Some(labels), Seq2SeqHead::Classifier { .. }) => Some(Targets::upload(device, labels, batch.rows)?),
                (Some(labels), Seq2SeqHead::Words { .. }) if batch.verbalizer.is_some() => {
                    Some(Targets::upload(device, labels, batch.rows)?)
                }
                (Some(labels), Seq2SeqHead::Words { .. }) => {
                    let words = labels.ids().ok_or_else(|| wrong_labels(labels, Wanted::Words))?;
                    Some(Targets::Classes(ids(target, words)?))
                }
            },
            verbalizer: batch
                .verbalizer
                .as_ref()
                .map(|verbalizer| VerbalizerTensors::upload(device, verbalizer))
                .transpose()?,
            label_smoothing: batch.label_smoothing,
            class_weights: upload_class_weights(device, batch, classes)?,
            wants_logits: true,
        })
    }
}

/// Whether a batch is for a model with two stacks.
fn check(batch: &Batch, words: Words) -> Result<()> {
    Numbers::grid("input_ids", &batch.input_ids, batch, words.vocab_size).check(false)?;
    refuse_spans(batch)?;
    if !matches!(words.head, Seq2SeqHead::Words { .. }) {
        refuse_verbalizer(batch)?;
    }
    if batch.next_sentence.is_some() {
        let reason = "it is for the pretraining of encoders, and this model has a decoder too";
        return Err(Error::data("next_sentence_label", reason, "leave it out"));
    }
    if batch.choices > 1 {
        let what = match words.head {
            Seq2SeqHead::Classifier { .. } => "this classifier reads one row",
            Seq2SeqHead::None | Seq2SeqHead::Words { .. } => "this model predicts words",
        };
        let reason = format!("{} choices of a sample, and {what}", batch.choices);
        return Err(Error::data("batch", reason, "give one row for each sample"));
    }
    check_length(batch.length, words.max_length)
}

/// The shape and the words of what the decoder reads: what the batch has, or its labels moved by one.
fn read_by_decoder(batch: &Batch, words: Words) -> Result<([usize; 2], Cow<'_, [i64]>)> {
    let labels = match &batch.labels {
        None => None,
        Some(labels) => Some(labels.ids().ok_or_else(|| wrong_labels(labels, Wanted::Words))?),
    };
    let target = [batch.rows, target_length(batch, labels)?];
    check_length(target[1], words.max_length)?;
    if let Some(labels) = labels {
        Numbers::table("labels", labels, target, words.vocab_size).check(true)?;
    }
    let ids = match (&batch.decoder_input_ids, labels) {
        (Some(ids), _) => Cow::Borrowed(ids.as_slice()),
        (None, labels) => Cow::Owned(shifted(labels.unwrap_or_default(), target[1], words)?),
    };
    Numbers::table("decoder_input_ids", &ids, target, words.vocab_size).check(false)?;
    Ok((target, ids))
}

/// The shape and the words of what the decoder reads in front of answers.
fn verbalizer_decoder_ids<'b>(
    batch: &'b Batch,
    verbalizer: &VerbalizerBatch,
    words: Words,
) -> Result<([usize; 2], Cow<'b, [i64]>)> {
    let Some(ids) = &batch.decoder_input_ids else {
        let reason = "there are no decoder_input_ids, and an answer stands behind what the decoder reads";
        return Err(Error::data("batch", reason, "give the words that the decoder is to read, i64 [B, L]"));
    };
    let target = [batch.rows, target_length(batch, None)?];
    check_length(target[1], words.max_length)?;
    Numbers::table("decoder_input_ids", ids, target, words.vocab_size).check(false)?;
    check_verbalizer(verbalizer, (batch.rows, ids.len()), words.vocab_size)?;
    if verbalizer.prompt_loss > 0.0 {
        let reason = "an encoder predicts no words of a prompt, so their loss cannot count";
        return Err(Error::data("verbalizer", reason, "leave the loss of the prompt out"));
    }
    Wanted::Classes(verbalizer.label_words.len()).check(batch, words.vocab_size)?;
    Ok((target, Cow::Borrowed(ids)))
}

/// What the decoder of a classifier with so many outputs reads: the words of the encoder moved by one.
///
/// Source: transformers makes them in the same way, and masks none of them.
fn read_by_classifier(batch: &Batch, outputs: usize, words: Words) -> Result<Vec<i64>> {
    Wanted::of_classifier(outputs, 1, words.problem).check(batch, words.vocab_size)?;
    if batch.decoder_input_ids.is_some() || batch.decoder_attention_mask.is_some() {
        let reason = "the decoder of a classifier reads what its encoder does";
        return Err(Error::data("decoder_input_ids", reason, "leave it and its mask out"));
    }
    shifted(&batch.input_ids, batch.length, words)
}

/// The place of each row's last word among all.
fn last_words(batch: &Batch, words: Words) -> Result<Vec<i64>> {
    let unknown = || {
        let reason = "classes are read off at that word, and the configuration names none or several";
        Error::model("config.json, field eos_token_id", reason, "give one word as eos_token_id")
    };
    let last = words.last.ok_or_else(unknown)?;
    let rows = batch.input_ids.chunks(batch.length.max(1)).enumerate();
    let place = |(row, ids): (usize, &[i64])| {
        let at = ids.iter().rposition(|&id| usize::try_from(id).is_ok_and(|id| id == last)).ok_or_else(|| {
            let reason = format!("it has no word {last} (eos_token_id), at which classes are read off");
            Error::data(format!("input_ids, row {row}"), reason, "end each text with it")
        })?;
        Ok((row * batch.length + at) as i64)
    };
    rows.map(place).collect()
}

fn missing(name: &str, why: &str, fix: &str) -> Error {
    let reason = format!("{why}, and the configuration does not say it");
    Error::model(format!("config.json, field {name}"), reason, fix)
}

/// L: tokens of a row of the decoder.
fn target_length(batch: &Batch, labels: Option<&[i64]>) -> Result<usize> {
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

/// What the decoder reads when it is to predict these labels: each row moved by one behind the model's first word, with
/// the padding word where a label does not count.
///
/// Source: transformers moves labels the same way.
fn shifted(labels: &[i64], length: usize, words: Words) -> Result<Vec<i64>> {
    let missing = |name: &str| missing(name, FOR_DECODER, &format!("add {name}, or give decoder_input_ids"));
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
    use super::{Seq2SeqHead, Words, shifted};

    const WORDS: Words = Words {
        vocab_size: 50,
        max_length: 9,
        first: Some(3),
        pad: Some(0),
        head: Seq2SeqHead::Words { tied: true },
        problem: None,
        last: None,
        tables: [None, None],
    };

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
        // Of labels that nobody has seen yet some may be longer than others.
        assert!(WORDS.check_targets().is_ok() && Words { pad: None, ..WORDS }.check_targets().is_err());
    }
}
