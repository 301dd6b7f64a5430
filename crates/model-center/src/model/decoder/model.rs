//! A decoder of any family as stages: embeddings, blocks, heads.

use super::decoding::DecoderRows;
use super::{
    Decoder, DecoderBatch, DecoderFacts, DecoderFamily, DecoderHead, DecoderHeads, DecoderOutput, DecoderStack,
};
use super::{Layout, directory};
use crate::data::Batch;
use crate::data::VerbalizerPosition;
use crate::error::Result;
use crate::formats::{DirectoryLayout, NameTable};
use crate::layer::attention::length_scaled;
use crate::model::decoding::{Decoding, DecodingOptions};
use crate::model::flow::TextFlow;
use crate::model::opening::Fill;
use crate::model::registry::{SaveOptions, param_shapes};
use crate::model::text::{ModelOutput, Observe, TextModel, no_verbalizer};
use bmtrain_core::{Ctx, Device, Var, ops};
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::nn::embedding::{Embedding, EmbeddingOptions};
use bmtrain_dist::nn::linear::{Linear, LinearOptions};
use bmtrain_dist::nn::norm::Norm;
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::{Builder, Model, Parameters, Section};
use std::borrow::Cow;
use std::path::Path;

/// A decoder with its head.
///
/// From a directory it comes through the [`Registry`](crate::model::Registry); this is one from a configuration alone,
/// and a step of its training:
///
/// ```
/// use bmtrain_dist::bmtrain_core::{Ctx, Device, autograd::Randomness, kernel::NormOrder};
/// use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
/// use bmtrain_dist::{OptimManager, block::BlockOptions, param::BuilderOptions};
/// use model_center::config::{Gpt2Config, TextConfig};
/// use model_center::model::{Batch, TextModel, decoder::DecoderHead, gpt2::Gpt2};
///
/// let device = Device::cpu(1)?;
/// let text = TextConfig { vocab_size: 50, dim_model: 24, num_heads: 2, dim_head: 12, num_layers: 2, ..Gpt2Config::default().text };
/// let config = Gpt2Config { text, ..Gpt2Config::default() };
/// let head = DecoderHead::CausalLm { tied: true };
/// let model = Gpt2::new(&device, config, head, BlockOptions::default(), BuilderOptions::default())?;
/// let adam = Adam::new(ParamGroup::by_decay(TextModel::parameters(&model), 0.01), AdamOptions::default())?;
/// let mut optim = OptimManager::new(&device, Clip { order: NormOrder::Two, max_norm: 1.0 })?;
/// optim.add(Box::new(adam), 1e-3);
/// // Two rows of four tokens; labels are the tokens themselves.
/// let batch = Batch::next_tokens(4, vec![3, 1, 4, 1, 5, 9, 2, 6], None);
/// let mut cx = Ctx::training(&device, Randomness { seed: 7, step: 0, micro_batch: 0 });
/// if let Some(loss) = model.loss(&batch, &mut cx)? {
///     optim.backward(&loss, 1.0, &mut cx)?;
///     optim.step()?;
///     // As many words are equally likely.
///     assert!((loss.value().item()? - 50f32.ln()).abs() < 0.1);
/// }
/// # Ok::<(), model_center::Error>(())
/// ```
#[derive(Debug)]
pub struct DecoderModel<C> {
    config: C,
    layout: Layout,
    names: NameTable,
    input_embedding: Embedding,
    position_embedding: Option<Embedding>,
    /// From the words' rows to D, where they are of another length.
    project_in: Option<Linear>,
    embedding_norm: Option<Norm>,
    decoder: DecoderStack,
    heads: DecoderHeads,
    parameters: Parameters,
}

