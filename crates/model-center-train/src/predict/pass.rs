//! The outputs of a model for rows of tokens.

use super::{PredictionKind, Predictor};
use crate::{Error, Result};
use bmtrain_core::{Ctx, Device, Tensor};
use bmtrain_dist::param::widen;
use model_center_formats::tokenizer::Encoding;
use model_center_models::{Batch, ModelOutput, TextModel};

impl Predictor {
    /// The outputs of rows, which share a pass padded to the longest of them: logits `[outputs]` of a row, of words
    /// `[tokens, outputs]`, of answers `[2, tokens]`, of embeddings hidden states `[tokens, hidden size]`.
    ///
    /// # Errors
    /// A row that the model cannot read; [`Error::Model`] for outputs that are not finite.
    pub fn outputs(&self, (model, device): (&dyn TextModel, &Device), rows: &[&Encoding]) -> Result<Vec<Vec<f32>>> {
        let length = rows.iter().map(|row| row.input_ids.len()).max().unwrap_or(0);
        if length == 0 {
            return Ok(vec![Vec::new(); rows.len()]);
        }
        let batch = self.batch(rows, length);
        let outputs = match &self.kind {
            PredictionKind::Embedding(_) => by_token(&last_hidden_state(model, &batch, device)?, rows, length)?,
            kind => {
                let output = model.forward(&batch, None, &mut Ctx::inference(device))?;
                match kind {
                    PredictionKind::Answer => spans(&output, rows, length)?,
                    PredictionKind::Words(_) => by_token(logits(&output)?, rows, length)?,
                    _ => {
                        let logits = widen(logits(&output)?)?;
                        logits.chunks(logits.len() / rows.len()).map(<[f32]>::to_vec).collect()
                    }
                }
            }
        };
        match outputs.iter().flatten().any(|value| !value.is_finite()) {
            true => {
                let fix = "use an earlier checkpoint, or open it in f32 with `dtype`";
                Err(Error::model("the model", "its outputs are not finite numbers", fix))
            }
            false => Ok(outputs),
        }
    }

    /// Rows padded on the right.
    fn batch(&self, rows: &[&Encoding], length: usize) -> Batch {
        let (mut ids, mut mask, mut types) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let end = ids.len() + length;
            ids.extend(row.input_ids.iter().map(|id| i64::from(*id)));
            types.extend(row.token_type_ids.iter().map(|kind| i64::from(*kind)));
            mask.resize(ids.len(), 1_u8);
            ids.resize(end, self.pad);
            types.resize(end, 0);
            mask.resize(end, 0);
        }
        let token_type_ids = (self.has_token_types && types.iter().any(|kind| *kind != 0)).then_some(types);
        let attention_mask = mask.contains(&0).then_some(mask);
        Batch { attention_mask, token_type_ids, ..Batch::new(length, ids) }
    }
}

fn no_outputs() -> Error {
    Error::model("the model", "it has no outputs of this kind", "open it with the head that was trained")
}

fn logits(output: &ModelOutput) -> Result<&Tensor> {
    output.logits.as_ref().map(|logits| logits.value()).ok_or_else(no_outputs)
}

/// The values `[rows, length, width]` of each row's own tokens.
fn by_token(values: &Tensor, rows: &[&Encoding], length: usize) -> Result<Vec<Vec<f32>>> {
    let width = values.shape().last();
    let values = widen(values)?;
    let of_row = |(values, row): (&[f32], &&Encoding)| values[..row.input_ids.len() * width].to_vec();
    Ok(values.chunks(length * width).zip(rows).map(of_row).collect())
}

/// The logits of first and last tokens of each row's own tokens, one after the other.
fn spans(output: &ModelOutput, rows: &[&Encoding], length: usize) -> Result<Vec<Vec<f32>>> {
    let [starts, ends] = output.span_logits().ok_or_else(no_outputs)?;
    let (starts, ends) = (widen(starts.value())?, widen(ends.value())?);
    let both = starts.chunks(length).zip(ends.chunks(length)).zip(rows);
    Ok(both.map(|((starts, ends), row)| [starts, ends].map(|one| &one[..row.input_ids.len()]).concat()).collect())
}

fn last_hidden_state(model: &dyn TextModel, batch: &Batch, device: &Device) -> Result<Tensor> {
    let mut last = None;
    let mut observe = |_: usize, value: &Tensor| {
        last = Some(value.clone());
        Ok::<(), bmtrain_dist::Error>(())
    };
    model.forward(batch, Some(&mut observe), &mut Ctx::inference(device))?;
    last.ok_or_else(|| Error::model("the model", "it has no hidden states", "use an encoder"))
}

/// Probabilities of logits, which add up to 1.
pub(super) fn softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|logit| f64::from(logit - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    powers.into_iter().map(|power| (power / sum) as f32).collect()
}

/// The probability of a logit by itself.
pub(super) fn sigmoid(logit: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32
}
