//! Encoders as a [`TextModel`]: what programs call.

use super::{EncoderBatch, EncoderFamily, EncoderHead, EncoderModel, Layout, directory};
use crate::data::Batch;
use crate::error::{Error, Result};
use crate::formats::{DirectoryLayout, NameTable};
use crate::model::labels::{Numbers, Wanted, check_length, refuse_decoder_inputs, refuse_spans, refuse_verbalizer};
use crate::model::opening::Fill;
use crate::model::registry::{SaveOptions, param_shapes};
use crate::model::text::{ModelOutput, Observe, TextModel};
use bmtrain_core::{Ctx, Var};
use bmtrain_dist::{Model, Parameters};
use std::borrow::Cow;
use std::path::Path;

impl<C: EncoderFamily> TextModel for EncoderModel<C> {
    fn parameters(&self) -> &Parameters {
        Model::parameters(self)
    }

    fn vocab_size(&self) -> usize {
        self.layout().vocab_size
    }

    fn max_length(&self) -> usize {
        self.layout().max_length()
    }

    fn names_in(&self, layout: DirectoryLayout) -> Result<Cow<'_, NameTable>> {
        directory::names(self, layout)
    }

    fn names(&self) -> &NameTable {
        self.name_table()
    }

    fn label_names(&self) -> &[String] {
        self.config().labels()
    }

    fn matmul_parameters(&self) -> usize {
        Model::parameters(self).count() - self.embedding_parameters()
    }

    fn check_save(&self, options: &SaveOptions<'_>) -> Result<()> {
        let names = directory::names(self, options.layout)?;
        directory::written(self, &names, options).check(&param_shapes(Model::parameters(self)))
    }

    fn write(&self, to: &Path, options: &SaveOptions<'_>, fill: Fill<'_>) -> Result<()> {
        let names = directory::names(self, options.layout)?;
        directory::written(self, &names, options).write(to, &param_shapes(Model::parameters(self)), fill)
    }

    fn left_out(&self, options: &SaveOptions<'_>) -> Result<Vec<String>> {
        directory::written(self, self.name_table(), options).left_out()
    }

    fn forward(&self, batch: &Batch, observe: Option<Observe<'_>>, cx: &mut Ctx) -> Result<ModelOutput> {
        let batch = upload(self, batch, cx)?;
        let output = match observe {
            None => Model::forward(self, &batch, cx)?,
            Some(observe) => {
                self.forward_observed(&batch, cx, &mut |index, flow| observe(index, flow.hidden.value()))?
            }
        };
        let mut extra = Vec::new();
        extra.extend(output.pooled.map(|pooled| ("pooler", pooled)));
        extra.extend(output.sentence_logits.map(|logits| ("seq_relationship_logits", logits)));
        Ok(ModelOutput { logits: output.logits, extra, loss: output.loss })
    }

    fn loss(&self, batch: &Batch, cx: &mut Ctx) -> Result<Option<Var>> {
        let batch = EncoderBatch { wants_logits: false, ..upload(self, batch, cx)? };
        Ok(Model::forward(self, &batch, cx)?.loss)
    }
}

fn upload<C: EncoderFamily>(model: &EncoderModel<C>, batch: &Batch, cx: &Ctx) -> Result<EncoderBatch> {
    check_length(batch.length, model.max_length())?;
    refuse_decoder_inputs(batch)?;
    refuse_spans(batch)?;
    refuse_verbalizer(batch)?;
    check(model.layout(), model.head_kind(), batch)?;
    EncoderBatch::upload(cx.device(), batch, model.layout(), model.head_kind())
}

/// Whether ids and labels are those of this model.
fn check(layout: &Layout, head: EncoderHead, batch: &Batch) -> Result<()> {
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
