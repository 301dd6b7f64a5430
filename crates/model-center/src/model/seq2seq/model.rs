//! A model with two stacks of any family as stages: embeddings, the encoder's blocks, the decoder's, the head.

use super::batch::Words;
use super::decoding::Seq2SeqRows;
use super::entry::{Entry, Places};
use super::{Around, Seq2SeqBatch, Seq2SeqFamily, Seq2SeqHead, Seq2SeqHeads, directory};
use crate::data::{Batch, VerbalizerPosition};
use crate::error::Result;
use crate::formats::{DirectoryLayout, NameTable};
use crate::layer::{BlockCache, BlockConfig, Memory, PositionsConfig, Visible};
use crate::model::decoding::{Decoding, DecodingOptions, Past};
use crate::model::stack::{Stack, StackConfig, StackInput};
use crate::model::text_model::{ModelInfo, ModelOutput, PretrainedModel, no_verbalizer};
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::nn::embedding::{Embedding, EmbeddingOptions};
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::{Builder, Model, Module, Parameters};
use std::borrow::Cow;
use std::ops::Range;

/// A model with an encoder, a decoder that attends to it, and a head.
///
/// From a directory it comes through the [`Registry`](crate::model::Registry).
#[derive(Debug)]
pub struct Seq2SeqModel<C> {
    config: C,
    info: ModelInfo,
    names: NameTable,
    input_embedding: Embedding,
    /// What leads to the blocks of the encoder and of the decoder.
    entries: [Entry; 2],
    /// Of the encoder and of the decoder.
    stacks: [Stack; 2],
    heads: Seq2SeqHeads,
    parameters: Parameters,
}

