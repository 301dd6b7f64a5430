//! The model as stages: embeddings, blocks, heads.

use super::{EncoderBatch, EncoderFamily, EncoderHead, EncoderHeads, EncoderOutput, Layout};
use crate::error::Result;
use crate::formats::NameTable;
use crate::layer::TransformerBlock;
use crate::model::flow::TextFlow;
use crate::model::position_table::Count;
use bmtrain_core::{Ctx, Device, Var, ops};
use bmtrain_dist::block::{BlockOptions, TransformerBlockList};
use bmtrain_dist::nn::embedding::{Embedding, EmbeddingOptions};
use bmtrain_dist::nn::norm::Norm;
use bmtrain_dist::param::BuilderOptions;
use bmtrain_dist::{Builder, Model, Parameters, Section};

/// An encoder with its heads.
#[derive(Debug)]
pub struct EncoderModel<C> {
    config: C,
    layout: Layout,
    names: NameTable,
    input_embedding: Embedding,
    position_embedding: Embedding,
    token_type_embedding: Embedding,
    embedding_norm: Norm,
    layers: TransformerBlockList<TransformerBlock>,
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
        let within = builder.at("encoder").at("layers");
        let layers = TransformerBlockList::build(&within, layout.num_layers, blocks, |_, builder| {
            TransformerBlock::new(builder, block)
        })?;
        let heads = EncoderHeads::new(&builder, &layout, C::CLASSIFIER, head)?;
        let (parameters, names) = (builder.finish(), config.names());
        Ok(EncoderModel {
            config,
            layout,
            names,
            input_embedding,
            position_embedding,
            token_type_embedding,
            embedding_norm,
            layers,
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

    /// Values of the tables in which rows are looked up. The words' table is not among them where a head projects onto
    /// it.
    pub fn embedding_parameters(&self) -> usize {
        let words = (!self.head_kind().has_words()).then_some(&self.input_embedding);
        let tables = words.into_iter().chain([&self.position_embedding, &self.token_type_embedding]);
        tables.map(|table| table.weight().spec().shape.elements()).sum()
    }

    /// The encoder's blocks.
    pub fn layers(&self) -> &TransformerBlockList<TransformerBlock> {
        &self.layers
    }

    pub(super) fn name_table(&self) -> &NameTable {
        &self.names
    }
}

impl<C: EncoderFamily> Model for EncoderModel<C> {
    type Batch = EncoderBatch;
    type Flow = TextFlow;
    type Output = EncoderOutput;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn embed(&self, batch: &EncoderBatch, cx: &mut Ctx) -> bmtrain_dist::Result<TextFlow> {
        let words = self.input_embedding.forward(&batch.input_ids, cx)?; // [B, L, D]
        let placed = self.position_embedding.add_to(words, &batch.position_ids, cx)?; // [B, L, D]
        let typed = self.token_type_embedding.add_to(placed, &batch.token_type_ids, cx)?; // [B, L, D]
        let hidden: Var = self.embedding_norm.forward(&typed, cx)?; // [B, L, D]
        drop(typed);
        let dropout = cx.dropout("embedding", self.layout.dropout_p)?;
        let hidden = ops::dropout(cx, &hidden, dropout)?; // [B, L, D]
        Ok(TextFlow { hidden, padding: batch.padding.clone() })
    }

    fn sections(&self) -> Vec<&dyn Section<Self>> {
        vec![&self.layers]
    }

    fn head(&self, flow: TextFlow, batch: &EncoderBatch, cx: &mut Ctx) -> bmtrain_dist::Result<EncoderOutput> {
        self.heads.forward(flow.hidden, batch, &self.input_embedding, cx)
    }
}
