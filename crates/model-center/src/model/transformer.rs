//! The transformer of all families: token embedding, an encoder, a decoder or both, head.
//!
//! Defines [`Transformer`]. A forward pass goes through `embed` ([`Inputs`]), [`Stack::run`] and [`Heads::forward`].

use super::architecture::{Architecture, Spec};
use super::batch::{DeviceBatch, Sequences};
use super::decoder_inputs::check_targets;
use super::decoding::{Decoding, DecodingOptions};
use super::head::{Head, Heads};
use super::incremental::Incremental;
use super::inputs::Inputs;
use super::stack::{Stack, StackConfig, StackInput};
use super::text_model::{ModelInfo, ModelOutput, PretrainedModel, no_verbalizer};
use crate::config::model_center::no_model_center;
use crate::data::{Batch, VerbalizerPosition};
use crate::error::Result;
use crate::formats::{DirectoryLayout, NameTable};
use crate::layer::attention::length_scaled;
use crate::layer::{BlockCache, Memory, TransformerBlock, Visible};
use bmtrain_core::{Ctx, Device, Var};
use bmtrain_dist::block::{BlockOptions, TransformerBlockList};
use bmtrain_dist::nn::embedding::{Embedding, EmbeddingOptions};
use bmtrain_dist::param::BuilderOptions;
use bmtrain_dist::{Builder, Model, Module, Parameters};
use std::borrow::Cow;
use std::ops::Range;

/// A transformer with its head.
///
/// The [`Registry`](crate::model::Registry) opens one from a directory. This example builds one from a configuration
/// and takes a training step:
///
/// ```
/// use bmtrain_dist::bmtrain_core::{Ctx, Device, autograd::Randomness, kernel::NormOrder};
/// use bmtrain_dist::optim::{Adam, AdamOptions, Clip, ParamGroup};
/// use bmtrain_dist::{Module, OptimManager, block::BlockOptions, param::BuilderOptions};
/// use model_center::config::{Gpt2Config, TextConfig};
/// use model_center::model::{Batch, TextModel, decoder::DecoderHead, gpt2::Gpt2};
///
/// let device = Device::cpu(1)?;
/// let text = TextConfig { vocab_size: 50, dim_model: 24, num_heads: 2, dim_head: 12, num_layers: 2,
///     ..Gpt2Config::default().text };
/// let config = Gpt2Config { text, ..Gpt2Config::default() };
/// let head = DecoderHead::CausalLm { tied: true };
/// let model = Gpt2::new(&device, config, head, BlockOptions::default(), BuilderOptions::default())?;
/// let adam = Adam::new(ParamGroup::by_decay(model.parameters(), 0.01), AdamOptions::default())?;
/// let mut optim = OptimManager::new(&device, Clip { order: NormOrder::Two, max_norm: 1.0 })?;
/// optim.add(Box::new(adam), 1e-3);
/// // Two sequences of four tokens; labels are the tokens themselves.
/// let batch = Batch::next_tokens(4, vec![3, 1, 4, 1, 5, 9, 2, 6], None);
/// let mut cx = Ctx::training(&device, Randomness { seed: 7, step: 0, micro_batch: 0 });
/// if let Some(loss) = model.loss(&batch, &mut cx)? {
///     optim.backward(&loss, 1.0, &mut cx)?;
///     optim.step()?;
///     // All 50 tokens are equally likely.
///     assert!((loss.value().item()? - 50f32.ln()).abs() < 0.1);
/// }
/// # Ok::<(), model_center::Error>(())
/// ```
#[derive(Debug)]
pub struct Transformer<A: Architecture> {
    config: A::Config,
    spec: Spec,
    info: ModelInfo,
    names: NameTable,
    tokens: Embedding,
    /// One per stack.
    inputs: Vec<Inputs>,
    stacks: Vec<Stack>,
    heads: Heads,
    parameters: Parameters,
}

