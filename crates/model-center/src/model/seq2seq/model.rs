//! A model with two stacks of any family as stages: embeddings, the encoder's blocks, the decoder's, the head.

use super::entry::{Entry, Places};
use super::{Around, Seq2SeqBatch, Seq2SeqFamily, Seq2SeqFlow, Seq2SeqHead, Seq2SeqHeads, Seq2SeqOutput};
use crate::data::Batch;
use crate::error::Result;
use crate::formats::NameTable;
use crate::layer::{BlockCache, BlockConfig, Memory, PositionsConfig, Visible};
use crate::model::decoding::Past;
use crate::model::stack::{Stack, StackConfig, StackInput};
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::nn::embedding::{Embedding, EmbeddingOptions};
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::{Builder, Model, Parameters, Section};
use std::ops::Range;

/// A model with an encoder, a decoder that attends to it, and a head.
///
/// From a directory it comes through the [`Registry`](crate::model::Registry).
#[derive(Debug)]
pub struct Seq2SeqModel<C> {
    config: C,
    names: NameTable,
    input_embedding: Embedding,
    /// What leads to the blocks of the encoder and of the decoder.
    entries: [Entry; 2],
    encoder: EncoderSection,
    decoder: DecoderSection,
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
        let (encoder, decoder) = (EncoderSection(encoder), DecoderSection(decoder));
        Ok(Seq2SeqModel { config, names, input_embedding, entries, encoder, decoder, heads, parameters })
    }

    /// The configuration.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// Which head it carries.
    pub fn head_kind(&self) -> Seq2SeqHead {
        self.heads.kind()
    }

    /// How parameters are called in files.
    pub(super) fn name_table(&self) -> &NameTable {
        &self.names
    }

    /// Values of tables that rows are only looked up in.
    pub(super) fn embedding_parameters(&self) -> usize {
        let is_multiplied = self.head_kind() == Seq2SeqHead::Words { tied: true };
        let words = (!is_multiplied).then_some(&self.input_embedding);
        let tables = words.into_iter().chain(self.entries.iter().filter_map(Entry::learned));
        tables.map(|table| table.weight().spec().shape.elements()).sum()
    }
}

/// Both stacks apart, for text that is written token by token.
impl<C: Seq2SeqFamily> Seq2SeqModel<C> {
    /// What the encoder makes of the words of a batch, `[B, S, D]`.
    ///
    /// # Errors
    /// Those of the blocks; a failing device.
    pub(super) fn encode(&self, batch: &Batch, visible: Visible, cx: &mut Ctx) -> Result<Var> {
        let (shape, stack) = ([batch.rows, batch.length], &self.encoder.0);
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
        let ([_, length], stack) = (ids.dims("decode")?, &self.decoder.0);
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

impl<C: Seq2SeqFamily> Model for Seq2SeqModel<C> {
    type Batch = Seq2SeqBatch;
    type Flow = Seq2SeqFlow;
    type Output = Seq2SeqOutput;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn embed(&self, batch: &Seq2SeqBatch, cx: &mut Ctx) -> bmtrain_dist::Result<Seq2SeqFlow> {
        let (words, [encoder, decoder]) = (&self.input_embedding, &self.entries);
        Ok(Seq2SeqFlow {
            encoder: encoder.forward(
                words,
                &batch.input_ids,
                Places::of(&batch.input_ids, batch.position_ids.as_ref()),
                cx,
            )?,
            decoder: decoder.forward(
                words,
                &batch.decoder_input_ids,
                Places::of(&batch.decoder_input_ids, batch.decoder_position_ids.as_ref()),
                cx,
            )?,
            padding: batch.padding.clone(),
            decoder_padding: batch.decoder_padding.clone(),
        })
    }

    fn sections(&self) -> Vec<&dyn Section<Self>> {
        vec![&self.encoder, &self.decoder]
    }

    fn head(&self, flow: Seq2SeqFlow, batch: &Seq2SeqBatch, cx: &mut Ctx) -> bmtrain_dist::Result<Seq2SeqOutput> {
        let Seq2SeqFlow { encoder, decoder: hidden, .. } = flow;
        let (logits, loss) = self.heads.forward(&hidden, batch, &self.input_embedding, cx)?;
        Ok(Seq2SeqOutput { hidden, encoder, logits, loss })
    }
}

/// The encoder's blocks: every token sees all others.
#[derive(Debug)]
struct EncoderSection(Stack);

/// The decoder's blocks: every token sees those before it and the whole encoder.
#[derive(Debug)]
struct DecoderSection(Stack);

impl<M: Model<Batch = Seq2SeqBatch, Flow = Seq2SeqFlow>> Section<M> for EncoderSection {
    fn len(&self) -> usize {
        self.0.layers().len()
    }

    fn run(
        &self,
        range: Range<usize>,
        flow: Seq2SeqFlow,
        _: &Seq2SeqBatch,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<Seq2SeqFlow> {
        let Seq2SeqFlow { encoder: hidden, decoder, padding, decoder_padding } = flow;
        let input = StackInput { visible: Visible::but(padding.as_ref()), ..StackInput::new(hidden) };
        let encoder = self.0.run(range, input, cx)?; // [B, S, D]
        Ok(Seq2SeqFlow { encoder, decoder, padding, decoder_padding })
    }
}

impl<M: Model<Batch = Seq2SeqBatch, Flow = Seq2SeqFlow>> Section<M> for DecoderSection {
    fn len(&self) -> usize {
        self.0.layers().len()
    }

    fn run(
        &self,
        range: Range<usize>,
        flow: Seq2SeqFlow,
        _: &Seq2SeqBatch,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<Seq2SeqFlow> {
        let Seq2SeqFlow { encoder, decoder: hidden, padding, decoder_padding } = flow;
        let memory = Some(Memory { hidden: encoder.clone(), visible: Visible::but(padding.as_ref()) });
        let input = StackInput { visible: Visible::but(decoder_padding.as_ref()), memory, ..StackInput::new(hidden) };
        let decoder = self.0.run(range, input, cx)?; // [B, L, D]
        Ok(Seq2SeqFlow { encoder, decoder, padding, decoder_padding })
    }
}
