//! The decoder's input in an encoder-decoder, and the position that its classifier reads.

use super::checks::{check_length, check_verbalizer};
use super::labels::{IGNORED, Numbers, Wanted, wrong_labels};
use crate::model::architecture::Spec;
use crate::model::head::Head;
use model_center_base::batch::{Batch, VerbalizerBatch};
use model_center_base::error::{Error, Result};
use std::borrow::Cow;

/// Why a special token is required, for errors.
const FOR_DECODER: &str = "decoder inputs are made with it";

/// Shape and ids of the decoder's input: the batch's own, its labels shifted right, or, for a classifier, the encoder's
/// input shifted right.
pub(in crate::model) fn of<'b>(batch: &'b Batch, spec: &Spec, head: Head) -> Result<([usize; 2], Cow<'b, [i64]>)> {
    match (head, &batch.verbalizer) {
        (Head::Classifier { outputs }, _) => {
            Ok(([batch.rows, batch.length], Cow::Owned(of_classifier(batch, outputs, spec)?)))
        }
        (_, Some(verbalizer)) => of_prompts(batch, verbalizer, spec),
        (_, None) => of_targets(batch, spec),
    }
}

/// Whether decoder inputs can be made from any labels.
///
/// # Errors
/// A special token that the configuration does not state.
pub(in crate::model) fn check_targets(spec: &Spec) -> Result<()> {
    ShiftTokens::of(spec).check()
}

fn of_targets<'b>(batch: &'b Batch, spec: &Spec) -> Result<([usize; 2], Cow<'b, [i64]>)> {
    let labels = match &batch.labels {
        None => None,
        Some(labels) => Some(labels.ids().ok_or_else(|| wrong_labels(labels, Wanted::Tokens))?),
    };
    let target = [batch.rows, target_length(batch, labels)?];
    check_length(target[1], spec.max_length)?;
    if let Some(labels) = labels {
        Numbers::table("labels", labels, target, spec.vocab_size).check(true)?;
    }
    let ids = match &batch.decoder_input_ids {
        Some(ids) => Cow::Borrowed(ids.as_slice()),
        None => Cow::Owned(ShiftTokens::of(spec).shift(labels.unwrap_or_default(), target[1])?),
    };
    Numbers::table("decoder_input_ids", &ids, target, spec.vocab_size).check(false)?;
    Ok((target, ids))
}

/// The decoder's input for prompts, which the label word follows.
fn of_prompts<'b>(batch: &'b Batch, verbalizer: &VerbalizerBatch, spec: &Spec) -> Result<([usize; 2], Cow<'b, [i64]>)> {
    let Some(ids) = &batch.decoder_input_ids else {
        let reason = "there are no decoder_input_ids, and a label word follows what the decoder reads";
        return Err(Error::data("batch", reason, "give the tokens that the decoder is to read, i64 [B, L]"));
    };
    let target = [batch.rows, target_length(batch, None)?];
    check_length(target[1], spec.max_length)?;
    Numbers::table("decoder_input_ids", ids, target, spec.vocab_size).check(false)?;
    check_verbalizer(verbalizer, (batch.rows, ids.len()), spec.vocab_size)?;
    Wanted::Classes(verbalizer.label_words.len()).check(batch, spec.vocab_size)?;
    Ok((target, Cow::Borrowed(ids)))
}

/// The encoder's input shifted right.
///
/// Source: transformers does the same, and masks none of it.
fn of_classifier(batch: &Batch, outputs: usize, spec: &Spec) -> Result<Vec<i64>> {
    Wanted::of_classifier(outputs, 1, spec.problem_type).check(batch, spec.vocab_size)?;
    if batch.decoder_input_ids.is_some() || batch.decoder_attention_mask.is_some() {
        let reason = "the decoder of a classifier reads what its encoder does";
        return Err(Error::data("decoder_input_ids", reason, "leave it and its mask out"));
    }
    ShiftTokens::of(spec).shift(&batch.input_ids, batch.length)
}

