//! BERT as a [`TextModel`]: what programs call.

use super::{Bert, BertBatch, BertHead, names};
use crate::error::{Error, Result};
use crate::hf::NameTable;
use crate::model::labels::{Labels, Numbers, Wanted, check_length};
use crate::model::opening::Fill;
use crate::model::registry::{SaveOptions, param_shapes};
use crate::model::text::{Observe, Scores, TextBatch, TextHead, TextLabels, TextModel};
use bmtrain_core::{Ctx, Segment, Tensor, Var};
use bmtrain_dist::{Model, Parameters};
use std::path::Path;

impl BertHead {
    /// The head that a program asks for.
    ///
    /// # Errors
    /// A head that BERT does not have.
    pub fn of(head: TextHead) -> Result<Self> {
        Ok(match head {
            TextHead::None => BertHead::None { with_pooler: true },
            TextHead::Classification { outputs } => BertHead::Classifier { outputs },
            TextHead::MaskedLm => BertHead::MaskedLm,
            TextHead::NextSentence => BertHead::NextSentence,
            TextHead::Pretraining => BertHead::Pretraining,
            TextHead::CausalLm => {
                let reason = "the head for the next word is for decoders, and BERT is an encoder";
                return Err(Error::recipe("the head asked for", reason, "ask for mlm, nsp, cls or none"));
            }
        })
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
        names::written(self, options)?.check(&param_shapes(Model::parameters(self)))
    }

    fn write(&self, folder: &Path, options: &SaveOptions<'_>, fill: Fill<'_>) -> Result<()> {
        names::written(self, options)?.write(folder, &param_shapes(Model::parameters(self)), fill)
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

    fn loss(&self, batch: &TextBatch, cx: &mut Ctx) -> Result<Option<Var>> {
        let batch = BertBatch { wants_logits: false, ..upload(self, batch, cx)? };
        Ok(self.forward(&batch, cx)?.loss)
    }
}

fn upload(model: &Bert, batch: &TextBatch, cx: &Ctx) -> Result<BertBatch> {
    let (device, shape) = (cx.device(), (batch.rows, batch.length));
    check_length(batch, model.max_length())?;
    check(model, batch)?;
    let types = batch.token_type_ids.as_deref();
    let mut uploaded = BertBatch::upload(device, shape, &batch.input_ids, batch.attention_mask.as_deref(), types)?;
    uploaded.choices = batch.choices;
    uploaded.label_smoothing = batch.label_smoothing;
    uploaded.labels = match &batch.labels {
        None => None,
        Some(TextLabels::Classes(labels)) if model.head_kind().has_words() => {
            let shape = [batch.rows, batch.length];
            Some(Labels::Classes(Tensor::from_slice(device, shape, labels, Segment::Data)?))
        }
        Some(labels) => Some(Labels::upload(device, labels, batch.rows / batch.choices.max(1))?),
    };
    uploaded.next_sentence = match &batch.next_sentence {
        Some(labels) => Some(Tensor::from_slice(device, [batch.rows], labels, Segment::Data)?),
        None => None,
    };
    Ok(uploaded)
}

/// Whether ids and labels are those of this model.
fn check(model: &Bert, batch: &TextBatch) -> Result<()> {
    Numbers::grid("input_ids", &batch.input_ids, batch, model.config().vocab_size).check(false)?;
    if let Some(types) = &batch.token_type_ids {
        Numbers::grid("token_type_ids", types, batch, model.config().type_size).check(false)?;
    }
    let wanted = match model.head_kind() {
        BertHead::Classifier { outputs } => Wanted::of_classifier(outputs, batch.choices, model.config().problem_type),
        BertHead::NextSentence => Wanted::Classes(2),
        BertHead::MaskedLm | BertHead::Pretraining => Wanted::Words,
        BertHead::None { .. } => Wanted::Nothing,
    };
    wanted.check(batch, model.config().vocab_size)?;
    match (&batch.next_sentence, model.head_kind()) {
        (None, _) | (Some(_), BertHead::None { .. }) => Ok(()),
        (Some(labels), BertHead::Pretraining) => {
            Numbers::flat("next_sentence_label", labels, batch.rows, 2).check(true)
        }
        (Some(_), _) => Err(Error::data(
            "next_sentence_label",
            "it is for pretraining, and this model has another head",
            "leave it out; the labels of every other head are called labels",
        )),
    }
}
