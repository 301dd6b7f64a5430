//! Models with two stacks as [`TextModel`]s: what programs call.

use super::batch::Words;
use super::decoding::Seq2SeqRows;
use super::{Seq2SeqBatch, Seq2SeqFamily, Seq2SeqHead, Seq2SeqModel, directory};
use crate::data::Batch;
use crate::data::VerbalizerPosition;
use crate::error::Result;
use crate::formats::{DirectoryLayout, NameTable};
use crate::model::decoding::{Decoding, DecodingOptions};
use crate::model::opening::Fill;
use crate::model::registry::{SaveOptions, param_shapes};
use crate::model::text::{ModelOutput, Observe, TextModel, no_verbalizer};
use bmtrain_core::{Ctx, Var};
use bmtrain_dist::{Model, Parameters};
use std::borrow::Cow;
use std::path::Path;

/// What is rescaled on the way into files of another program.
const LAST_NORM: &str = "decoder.output_norm.weight";

impl<C: Seq2SeqFamily> Seq2SeqModel<C> {
    fn upload(&self, batch: &Batch, cx: &Ctx) -> Result<Seq2SeqBatch> {
        Seq2SeqBatch::upload(cx.device(), batch, self.words())
    }

    fn words(&self) -> Words {
        let (text, layout) = (self.config().text(), self.config().layout());
        Words {
            vocab_size: text.vocab_size,
            max_length: text.position_size,
            first: self.config().decoder_start_token(),
            pad: text.pad_token_id,
            head: self.head_kind(),
            problem: text.problem_type,
            last: self.config().last_word(),
            tables: [layout.encoder, layout.decoder].map(|around| around.added.table()),
        }
    }
}

impl<C: Seq2SeqFamily> TextModel for Seq2SeqModel<C> {
    fn parameters(&self) -> &Parameters {
        Model::parameters(self)
    }

    fn vocab_size(&self) -> usize {
        self.config().text().vocab_size
    }

    fn max_length(&self) -> usize {
        self.config().text().position_size
    }

    fn names_in(&self, layout: DirectoryLayout) -> Result<Cow<'_, NameTable>> {
        directory::names(self, layout)
    }

    fn names(&self) -> &NameTable {
        self.name_table()
    }

    fn label_names(&self) -> &[String] {
        match self.head_kind() {
            Seq2SeqHead::Classifier { .. } => &self.config().text().labels,
            Seq2SeqHead::None | Seq2SeqHead::Words { .. } => &[],
        }
    }

    fn has_token_types(&self) -> bool {
        false
    }

    fn generates_targets(&self) -> bool {
        !matches!(self.head_kind(), Seq2SeqHead::Classifier { .. })
    }

    fn decoder_start_token(&self) -> Option<i64> {
        self.config().decoder_start_token().map(|word| word as i64)
    }

    fn decoding<'a>(&'a self, options: DecodingOptions<'_>, cx: &mut Ctx) -> Result<Box<dyn Decoding + 'a>> {
        Ok(Box::new(Seq2SeqRows::new(self, options, cx)?))
    }

    fn check_targets(&self) -> Result<()> {
        self.words().check_targets()
    }

    fn verbalizer_position(&self) -> Result<VerbalizerPosition> {
        if !matches!(self.head_kind(), Seq2SeqHead::Words { .. }) {
            return Err(no_verbalizer(C::TITLE));
        }
        if C::BEGINS_WITH_SENTINELS {
            return Ok(VerbalizerPosition::Sentinel { start: None });
        }
        self.check_targets()?;
        Ok(VerbalizerPosition::Sentinel { start: self.config().decoder_start_token().map(|word| word as u32) })
    }

    fn compares_choices(&self) -> bool {
        false
    }

    fn matmul_parameters(&self) -> usize {
        Model::parameters(self).count() - self.embedding_parameters()
    }

    fn check_save(&self, options: &SaveOptions<'_>) -> Result<()> {
        let names = directory::names(self, options.layout)?;
        directory::written(self, &names, options).check(&param_shapes(Model::parameters(self)))
    }

    fn write(&self, directory: &Path, options: &SaveOptions<'_>, fill: Fill<'_>) -> Result<()> {
        let names = directory::names(self, options.layout)?;
        let rescaled = self.config().rescaled_norm(options.layout);
        directory::written(self, &names, options).write(
            directory,
            &param_shapes(Model::parameters(self)),
            |name, values| {
                fill(name, values)?;
                if let Some(rescaled) = rescaled.filter(|_| name == LAST_NORM) {
                    values.iter_mut().for_each(|value| *value = rescaled(*value));
                }
                Ok(())
            },
        )
    }

    fn left_out(&self, options: &SaveOptions<'_>) -> Result<Vec<String>> {
        directory::written(self, self.name_table(), options).left_out()
    }

    /// Labels are given for the word that each position of the decoder is to predict; without `decoder_input_ids` it
    /// reads them moved by one. The decoder of a classifier reads what the encoder does, moved by one. The states shown
    /// are the encoder's up to its last block, then the decoder's.
    fn forward(&self, batch: &Batch, observe: Option<Observe<'_>>, cx: &mut Ctx) -> Result<ModelOutput> {
        let batch = self.upload(batch, cx)?;
        let encoder_blocks = self.config().text().num_layers;
        let output = match observe {
            None => Model::forward(self, &batch, cx)?,
            Some(observe) => self.forward_observed(&batch, cx, &mut |index, flow| {
                let stack = if index <= encoder_blocks { &flow.encoder } else { &flow.decoder };
                observe(index, stack.value())
            })?,
        };
        let extra = vec![("encoder_last_hidden_state", output.encoder)];
        Ok(ModelOutput { logits: output.logits, extra, loss: output.loss })
    }

    fn loss(&self, batch: &Batch, cx: &mut Ctx) -> Result<Option<Var>> {
        let batch = Seq2SeqBatch { wants_logits: false, ..self.upload(batch, cx)? };
        Ok(Model::forward(self, &batch, cx)?.loss)
    }
}