impl<A: Architecture> Transformer<A> {
    /// Builds the model on a device; the builder's options choose the initialization.
    ///
    /// # Errors
    /// Sizes that do not fit together.
    pub fn new(
        device: &Device,
        config: A::Config,
        head: Head,
        blocks: BlockOptions,
        options: BuilderOptions,
    ) -> Result<Self> {
        let builder = Builder::new(device, options);
        let spec = A::spec(&config);
        let padding_index = spec.pad_token_id.filter(|_| !spec.padding_learns).map(|id| id as i64);
        let (entries, size, init) = (spec.vocab_size, spec.embedding_size, spec.table_init);
        let tokens =
            Embedding::new(&builder.at("input_embedding"), EmbeddingOptions { entries, size, init, padding_index })?;
        let inputs: Vec<Inputs> =
            spec.stacks.iter().map(|stack| Inputs::new(&builder, &spec, stack)).collect::<bmtrain_dist::Result<_>>()?;
        let stack = |(index, stack): (usize, &super::architecture::StackSpec)| {
            let around = StackConfig {
                name: stack.name,
                layers: stack.layers,
                positions: stack.positions.clone(),
                output_norm: stack.output_norm,
                output_dropout: stack.output_dropout,
            };
            Stack::new(&builder.at(stack.name), around, blocks, |layer| A::block(&config, index, layer))
        };
        let stacks = spec.stacks.iter().enumerate().map(stack).collect::<bmtrain_dist::Result<_>>()?;
        let heads = Heads::new(&builder, &spec.head, head, spec.vocab_size)?;
        let (parameters, names) = (builder.finish(), A::names(&config, head));
        let looked_up = (!head.is_tied()).then_some(&tokens).into_iter().chain(inputs.iter().flat_map(Inputs::tables));
        let embedding_parameters = looked_up.map(|table| table.weight().spec().shape.elements()).sum();
        let info = info(&spec, head, embedding_parameters);
        Ok(Transformer { config, spec, info, names, tokens, inputs, stacks, heads, parameters })
    }

    /// The configuration.
    pub fn config(&self) -> &A::Config {
        &self.config
    }

    /// What the configuration describes, as modules and sizes.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Which head it has.
    pub fn head_kind(&self) -> Head {
        self.heads.kind()
    }

    /// The blocks of the first stack.
    pub fn layers(&self) -> &TransformerBlockList<TransformerBlock> {
        self.stacks[0].layers()
    }

    /// Token ids of one stack to the input of its first block, `[B, L, D]`.
    pub(super) fn embed_stack(&self, stack: usize, sequences: &Sequences, cx: &mut Ctx) -> bmtrain_dist::Result<Var> {
        self.inputs[stack].forward(&self.tokens, sequences, cx)
    }

    /// Runs the blocks `range` of a stack and, after the last block, the norm and the projection. With KV caches, one
    /// per block, the tokens follow the cached ones, and masks cover all of them.
    pub(super) fn run_blocks_of(
        &self,
        (stack, range): (usize, Range<usize>),
        hidden: Var,
        (sequences, memory): (&Sequences, Option<Memory>),
        caches: Option<&mut [BlockCache]>,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<Var> {
        let blocks = &self.stacks[stack];
        let is_last = range.end == blocks.layers().len();
        let visible = match &sequences.visible {
            Some(visible) => Visible::Full(visible.clone()),
            None => Visible::but(sequences.padding.as_ref()),
        };
        let input = StackInput { hidden, visible, numbers: sequences.numbers.as_ref(), memory, caches };
        let hidden = blocks.run(range, input, cx)?; // [B, L, D]
        match self.inputs[stack].project_out() {
            Some(project_out) if is_last => project_out.forward(&hidden, cx), // [B, L, embedding_size]
            _ => Ok(hidden),
        }
    }

    /// Hidden states `[B, L, embedding_size]` to logits `[B, L, V]`; `None` without a language-modelling head.
    pub(super) fn lm_logits(&self, hidden: &Var, cx: &mut Ctx) -> bmtrain_dist::Result<Option<Var>> {
        let hidden = length_scaled(hidden, self.spec.length_scale, cx)?; // [B, L, embedding_size]
        self.heads.lm_logits(&hidden, &self.tokens, cx)
    }
}

fn info(spec: &Spec, head: Head, embedding_parameters: usize) -> ModelInfo {
    let is_encoder_decoder = spec.is_encoder_decoder();
    let is_classifier = matches!(head, Head::Classifier { .. });
    let has_labels = is_classifier || !is_encoder_decoder;
    ModelInfo {
        vocab_size: spec.vocab_size,
        max_length: spec.max_length,
        label_names: if has_labels { spec.label_names.clone() } else { Vec::new() },
        has_token_types: spec.stacks.iter().any(|stack| stack.type_size.is_some()),
        generates_targets: is_encoder_decoder && !is_classifier,
        decoder_start_token: spec.decoder_start_token.map(|token| token as i64),
        compares_choices: !is_encoder_decoder,
        embedding_parameters,
    }
}

impl<A: Architecture> Module for Transformer<A> {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl<A: Architecture> Model for Transformer<A> {
    type Batch = DeviceBatch;
    /// The hidden states of each stack, `[B, L, D]`.
    type Flow = Vec<Var>;
    type Output = ModelOutput;