impl<C: DecoderFamily> DecoderModel<C> {
    /// Build the model on a device; what happens to the values at birth is the builder's option.
    ///
    /// # Errors
    /// Sizes that do not fit together; no memory left.
    pub fn new(
        device: &Device,
        config: C,
        head: DecoderHead,
        blocks: BlockOptions,
        options: BuilderOptions,
    ) -> Result<Self> {
        let builder = Builder::new(device, options);
        let (text, layout) = (config.text(), config.layout());
        let dim_model = text.dim_model;
        let init = Init::normal(text.outer_std());
        let table = |name: &str, entries: usize, size: usize, padding_index: Option<i64>| {
            Embedding::new(&builder.at(name), EmbeddingOptions { entries, size, init, padding_index })
        };
        let padding = text.pad_token_id.filter(|_| !layout.padding_learns).map(|id| id as i64);
        let input_embedding = table("input_embedding", text.vocab_size, layout.word_size, padding)?;
        let position_embedding = match layout.table {
            Some(positions) => {
                let rows = positions.first + text.position_size;
                Some(table("position_embedding", rows, dim_model, None)?)
            }
            None => None,
        };
        let map = |name: &str, from, to| match layout.word_size == dim_model {
            true => Ok(None),
            false => Linear::new(&builder.at(name), LinearOptions::new(from, to, false, init)).map(Some),
        };
        let project_in = map("project_in", layout.word_size, dim_model)?;
        let project_out = map("project_out", dim_model, layout.word_size)?;
        let embedding_norm = match layout.embedding_norm {
            Some(norm) => Some(Norm::new(&builder.at("embedding_norm"), norm)?),
            None => None,
        };
        let around = (layout.positions.clone(), layout.output_norm);
        let decoder =
            DecoderStack::new(&builder.at("decoder"), around, text.num_layers, blocks, |layer| config.block(layer))?
                .leading_to(project_out);
        let sizes = (layout.word_size, text.vocab_size);
        let heads = DecoderHeads::new(&builder, head, sizes, layout.head_bias, init)?;
        let (parameters, names) = (builder.finish(), config.names(head));
        Ok(DecoderModel {
            config,
            layout,
            names,
            input_embedding,
            position_embedding,
            project_in,
            embedding_norm,
            decoder,
            heads,
            parameters,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// The blocks, and what stands around them.
    pub(super) fn blocks(&self) -> &DecoderStack {
        &self.decoder
    }

    /// Which head it carries.
    pub fn head_kind(&self) -> DecoderHead {
        self.heads.kind()
    }
}

impl<C: DecoderFamily> Model for DecoderModel<C> {
    type Batch = DecoderBatch;
    type Flow = TextFlow;
    type Output = DecoderOutput;

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn embed(&self, batch: &DecoderBatch, cx: &mut Ctx) -> bmtrain_dist::Result<TextFlow> {
        let words = self.input_embedding.forward(&batch.input_ids, cx)?; // [B, L, word_size]
        let mut hidden = length_scaled(&words, self.layout.length_scale, cx)?; // [B, L, word_size]
        drop(words);
        if let Some(project_in) = &self.project_in {
            hidden = project_in.forward(&hidden, cx)?; // [B, L, D]
        }
        if let (Some(table), Some(positions)) = (&self.position_embedding, &batch.position_ids) {
            hidden = table.add_to(hidden, positions, cx)?; // [B, L, D]
        }
        if let Some(norm) = &self.embedding_norm {
            hidden = norm.forward(&hidden, cx)?; // [B, L, D]
        }
        let dropout = cx.dropout("embedding", self.config.text().embedding_dropout_p)?;
        let hidden = ops::dropout(cx, &hidden, dropout)?; // [B, L, D]
        Ok(TextFlow { hidden, padding: batch.padding.clone() })
    }

    fn sections(&self) -> Vec<&dyn Section<Self>> {
        vec![&self.decoder]
    }

    fn head(&self, flow: TextFlow, batch: &DecoderBatch, cx: &mut Ctx) -> bmtrain_dist::Result<DecoderOutput> {
        let scaled = length_scaled(&flow.hidden, self.layout.length_scale, cx)?; // [B, L, word_size]
        let output = self.heads.forward(scaled, batch, &self.input_embedding, cx)?;
        Ok(DecoderOutput { hidden: flow.hidden, ..output })
    }
}

impl<C: DecoderFamily> Decoder for DecoderModel<C> {
    fn facts(&self) -> DecoderFacts {
        let text = self.config.text();
        DecoderFacts {
            vocab_size: text.vocab_size,
            max_length: self.layout.positions.reach(text.position_size),
            pad_token_id: text.pad_token_id,
            problem_type: text.problem_type,
            head: self.head_kind(),
            table: self.layout.table,
            has_spans: C::HAS_SPANS,
        }
    }
}

impl<C: DecoderFamily> TextModel for DecoderModel<C> {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn vocab_size(&self) -> usize {
        self.config.text().vocab_size
    }

    fn max_length(&self) -> usize {
        self.layout.positions.reach(self.config.text().position_size)
    }

    fn names_in(&self, layout: DirectoryLayout) -> Result<Cow<'_, NameTable>> {
        directory::names(self, layout)
    }

    fn names(&self) -> &NameTable {
        &self.names
    }

    fn label_names(&self) -> &[String] {
        &self.config.text().labels
    }

    fn has_token_types(&self) -> bool {
        false
    }

    fn verbalizer_position(&self) -> Result<VerbalizerPosition> {
        match (self.head_kind(), C::HAS_SPANS) {
            (DecoderHead::CausalLm { .. }, true) => Ok(VerbalizerPosition::Blank),
            (DecoderHead::CausalLm { .. }, false) => Ok(VerbalizerPosition::Next),
            (DecoderHead::None | DecoderHead::Classifier { .. }, _) => Err(no_verbalizer(C::TITLE)),
        }
    }

    fn matmul_parameters(&self) -> usize {
        let is_multiplied = matches!(self.head_kind(), DecoderHead::CausalLm { tied: true });
        let words = (!is_multiplied).then_some(&self.input_embedding);
        let tables = words.into_iter().chain(&self.position_embedding);
        let looked_up: usize = tables.map(|table| table.weight().spec().shape.elements()).sum();
        self.parameters.count() - looked_up
    }

    fn check_save(&self, options: &SaveOptions<'_>) -> Result<()> {
        let names = directory::names(self, options.layout)?;
        directory::written(self, &names, options).check(&param_shapes(&self.parameters))
    }

    fn write(&self, directory: &Path, options: &SaveOptions<'_>, fill: Fill<'_>) -> Result<()> {
        let names = directory::names(self, options.layout)?;
        directory::written(self, &names, options).write(directory, &param_shapes(&self.parameters), fill)
    }

    fn left_out(&self, options: &SaveOptions<'_>) -> Result<Vec<String>> {
        directory::written(self, &self.names, options).left_out()
    }

    fn decoding<'a>(&'a self, options: DecodingOptions<'_>, _cx: &mut Ctx) -> Result<Box<dyn Decoding + 'a>> {
        Ok(Box::new(DecoderRows::new(self, options)?))
    }

    fn forward(&self, batch: &Batch, observe: Option<Observe<'_>>, cx: &mut Ctx) -> Result<ModelOutput> {
        Decoder::scored(self, batch, observe, cx)
    }

    fn loss(&self, batch: &Batch, cx: &mut Ctx) -> Result<Option<Var>> {
        Decoder::loss(self, batch, cx)
    }
}
