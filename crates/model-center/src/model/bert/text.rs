//! BERT as a [`TextModel`]: what programs call.

use super::{Bert, BertBatch, BertHead, Labels};
use crate::error::{Error, Result};
use crate::hf::NameTable;
use crate::model::registry::SaveOptions;
use crate::model::text::{Observe, Scores, TextBatch, TextHead, TextLabels, TextModel};
use bmtrain_core::{Ctx, Segment, Tensor};
use bmtrain_dist::{Model, Parameters};
use std::path::Path;

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
    let types = batch.token_type_ids.as_deref();
    let mut uploaded = BertBatch::upload(device, shape, &batch.input_ids, batch.attention_mask.as_deref(), types)?;
    uploaded.choices = batch.choices;
    uploaded.label_smoothing = batch.label_smoothing;
    let samples = batch.rows / batch.choices.max(1);
    uploaded.labels = match &batch.labels {
        None => None,
        Some(TextLabels::Classes(labels)) if labels.len() == batch.input_ids.len() => {
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
