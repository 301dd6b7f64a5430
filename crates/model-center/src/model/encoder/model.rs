//! The model as stages: embeddings, blocks, heads.

use super::{EncoderBatch, EncoderFamily, EncoderHead, EncoderHeads, Layout, directory};
use crate::data::Batch;
use crate::error::Result;
use crate::formats::{DirectoryLayout, NameTable};
use crate::layer::{PositionsConfig, TransformerBlock, Visible};
use crate::model::position_table::Count;
use crate::model::stack::{Stack, StackConfig, StackInput};
use crate::model::text_model::{ModelInfo, ModelOutput, PretrainedModel};
use bmtrain_core::{Ctx, Device, Var, ops};
use bmtrain_dist::block::{BlockOptions, TransformerBlockList};
use bmtrain_dist::nn::embedding::{Embedding, EmbeddingOptions};
use bmtrain_dist::nn::norm::Norm;
use bmtrain_dist::param::BuilderOptions;
use bmtrain_dist::{Builder, Model, Module, Parameters};
use std::borrow::Cow;
use std::ops::Range;

/// An encoder with its heads.
#[derive(Debug)]
pub struct EncoderModel<C> {
    config: C,
    layout: Layout,
    info: ModelInfo,
    names: NameTable,
    input_embedding: Embedding,
    position_embedding: Embedding,
    token_type_embedding: Embedding,
    embedding_norm: Norm,
    stack: Stack,
    heads: EncoderHeads,
    parameters: Parameters,
}

impl<C: EncoderFamily> EncoderModel<C> {
    /// Build the model on a device; what happens to the values at birth is the builder's option.
    ///
    /// # Errors
    /// Sizes that do not fit together; a head that the family does not have; no memory left.
    pub fn new(
        device: &Device,
        config: C,
        head: EncoderHead,
        blocks: BlockOptions,
        options: BuilderOptions,
    ) -> Result<Self> {
        head.check::<C>(config.title())?;
        let builder = Builder::new(device, options);
        let layout = config.layout();
        let table = |name: &str, entries: usize, padding_index: Option<i64>| {
            let options = EmbeddingOptions { entries, size: layout.dim_model, init: layout.table_init, padding_index };
            Embedding::new(&builder.at(name), options)
        };
        let input_embedding = table("input_embedding", layout.vocab_size, layout.pad_token_id.map(|id| id as i64))?;
        // Where positions count tokens, padding has a row, and it does not learn.
        let padding = match layout.positions.count {
            Count::Places => None,
            Count::Tokens => layout.positions.first.checked_sub(1).map(|row| row as i64),
        };
        let position_embedding = table("position_embedding", layout.position_size, padding)?;
        let token_type_embedding = table("token_type_embedding", layout.type_size, None)?;
        let embedding_norm = Norm::new(&builder.at("embedding_norm"), layout.norm)?;
        let block = config.block();
        let around = StackConfig {
            name: "encoder",
            layers: layout.num_layers,
            positions: PositionsConfig::None,
            output_norm: None,
            output_dropout: 0.0,
        };
        let stack = Stack::new(&builder.at("encoder"), around, blocks, |_| block)?;
        let heads = EncoderHeads::new(&builder, &layout, C::CLASSIFIER, head)?;
        let (parameters, names) = (builder.finish(), config.names());
        let words = (!head.has_words()).then_some(&input_embedding);
        let tables = words.into_iter().chain([&position_embedding, &token_type_embedding]);
        let info = ModelInfo {
            label_names: config.labels().to_vec(),
            has_token_types: true,
            embedding_parameters: tables.map(|table| table.weight().spec().shape.elements()).sum(),
            ..ModelInfo::new(layout.vocab_size, layout.max_length())
        };
        Ok(EncoderModel {
            config,
            layout,
            info,
            names,
            input_embedding,
            position_embedding,
            token_type_embedding,
            embedding_norm,
            stack,
            heads,
            parameters,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// What is built of it.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Which head it carries.
    pub fn head_kind(&self) -> EncoderHead {
        self.heads.kind()
    }

    /// The encoder's blocks.
    pub fn layers(&self) -> &TransformerBlockList<TransformerBlock> {
        self.stack.layers()
    }
}

impl<C: EncoderFamily> Module for EncoderModel<C> {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl<C: EncoderFamily> Model for EncoderModel<C> {
    type Batch = EncoderBatch;
    type Flow = Var;
    type Output = ModelOutput;

    fn embed(&self, batch: &EncoderBatch, cx: &mut Ctx) -> bmtrain_dist::Result<Var> {
        let words = self.input_embedding.forward(&batch.input_ids, cx)?; // [B, L, D]
        let placed = self.position_embedding.add_to(words, &batch.position_ids, cx)?; // [B, L, D]
        let typed = self.token_type_embedding.add_to(placed, &batch.token_type_ids, cx)?; // [B, L, D]
        let hidden = self.embedding_norm.forward(&typed, cx)?; // [B, L, D]
        drop(typed);
        let dropout = cx.dropout("embedding", self.layout.dropout_p)?;
        Ok(ops::dropout(cx, &hidden, dropout)?) // [B, L, D]
    }

    fn stacks(&self) -> Vec<usize> {
        vec![self.stack.layers().len()]
    }

    fn run_stack(
        &self,
        _: usize,
        range: Range<usize>,
        hidden: Var,
        batch: &EncoderBatch,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<Var> {
        let visible = Visible::but(batch.padding.as_ref());
        self.stack.run(range, StackInput { visible, ..StackInput::new(hidden) }, cx) // [B, L, D]
    }

    fn head(&self, hidden: Var, batch: &EncoderBatch, cx: &mut Ctx) -> bmtrain_dist::Result<ModelOutput> {
        let output = self.heads.forward(hidden, batch, &self.input_embedding, cx)?;
        let pooler = output.pooled.map(|pooled| ("pooler", pooled));
        let sentences = output.sentence_logits.map(|logits| ("seq_relationship_logits", logits));
        let extra = pooler.into_iter().chain(sentences).collect();
        Ok(ModelOutput { logits: output.logits, extra, loss: output.loss })
    }
}

impl<C: EncoderFamily> PretrainedModel for EncoderModel<C> {
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
        format!("{}{}", self.config.class_prefix(), directory::class_suffix(self.head_kind())).into()
    }

    fn upload(&self, batch: &Batch, wants_logits: bool, device: &Device) -> Result<EncoderBatch> {
        EncoderBatch::upload(device, batch, (&self.layout, self.head_kind()), wants_logits)
    }

    fn hidden<'f>(&self, _: usize, flow: &'f Var) -> &'f Var {
        flow
    }
}
