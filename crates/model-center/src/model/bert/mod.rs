//! BERT (Devlin et al., 2019): embeddings, a post-norm encoder, and the heads people train.
//!
//! [`encoder`] holds the block and its list, [`heads`] what comes behind; this file puts the stages together.

pub mod batch;
pub mod encoder;
pub mod heads;
pub mod names;
mod text;

pub use batch::BertBatch;
pub use heads::{BertHead, BertHeads, BertOutput};

use crate::config::BertConfig;
use crate::error::Result;
use crate::layer::TransformerBlock;
use crate::model::flow::TextFlow;
use bmtrain_core::{Ctx, Device, Var, ops};
use bmtrain_dist::block::{BlockOptions, TransformerBlockList};
use bmtrain_dist::nn::embedding::{Embedding, EmbeddingOptions};
use bmtrain_dist::nn::norm::{Norm, NormOptions};
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::{Builder, Model, Parameters, Section};

/// A BERT with its heads.
#[derive(Debug)]
pub struct Bert {
    config: BertConfig,
    input_embedding: Embedding,
    position_embedding: Embedding,
    token_type_embedding: Embedding,
    embedding_norm: Norm,
    layers: TransformerBlockList<TransformerBlock>,
    heads: BertHeads,
    parameters: Parameters,
}

impl Bert {
    /// Build the model on a device; what happens to the values at birth is the builder's option.
    ///
    /// # Errors
    /// Sizes that do not fit together; no memory left.
    pub fn new(
        device: &Device,
        config: BertConfig,
        head: BertHead,
        blocks: BlockOptions,
        options: BuilderOptions,
    ) -> Result<Self> {
        let builder = Builder::new(device, options);
        let table = |name: &str, entries: usize, padding_index: Option<i64>| {
            let init = Init::normal(config.emb_init_std);
            let options = EmbeddingOptions { entries, size: config.dim_model, init, padding_index };
            Embedding::new(&builder.at(name), options)
        };
        let input_embedding = table("input_embedding", config.vocab_size, config.pad_token_id.map(|id| id as i64))?;
        let position_embedding = table("position_embedding", config.position_size, None)?;
        let token_type_embedding = table("token_type_embedding", config.type_size, None)?;
        let norm = NormOptions::layer(config.dim_model, config.norm_eps);
        let embedding_norm = Norm::new(&builder.at("embedding_norm"), norm)?;
        let layers = encoder::build(&builder.at("encoder").at("layers"), &config, blocks)?;
        let heads = BertHeads::new(&builder, &config, head)?;
        let parameters = builder.finish();
        Ok(Bert {
            config,
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
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// Which head it carries.
    pub fn head_kind(&self) -> BertHead {
        self.heads.kind()
    }

    /// Values of the tables in which rows are looked up. The words' table is not among them where a head projects onto it.
    pub fn looked_up_values(&self) -> usize {
        let words = (!self.head_kind().has_words()).then_some(&self.input_embedding);
        let tables = words.into_iter().chain([&self.position_embedding, &self.token_type_embedding]);
        tables.map(|table| table.weight().spec().shape.elements()).sum()
    }

    /// The encoder's blocks.
    pub fn layers(&self) -> &TransformerBlockList<TransformerBlock> {
        &self.layers
    }
}

impl Model for Bert {
    type Batch = BertBatch;
    type Flow = TextFlow;
    type Output = BertOutput;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn embed(&self, batch: &BertBatch, cx: &mut Ctx) -> bmtrain_dist::Result<TextFlow> {
        let words = self.input_embedding.forward(&batch.input_ids, cx)?; // [B, L, D]
        let placed = self.position_embedding.add_to(words, &batch.position_ids, cx)?; // [B, L, D]
        let typed = self.token_type_embedding.add_to(placed, &batch.token_type_ids, cx)?; // [B, L, D]
        let hidden: Var = self.embedding_norm.forward(&typed, cx)?; // [B, L, D]
        drop(typed);
        let dropout = cx.dropout("embedding", self.config.dropout_p)?;
        let hidden = ops::dropout(cx, &hidden, dropout)?; // [B, L, D]
        Ok(TextFlow { hidden, padding: batch.padding.clone() })
    }

    fn sections(&self) -> Vec<&dyn Section<Self>> {
        vec![&self.layers]
    }

    fn head(&self, flow: TextFlow, batch: &BertBatch, cx: &mut Ctx) -> bmtrain_dist::Result<BertOutput> {
        self.heads.forward(flow.hidden, batch, &self.input_embedding, cx)
    }
}