/// The position in the batch of each sequence's last EOS token.
pub(in crate::model) fn eos_tokens(batch: &Batch, spec: &Spec) -> Result<Vec<i64>> {
    let unknown = || {
        let reason = "the classifier reads at that token, and the configuration names none or several";
        Error::model("config.json, field eos_token_id", reason, "give one token as eos_token_id")
    };
    let eos = spec.eos_token.ok_or_else(unknown)?;
    let rows = batch.input_ids.chunks(batch.length.max(1)).enumerate();
    let position = |(row, ids): (usize, &[i64])| {
        let at = ids.iter().rposition(|&id| usize::try_from(id).is_ok_and(|id| id == eos)).ok_or_else(|| {
            let reason = format!("it has no token {eos} (eos_token_id), at which the classifier reads");
            Error::data(format!("input_ids, row {row}"), reason, "end each text with it")
        })?;
        Ok((row * batch.length + at) as i64)
    };
    rows.map(position).collect()
}

fn missing(name: &str, why: &str, fix: &str) -> Error {
    let reason = format!("{why}, and the configuration does not state it");
    Error::model(format!("config.json, field {name}"), reason, fix)
}

/// L, the length of the decoder's input.
fn target_length(batch: &Batch, labels: Option<&[i64]>) -> Result<usize> {
    let given = batch.decoder_input_ids.as_deref().map(|ids| ("decoder_input_ids", ids));
    let Some((name, values)) = given.or(labels.map(|labels| ("labels", labels))) else {
        let reason = "there are neither decoder_input_ids nor labels, so the decoder has nothing to read";
        return Err(Error::data("batch", reason, "give the tokens that the decoder is to read, i64 [B, L]"));
    };
    match values.len().checked_div(batch.rows) {
        Some(length) if length > 0 && length * batch.rows == values.len() => Ok(length),
        _ => {
            let reason = format!("{name} has {} values for {} rows", values.len(), batch.rows);
            Err(Error::data("batch", reason, "give as many values for each sequence, at least one"))
        }
    }
}

/// The special tokens for decoder inputs, if the configuration states them.
#[derive(Debug, Clone, Copy)]
struct ShiftTokens {
    start: Option<usize>,
    pad: Option<usize>,
}

impl ShiftTokens {
    fn of(spec: &Spec) -> Self {
        ShiftTokens { start: spec.decoder_start_token, pad: spec.pad_token_id }
    }

    fn check(self) -> Result<()> {
        let needed = [("decoder_start_token_id", self.start), ("pad_token_id", self.pad)];
        match needed.into_iter().find(|(_, token)| token.is_none()) {
            None => Ok(()),
            Some((name, _)) => Err(missing(name, FOR_DECODER, &format!("add {name}, a token of the vocabulary"))),
        }
    }

    /// Each sequence of labels shifted right after the start token, with the padding token for ignored labels.
    ///
    /// Source: transformers shifts labels the same way.
    fn shift(self, labels: &[i64], length: usize) -> Result<Vec<i64>> {
        let missing = |name: &str| missing(name, FOR_DECODER, &format!("add {name}, or give decoder_input_ids"));
        let start = self.start.ok_or_else(|| missing("decoder_start_token_id"))? as i64;
        let mut ids = Vec::with_capacity(labels.len());
        for row in labels.chunks(length.max(1)) {
            ids.push(start);
            for &label in &row[..row.len() - 1] {
                ids.push(match label {
                    IGNORED => self.pad.ok_or_else(|| missing("pad_token_id"))? as i64,
                    token => token,
                });
            }
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::ShiftTokens;

    const BOTH: ShiftTokens = ShiftTokens { start: Some(3), pad: Some(0) };

    #[test]
    fn decoder_inputs_are_the_labels_after_the_start_token() {
        let labels = [10, 11, 12, 20, -100, 22, -100, 31, -100];
        assert_eq!(BOTH.shift(&labels, 3).unwrap(), [3, 10, 11, 3, 20, 0, 3, 0, 31]);
        assert_eq!(BOTH.shift(&[7, 8], 1).unwrap(), [3, 3]);
    }

    #[test]
    fn special_tokens_missing_in_the_configuration_are_errors_where_they_are_needed() {
        let error = |tokens: ShiftTokens| tokens.shift(&[5, -100, 6], 3).unwrap_err().to_string();
        assert!(error(ShiftTokens { start: None, ..BOTH }).contains("decoder_start_token_id"));
        assert!(error(ShiftTokens { pad: None, ..BOTH }).contains("pad_token_id"));
        assert_eq!(ShiftTokens { pad: None, ..BOTH }.shift(&[5, 6], 2).unwrap(), [3, 5]);
        // Labels in general have different lengths, which takes a padding token.
        assert!(BOTH.check().is_ok() && ShiftTokens { pad: None, ..BOTH }.check().is_err());
    }
}
