//! A decoder of any family as stages: embeddings, blocks, heads.

use super::decoding::DecoderRows;
use super::{DecoderBatch, DecoderFamily, DecoderHead, DecoderHeads, Layout, directory};
use crate::data::{Batch, VerbalizerPosition};
use crate::error::Result;
use crate::formats::{DirectoryLayout, NameTable};
use crate::layer::attention::length_scaled;
use crate::layer::{BlockCache, Visible};
use crate::model::decoding::{Decoding, DecodingOptions};
use crate::model::stack::{Stack, StackConfig, StackInput};
use crate::model::text_model::{ModelInfo, ModelOutput, PretrainedModel, no_verbalizer};
use bmtrain_core::{Ctx, Device, Var, ops};
use bmtrain_dist::block::BlockOptions;
use bmtrain_dist::nn::embedding::{Embedding, EmbeddingOptions};
use bmtrain_dist::nn::linear::{Linear, LinearOptions};
use bmtrain_dist::nn::norm::Norm;
use bmtrain_dist::param::{BuilderOptions, Init};
use bmtrain_dist::{Builder, Model, Module, Parameters};
use std::borrow::Cow;
use std::ops::Range;

/// A decoder with its head.
///
/// From a directory it comes through the [`Registry`](crate::model::Registry); this is one from a configuration alone,
/// and a step of its training:
///
/// ```
/// use bmtrain_dist::bmtrain_core::{Ctx, Device, autograd::Randomness, kernel::NormOrder};
/// use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
/// use bmtrain_dist::{Module, OptimManager, block::BlockOptions, param::BuilderOptions};
/// use model_center::config::{Gpt2Config, TextConfig};
/// use model_center::model::{Batch, TextModel, decoder::DecoderHead, gpt2::Gpt2};
///
/// let device = Device::cpu(1)?;
/// let text = TextConfig { vocab_size: 50, dim_model: 24, num_heads: 2, dim_head: 12, num_layers: 2, ..Gpt2Config::default().text };
/// let config = Gpt2Config { text, ..Gpt2Config::default() };
/// let head = DecoderHead::CausalLm { tied: true };
/// let model = Gpt2::new(&device, config, head, BlockOptions::default(), BuilderOptions::default())?;
/// let adam = Adam::new(ParamGroup::by_decay(model.parameters(), 0.01), AdamOptions::default())?;
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
    info: ModelInfo,
    names: NameTable,
    input_embedding: Embedding,
    position_embedding: Option<Embedding>,
    /// From the words' rows to D, where they are of another length.
    project_in: Option<Linear>,
    embedding_norm: Option<Norm>,
    stack: Stack,
    project_out: Option<Linear>,
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
        let around = StackConfig {
            name: "decoder",
            layers: text.num_layers,
            positions: layout.positions.clone(),
            output_norm: layout.output_norm,
            output_dropout: 0.0,
        };
        let stack = Stack::new(&builder.at("decoder"), around, blocks, |layer| config.block(layer))?;
        let sizes = (layout.word_size, text.vocab_size);
        let heads = DecoderHeads::new(&builder, head, sizes, layout.head_bias, init)?;
        let (parameters, names) = (builder.finish(), config.names(head));
        let words = (head != DecoderHead::CausalLm { tied: true }).then_some(&input_embedding);
        let tables = words.into_iter().chain(&position_embedding);
        let info = ModelInfo {
            label_names: text.labels.clone(),
            embedding_parameters: tables.map(|table| table.weight().spec().shape.elements()).sum(),
            ..ModelInfo::new(text.vocab_size, layout.positions.reach(text.position_size))
        };
        Ok(DecoderModel {
            config,
            layout,
            info,
            names,
            input_embedding,
            position_embedding,
            project_in,
            embedding_norm,
            stack,
            project_out,
            heads,
            parameters,
        })
    }

    /// The configuration.
    pub fn config(&self) -> &C {
        &self.config
    }

    /// The blocks and their norm.
    pub(super) fn stack(&self) -> &Stack {
        &self.stack
    }

    /// The positions that are added to the embeddings, and all others.
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The blocks `range` and, with the last, the projection that follows them. With caches, one for each of these
    /// blocks, the tokens follow the cached ones, and the batch has the padding and the numbers of all of them.
    pub(super) fn run(
        &self,
        range: Range<usize>,
        hidden: Var,
        batch: &DecoderBatch,
        caches: Option<&mut [BlockCache]>,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<Var> {
        let is_last = range.end == self.stack.layers().len();
        let visible = match &batch.visible {
            Some(visible) => Visible::Full(visible.clone()),
            None => Visible::but(batch.padding.as_ref()),
        };
        let numbers = batch.numbers.as_ref();
        let input = StackInput { visible, numbers, caches, ..StackInput::new(hidden) };
        let hidden = self.stack.run(range, input, cx)?; // [B, L, D]
        match &self.project_out {
            Some(project_out) if is_last => project_out.forward(&hidden, cx), // [B, L, word_size]
            _ => Ok(hidden),
        }
    }

    /// Which head it carries.
    pub fn head_kind(&self) -> DecoderHead {
        self.heads.kind()
    }
}

impl<C: DecoderFamily> Module for DecoderModel<C> {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl<C: DecoderFamily> Model for DecoderModel<C> {
    type Batch = DecoderBatch;
    type Flow = Var;
    type Output = ModelOutput;

    fn embed(&self, batch: &DecoderBatch, cx: &mut Ctx) -> bmtrain_dist::Result<Var> {
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
        batch: &DecoderBatch,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<Var> {
        self.run(range, hidden, batch, None, cx)
    }

    fn head(&self, hidden: Var, batch: &DecoderBatch, cx: &mut Ctx) -> bmtrain_dist::Result<ModelOutput> {
        let scaled = length_scaled(&hidden, self.layout.length_scale, cx)?; // [B, L, word_size]
        self.heads.forward(&scaled, batch, &self.input_embedding, cx)
    }
}

impl<C: DecoderFamily> PretrainedModel for DecoderModel<C> {
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
        let class = match self.head_kind() {
            DecoderHead::None => C::CLASSES.base,
            DecoderHead::CausalLm { .. } => C::CLASSES.words,
            DecoderHead::Classifier { .. } => C::CLASSES.classifier,
        };
        class.into()
    }

    fn upload(&self, batch: &Batch, wants_logits: bool, device: &Device) -> Result<DecoderBatch> {
        DecoderBatch::upload(device, batch, self, wants_logits)
    }

    fn hidden<'f>(&self, _: usize, flow: &'f Var) -> &'f Var {
        flow
    }

    fn decoding<'a>(&'a self, options: DecodingOptions<'_>, _cx: &mut Ctx) -> Result<Box<dyn Decoding + 'a>> {
        Ok(Box::new(DecoderRows::new(self, options)?))
    }

    fn verbalizer_position(&self) -> Result<VerbalizerPosition> {
        match (self.head_kind(), C::HAS_SPANS) {
            (DecoderHead::CausalLm { .. }, true) => Ok(VerbalizerPosition::Blank),
            (DecoderHead::CausalLm { .. }, false) => Ok(VerbalizerPosition::Next),
            (DecoderHead::None | DecoderHead::Classifier { .. }, _) => Err(no_verbalizer(C::TITLE)),
        }
    }
}