impl<C: Seq2SeqFamily> Seq2SeqModel<C> {
    /// Build the model on a device; what happens to the values at birth is the builder's option.
    ///
    /// # Errors
    /// Sizes that do not fit together; no memory left.
    pub fn new(
        device: &Device,
        config: C,
        head: Seq2SeqHead,
        blocks: BlockOptions,
        options: BuilderOptions,
    ) -> Result<Self> {
        let builder = Builder::new(device, options);
        let (text, layout) = (config.text(), config.layout());
        let init = Init::normal(text.outer_std());
        let padding_index = text.pad_token_id.filter(|_| !layout.padding_learns).map(|id| id as i64);
        let table = EmbeddingOptions { entries: text.vocab_size, size: text.dim_model, init, padding_index };
        let input_embedding = Embedding::new(&builder.at("input_embedding"), table)?;
        let entry = |name, around| Entry::new(&builder, name, text, layout.word_factor, around);
        let entries = [entry("encoder", layout.encoder)?, entry("decoder", layout.decoder)?];
        let stack = |(name, layers): (&'static str, usize), around: Around, block: BlockConfig| {
            let Around { relative, output_norm, output_dropout, .. } = around;
            let positions = relative.map_or(PositionsConfig::None, PositionsConfig::Relative);
            let around = StackConfig { name, layers, positions, output_norm, output_dropout };
            Stack::new(&builder.at(name), around, blocks, |_| block)
        };
        let encoder = stack(("encoder", text.num_layers), layout.encoder, config.encoder_block())?;
        let decoder = stack(("decoder", config.decoder_layers()), layout.decoder, config.decoder_block())?;
        let heads = Seq2SeqHeads::new(&builder, head, (text.dim_model, text.vocab_size), &layout, init)?;
        let (parameters, names) = (builder.finish(), config.names(head));
        let words = (head != Seq2SeqHead::Words { tied: true }).then_some(&input_embedding);
        let tables = words.into_iter().chain(entries.iter().filter_map(Entry::learned));
        let is_classifier = matches!(head, Seq2SeqHead::Classifier { .. });
        let info = ModelInfo {
            label_names: if is_classifier { text.labels.clone() } else { Vec::new() },
            generates_targets: !is_classifier,
            decoder_start_token: config.decoder_start_token().map(|token| token as i64),
            compares_choices: false,
            embedding_parameters: tables.map(|table| table.weight().spec().shape.elements()).sum(),
            ..ModelInfo::new(text.vocab_size, text.position_size)
        };
        Ok(Seq2SeqModel {
            config,
            info,
            names,
            input_embedding,
            entries,
            stacks: [encoder, decoder],
            heads,
            parameters,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// Which head it carries.
    pub fn head_kind(&self) -> Seq2SeqHead {
        self.heads.kind()
    }

    /// What a batch is checked against.
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

/// Both stacks apart, for text that is written token by token.
impl<C: Seq2SeqFamily> Seq2SeqModel<C> {
    /// What the encoder makes of the words of a batch, `[B, S, D]`.
    ///
    /// # Errors
    /// Those of the blocks; a failing device.
    pub(super) fn encode(&self, batch: &Batch, visible: Visible, cx: &mut Ctx) -> Result<Var> {
        let (shape, stack) = ([batch.rows, batch.length], &self.stacks[0]);
        let upload = |ids: &[i64]| Tensor::from_slice_in(cx.device(), shape, ids, Segment::Data);
        let table = self.config.layout().encoder.added.table();
        let rows = table.map(|table| table.rows_of(shape[0], shape[1], batch.attention_mask.as_deref()));
        let rows = rows.map(|rows| upload(&rows)).transpose()?;
        let ids = upload(&batch.input_ids)?;
        let places = Places { rows: rows.as_ref(), reach: batch.length };
        let hidden = self.entries[0].forward(&self.input_embedding, &ids, places, cx)?; // [B, S, D]
        let input = StackInput { visible, ..StackInput::new(hidden) };
        Ok(stack.run(0..stack.layers().len(), input, cx)?) // [B, S, D]
    }

    /// What the decoder makes of further words, ids i64 `[B, L]`: `[B, L, D]`.
    ///
    /// # Errors
    /// Those of the blocks; a failing device.
    pub(super) fn decode(
        &self,
        ids: &Tensor,
        past: &Past,
        memory: Memory,
        caches: &mut [BlockCache],
        cx: &mut Ctx,
    ) -> Result<Var> {
        let ([_, length], stack) = (ids.dims("decode")?, &self.stacks[1]);
        let table = self.config.layout().decoder.added.table();
        let rows = table.map(|table| past.position_ids(table, length, cx.device())).transpose()?;
        let places = Places { rows: rows.as_ref(), reach: past.length() };
        let hidden = self.entries[1].forward(&self.input_embedding, ids, places, cx)?; // [B, L, D]
        let visible = Visible::but(past.padding(cx.device())?.as_ref());
        let numbers = past.numbers(cx.device())?;
        let (numbers, memory, caches) = (numbers.as_ref(), Some(memory), Some(caches));
        let input = StackInput { visible, numbers, memory, caches, ..StackInput::new(hidden) };
        Ok(stack.run(0..stack.layers().len(), input, cx)?) // [B, L, D]
    }

    /// The decoder's states `[B, L, D]` to the logits of the next words, `[B, L, V]`.
    ///
    /// # Errors
    /// Shapes that do not fit; a failing device.
    pub(super) fn word_logits(&self, hidden: &Var, cx: &Ctx) -> Result<Var> {
        Ok(self.heads.words(hidden, &self.input_embedding, cx)?)
    }
}

impl<C: Seq2SeqFamily> Module for Seq2SeqModel<C> {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl<C: Seq2SeqFamily> Model for Seq2SeqModel<C> {
    type Batch = Seq2SeqBatch;
    /// Hidden states of the encoder `[B, S, D]` and of the decoder `[B, L, D]`.
    type Flow = (Var, Var);
    type Output = ModelOutput;

    fn embed(&self, batch: &Seq2SeqBatch, cx: &mut Ctx) -> bmtrain_dist::Result<(Var, Var)> {
        let (words, [encoder, decoder]) = (&self.input_embedding, &self.entries);
        Ok((
            encoder.forward(words, &batch.input_ids, Places::of(&batch.input_ids, batch.position_ids.as_ref()), cx)?,
            decoder.forward(
                words,
                &batch.decoder_input_ids,
                Places::of(&batch.decoder_input_ids, batch.decoder_position_ids.as_ref()),
                cx,
            )?,
        ))
    }

    fn stacks(&self) -> Vec<usize> {
        self.stacks.iter().map(|stack| stack.layers().len()).collect()
    }

    fn run_stack(
        &self,
        stack: usize,
        range: Range<usize>,
        (encoder, decoder): (Var, Var),
        batch: &Seq2SeqBatch,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<(Var, Var)> {
        let visible = Visible::but(batch.padding.as_ref());
        if stack == 0 {
            let input = StackInput { visible, ..StackInput::new(encoder) };
            return Ok((self.stacks[0].run(range, input, cx)?, decoder)); // [B, S, D]
        }
        let memory = Some(Memory { hidden: encoder.clone(), visible });
        let visible = Visible::but(batch.decoder_padding.as_ref());
        let input = StackInput { visible, memory, ..StackInput::new(decoder) };
        Ok((encoder, self.stacks[1].run(range, input, cx)?)) // [B, L, D]
    }

    fn head(
        &self,
        (encoder, hidden): (Var, Var),
        batch: &Seq2SeqBatch,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<ModelOutput> {
        let (logits, loss) = self.heads.forward(&hidden, batch, &self.input_embedding, cx)?;
        Ok(ModelOutput { logits, extra: vec![("encoder_last_hidden_state", encoder)], loss })
    }
}

/// Labels are the tokens that the decoder is to predict; without `decoder_input_ids` it reads them shifted right. The
/// decoder of a classifier reads what the encoder does, shifted right. The hidden states shown are the encoder's up to
/// its last block, then the decoder's.
impl<C: Seq2SeqFamily> PretrainedModel for Seq2SeqModel<C> {
    type Config = C;

    fn config(&self) -> &C {
        &self.config
    }

    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn names(&self) -> &NameTable {
        &self.names
    }

    fn names_in(&self, layout: DirectoryLayout) -> Result<Cow<'_, NameTable>> {
        directory::names(self, layout)
    }

    fn class(&self) -> Cow<'_, str> {
        let classes = self.config.classes();
        let class = match self.head_kind() {
            Seq2SeqHead::None => classes.base,
            Seq2SeqHead::Words { .. } => classes.words,
            Seq2SeqHead::Classifier { .. } => classes.classifier.unwrap_or(classes.base),
        };
        class.into()
    }

    /// Not every class with a head has another suffix than a bare model's: there is `MarianMTModel`.
    fn has_prefix(&self) -> Option<bool> {
        Some(self.head_kind() != Seq2SeqHead::None)
    }

    fn rescaled(&self, parameter: &str, layout: DirectoryLayout) -> Option<fn(f32) -> f32> {
        self.config.rescaled_norm(layout).filter(|_| parameter == "decoder.output_norm.weight")
    }

    fn upload(&self, batch: &Batch, wants_logits: bool, device: &Device) -> Result<Seq2SeqBatch> {
        Ok(Seq2SeqBatch { wants_logits, ..Seq2SeqBatch::upload(device, batch, self.words())? })
    }

    fn hidden<'f>(&self, blocks: usize, (encoder, decoder): &'f (Var, Var)) -> &'f Var {
        if blocks <= self.stacks[0].layers().len() { encoder } else { decoder }
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
        self.words().check_targets()?;
        Ok(VerbalizerPosition::Sentinel { start: self.config.decoder_start_token().map(|token| token as u32) })
    }
}