    fn embed(&self, batch: &DeviceBatch, cx: &mut Ctx) -> bmtrain_dist::Result<Vec<Var>> {
        let stacks = batch.sequences.iter().enumerate();
        stacks.map(|(stack, sequences)| self.embed_stack(stack, sequences, cx)).collect() // [B, L, D] each
    }

    fn stacks(&self) -> Vec<usize> {
        self.stacks.iter().map(|stack| stack.layers().len()).collect()
    }

    fn run_stack(
        &self,
        stack: usize,
        range: Range<usize>,
        mut flow: Vec<Var>,
        batch: &DeviceBatch,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<Vec<Var>> {
        let hidden = flow.remove(stack);
        // A decoder attends to the encoder.
        let memory = stack.checked_sub(1).map(|encoder| Memory {
            hidden: flow[encoder].clone(),
            visible: Visible::but(batch.sequences[encoder].padding.as_ref()),
        });
        let sequences = &batch.sequences[stack];
        flow.insert(stack, self.run_blocks_of((stack, range), hidden, (sequences, memory), None, cx)?); // [B, L, D]
        Ok(flow)
    }

    fn head(&self, mut flow: Vec<Var>, batch: &DeviceBatch, cx: &mut Ctx) -> bmtrain_dist::Result<ModelOutput> {
        let missing = || bmtrain_dist::Error::setting("model", "no hidden states");
        let hidden = flow.pop().ok_or_else(missing)?;
        let hidden = length_scaled(&hidden, self.spec.length_scale, cx)?; // [B, L, embedding_size]
        let mut output = self.heads.forward(&hidden, batch, &self.tokens, cx)?;
        output.extra.extend(flow.pop().map(|encoder| ("encoder_last_hidden_state", encoder)));
        Ok(output)
    }
}

/// Labels of next-token prediction are the tokens themselves, and are shifted here. The decoder input of an
/// encoder-decoder is its labels shifted right if there are no `decoder_input_ids`, and for a classifier the encoder's
/// input shifted right.
/// The observed hidden states are the encoder's up to its last block, then the decoder's.
impl<A: Architecture> PretrainedModel for Transformer<A> {
    type Config = A::Config;

    fn config(&self) -> &A::Config {
        &self.config
    }

    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn names(&self) -> &NameTable {
        &self.names
    }

    fn names_in(&self, layout: DirectoryLayout) -> Result<Cow<'_, NameTable>> {
        if layout == DirectoryLayout::HuggingFace {
            return Ok(Cow::Borrowed(&self.names));
        }
        let names = A::names_of_model_center(&self.config, self.head_kind());
        let names = names.ok_or_else(|| no_model_center(self.spec.title))?;
        A::check_model_center(&self.config, self.head_kind()).map(|()| Cow::Owned(names))
    }

    fn class(&self) -> Cow<'_, str> {
        A::class(&self.config, self.head_kind())
    }

    fn has_prefix(&self) -> Option<bool> {
        A::has_prefix(self.head_kind())
    }

    fn rescaled(&self, parameter: &str, layout: DirectoryLayout) -> Option<fn(f32) -> f32> {
        A::rescaled(&self.config, parameter, layout)
    }

    fn upload(&self, batch: &Batch, wants_logits: bool, device: &Device) -> Result<DeviceBatch> {
        DeviceBatch::upload(device, batch, (&self.spec, self.head_kind()), wants_logits)
    }

    fn hidden<'f>(&self, blocks: usize, flow: &'f Vec<Var>) -> &'f Var {
        let is_first = flow.len() == 1 || blocks <= self.stacks[0].layers().len();
        &flow[usize::from(!is_first)]
    }

    fn decoding<'a>(&'a self, options: DecodingOptions<'_>, cx: &mut Ctx) -> Result<Box<dyn Decoding + 'a>> {
        Ok(Box::new(Incremental::new(self, options, cx)?))
    }

    fn check_targets(&self) -> Result<()> {
        if self.spec.is_encoder_decoder() { check_targets(&self.spec) } else { Ok(()) }
    }

    fn verbalizer_position(&self) -> Result<VerbalizerPosition> {
        if !matches!(self.head_kind(), Head::CausalLm { .. }) {
            return Err(no_verbalizer(self.spec.title));
        }
        if !self.spec.is_encoder_decoder() {
            return Ok(if self.spec.has_spans { VerbalizerPosition::Blank } else { VerbalizerPosition::Next });
        }
        if self.spec.starts_with_sentinel {
            return Ok(VerbalizerPosition::Sentinel { start: None });
        }
        check_targets(&self.spec)?;
        Ok(VerbalizerPosition::Sentinel { start: self.spec.decoder_start_token.map(|token| token as u32) })
    }
}
