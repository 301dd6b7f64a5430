//! The transformer of all families: token embedding, an encoder, a decoder or both, head.
//!
//! Defines [`Transformer`], which `build` constructs. A forward pass goes through `embed` ([`Inputs`]), `run_stack`
//! (the blocks of a [`Stack`]) and `head` ([`Heads`]).

use super::architecture::{Architecture, Spec};
use super::batch::{DeviceBatch, Sequences};
use super::decoder_inputs::check_targets;
use super::decoding::{Decoding, DecodingOptions};
use super::head::{Head, Heads};
use super::incremental::Incremental;
use super::inputs::Inputs;
use super::lesson::Lesson;
use super::packed::{Packed, PackedDecoding};
use super::pooling::PoolingMode;
use super::prompt::Prompt;
use super::registry::{SaveOptions, param_shapes};
use super::shared_layers::WrittenParams;
use super::stack::Stack;
use super::text_model::{DIVERGENCE, ForwardOutputs, ModelInfo, ModelOutput, Observe, TextModel};
use crate::distillation::{DistillationLoss, Teaching};
use crate::layer::{
    AttentionContext, BlockCache, Memory, Shared, Visible, attention::length_scaled, position::Rows, token_dropout,
};
use bmtrain_core::comm::Communicator;
use bmtrain_core::ops::Distilled;
use bmtrain_core::{Ctx, DType, Device, Shape, Tensor, Var, ops};
use bmtrain_dist::block::RunOptions;
use bmtrain_dist::nn::embedding::Embedding;
use bmtrain_dist::pipeline::{BlockCosts, Edge, MicroBatch, Pipeline};
use bmtrain_dist::{Bundle, Model, Module, OptimManager, Parameters};
use model_center_base::batch::{Batch, VerbalizerPosition};
use model_center_base::error::{Error, Result};
use model_center_formats::config::model_center::no_model_center;
use model_center_formats::directory::{DirectoryLayout, ModelDirectory};
use model_center_formats::{Fill, NameTable};
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A transformer with its head.
///
/// The [`Registry`](crate::model::Registry) opens one from a directory; the example of the [crate root](crate) builds
/// one from a configuration and trains it.
#[derive(Debug)]
pub struct Transformer<A: Architecture> {
    pub(super) config: A::Config,
    pub(super) spec: Spec,
    pub(super) info: ModelInfo,
    pub(super) names: NameTable,
    /// Of hidden states, and of the parameters but for those that are stored in f32.
    pub(super) dtype: DType,
    pub(super) tokens: Embedding,
    /// One per stack.
    pub(super) inputs: Vec<Inputs>,
    pub(super) stacks: Vec<Stack<A::Block>>,
    pub(super) heads: Heads,
    /// Virtual tokens of prompt tuning.
    pub(super) prompt: Option<Prompt>,
    pub(super) parameters: Parameters,
    /// The tensor-parallel ranks, where they shard tokens.
    pub(super) token_ranks: Option<Arc<dyn Communicator>>,
}

/// What flows from the embedding through the blocks to the head, and over the edges of a pipeline.
#[derive(Debug, Clone)]
pub struct HiddenStates {
    /// Of each stack, `[B, L, D]`; of a stack that has run, `[B, L, embedding_size]`.
    stacks: Vec<Var>,
    /// The learned position bias of the stack that is running, `[1, N, L, S]`, from its first block to its last.
    bias: Option<Var>,
}

impl Bundle for HiddenStates {
    fn vars(&self) -> Vec<Var> {
        [self.stacks.vars(), self.bias.vars()].concat()
    }

    fn rebuild(&self, vars: &mut dyn Iterator<Item = Var>) -> Self {
        HiddenStates { stacks: self.stacks.rebuild(vars), bias: self.bias.rebuild(vars) }
    }
}

impl<A: Architecture> Transformer<A> {
    /// Token ids of one stack to the input of its first block, `[B, L, D]`; where tokens are sharded, here and below
    /// `[own, D]`.
    pub(super) fn embed_stack(&self, stack: usize, sequences: &Sequences, cx: &mut Ctx) -> bmtrain_dist::Result<Var> {
        let prompt = self.prompt.as_ref().and_then(|prompt| prompt.table(stack));
        let hidden = self.inputs[stack].forward((&self.tokens, prompt), sequences, cx)?; // [B, L, D]
        cx.at(self.stacks[stack].name, |cx| cx.observe("embedding", &hidden))?;
        Ok(hidden)
    }

    /// The hidden states of every stack after its last block.
    fn run_stacks(&self, batch: &DeviceBatch, cx: &mut Ctx) -> bmtrain_dist::Result<HiddenStates> {
        let mut flow = self.embed(batch, cx)?;
        for (stack, blocks) in Model::stacks(self).into_iter().enumerate().filter(|(_, blocks)| *blocks > 0) {
            flow = self.run_stack(stack, 0..blocks, flow, batch, cx)?;
        }
        Ok(flow)
    }

    /// Runs the blocks `range` of a stack and, after the last block, the norm and the projection: `[B, L, D]` to
    /// `[B, L, D]`, or `[B, L, embedding_size]`. The learned bias of the stack's positions is made with its first
    /// block, or given. With KV caches, one per block, the tokens follow the cached ones, and masks cover all of them.
    pub(super) fn run_blocks_of(
        &self,
        (stack, range): (usize, Range<usize>),
        (hidden, bias): (Var, &mut Option<Var>),
        (sequences, memory): (&Sequences, Option<Memory>),
        caches: Option<&mut [BlockCache]>,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<Var> {
        let Stack { name, positions, layers, output_norm, output_dropout } = &self.stacks[stack];
        let is_last = range.end == layers.len();
        let visible = match &sequences.visible {
            Some(visible) => Visible::Full(visible.clone()),
            None => Visible::but(sequences.padding.as_ref()),
        };
        let prefix = sequences.prefix.as_ref();
        let cached = caches.as_deref().and_then(<[_]>::first).map_or(0, |cache| cache.own.past());
        let past = cached + prefix.map_or(0, |rows| rows.shape().last());
        let is_packed = caches.as_deref().and_then(<[_]>::first).is_some_and(|cache| cache.own.is_packed());
        let tokens = sequences.tokens.as_ref();
        let [_, length] = sequences.ids.dims("stack")?;
        let reach = sequences.reach;
        let rows = Rows { past, length, numbers: sequences.numbers.as_ref(), reach };
        if range.start == 0 && !is_packed {
            *bias = positions.bias(rows, cx)?; // [1, N, L, S]
        }
        let bias = if is_last { bias.take() } else { bias.clone() };
        let scope = match is_packed {
            // Each sequence has its own bias, in the caches.
            true => positions.packed_scope(rows, cx)?,
            false => positions.scope(visible, rows, bias, cx)?,
        };
        let (documents, prefix) = (sequences.documents.clone(), prefix.cloned());
        let scope = AttentionContext { documents, prefix, tokens: tokens.cloned(), ..scope };
        let shared = Shared { scope, memory, reads: sequences.reads };
        let options = RunOptions { range, caches, return_hidden: false };
        let mut hidden = cx.at(name, |cx| layers.run(hidden, &shared, options, cx))?.carry; // [B, L, D]
        if !is_last {
            return Ok(hidden);
        }
        if let Some(norm) = output_norm {
            hidden = norm.forward(&hidden, cx)?; // [B, L, D]
        }
        if *output_dropout != 0.0 {
            let rows = (tokens, hidden.shape().last());
            let dropout = cx.at(name, |cx| token_dropout("output", *output_dropout, rows, cx))?;
            hidden = ops::dropout(cx, &hidden, dropout)?; // [B, L, D]
        }
        match self.inputs[stack].project_out() {
            Some(project_out) => project_out.forward(&hidden, cx), // [B, L, embedding_size]
            None => Ok(hidden),
        }
    }

    /// Hidden states `[B, L, embedding_size]` to logits `[B, L, V]`; `None` without a language-modelling head.
    pub(super) fn lm_logits(&self, hidden: &Var, cx: &mut Ctx) -> bmtrain_dist::Result<Option<Var>> {
        let hidden = length_scaled(hidden, self.spec.length_scale, cx)?; // [B, L, embedding_size]
        self.heads.lm_logits(&hidden, &self.tokens, cx)
    }

    /// Checks a batch and copies it to the device. Without `wants_logits` only the loss is computed.
    fn upload(&self, batch: &Batch, wants_logits: bool, device: &Device) -> Result<DeviceBatch> {
        let prompted = self.prompt.as_ref().map(|prompt| prompt.batch(batch, &self.spec, self.heads.kind()));
        let prompted = prompted.transpose()?;
        let host = prompted.as_ref().unwrap_or(batch);
        let mut batch = DeviceBatch::upload(device, host, (&self.spec, self.heads.kind()), wants_logits)?;
        if let Some(prompt) = &self.prompt {
            let ids = [Some(&host.input_ids), host.decoder_input_ids.as_ref()];
            let attached = batch.sequences.into_iter().zip(ids).enumerate();
            let attach = |(stack, (sequences, ids)): (usize, (Sequences, Option<&Vec<i64>>))| match ids {
                Some(ids) => prompt.attach(stack, sequences, ids, device),
                None => Ok(sequences),
            };
            batch.sequences = attached.map(attach).collect::<Result<_>>()?;
        }
        let sharded = |sequences: Sequences| sequences.sharded(self.token_ranks.as_ref());
        let sequences = batch.sequences.into_iter().map(sharded).collect::<bmtrain_core::Result<_>>()?;
        Ok(DeviceBatch { sequences, ..batch })
    }

    /// Hidden states `[B, L, D]` of all tokens of a stack.
    fn all_tokens(&self, hidden: Var, stack: usize, batch: &DeviceBatch, cx: &Ctx) -> bmtrain_core::Result<Var> {
        match batch.sequences.get(stack).and_then(|sequences| sequences.tokens.as_ref()) {
            Some(tokens) => ops::gather_tokens(cx, tokens, &hidden), // [B, L, D]
            None => Ok(hidden),
        }
    }

    /// The parameters of a directory.
    fn written(&self) -> WrittenParams {
        WrittenParams::of(&self.spec, param_shapes(&self.parameters))
    }

    /// The directory that the model is written to.
    fn directory<'a>(&'a self, names: &'a NameTable, options: &SaveOptions<'a>) -> ModelDirectory<'a, A::Config> {
        let head = self.heads.kind();
        let directory = ModelDirectory::new(&self.config, names, &A::class(&self.config, head));
        let prefixed = A::has_prefix(head).unwrap_or(directory.prefixed);
        ModelDirectory { prefixed, ..directory }.with(options)
    }
}

impl<A: Architecture> Module for Transformer<A> {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl<A: Architecture> Model for Transformer<A> {
    type Batch = DeviceBatch;
    type Flow = HiddenStates;
    type Output = ModelOutput;

    fn forward(&self, batch: &DeviceBatch, cx: &mut Ctx) -> bmtrain_dist::Result<ModelOutput> {
        let flow = self.run_stacks(batch, cx)?;
        let output = self.head(flow, batch, cx)?;
        self.release(cx);
        Ok(output)
    }

    fn embed(&self, batch: &DeviceBatch, cx: &mut Ctx) -> bmtrain_dist::Result<HiddenStates> {
        let stacks = batch.sequences.iter().enumerate();
        let stacks = stacks.map(|(stack, sequences)| self.embed_stack(stack, sequences, cx)); // [B, L, D] each
        Ok(HiddenStates { stacks: stacks.collect::<bmtrain_dist::Result<_>>()?, bias: None })
    }

    fn stacks(&self) -> Vec<usize> {
        self.stacks.iter().map(|stack| stack.layers.len()).collect()
    }

    fn run_stack(
        &self,
        stack: usize,
        range: Range<usize>,
        HiddenStates { mut stacks, mut bias }: HiddenStates,
        batch: &DeviceBatch,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<HiddenStates> {
        let hidden = stacks.remove(stack);
        // A decoder attends to the encoder.
        let memory = stack.checked_sub(1).map(|encoder| Memory {
            hidden: stacks[encoder].clone(),
            tokens: batch.sequences[encoder].tokens.clone(),
            visible: Visible::but(batch.sequences[encoder].padding.as_ref()),
        });
        let (sequences, hidden) = (&batch.sequences[stack], (hidden, &mut bias));
        stacks.insert(stack, self.run_blocks_of((stack, range), hidden, (sequences, memory), None, cx)?); // [B, L, D]
        Ok(HiddenStates { stacks, bias })
    }

    fn receive(&self, block: usize, batch: &DeviceBatch, edge: &mut Edge<'_>) -> bmtrain_dist::Result<HiddenStates> {
        let dtype = self.dtype;
        let (mut stacks, mut bias, mut first) = (Vec::new(), None, 0);
        for (index, (stack, sequences)) in self.stacks.iter().zip(&batch.sequences).enumerate() {
            let [rows, length] = sequences.ids.dims("receive")?;
            let end = first + stack.layers.len();
            let width = if block >= end { self.spec.embedding_size } else { self.spec.dim_model };
            let name = format!("{} states", stack.name);
            let shape = match &sequences.tokens {
                Some(tokens) => Shape::from([tokens.own().len(), width]),
                None => Shape::from([rows, length, width]),
            };
            // Nothing attends to the encoder after the last block of the decoder.
            let is_last_use = block == self.blocks() && index + 1 < self.stacks.len();
            let mut edge = edge.replicated(sequences.tokens.is_none());
            stacks.push(match is_last_use {
                true => edge.constant(name, shape, dtype)?,
                false => edge.var(name, shape, dtype)?,
            });
            if let Some(heads) = stack.positions.bias_heads().filter(|_| (first + 1..end).contains(&block)) {
                let keys = self.spec.prefix + length;
                bias = Some((format!("{} position bias", stack.name), [1, heads, length, keys]));
            }
            first = end;
        }
        let bias = bias.map(|(name, shape)| edge.var_with_gradient(name, shape, dtype, DType::F32)).transpose()?;
        Ok(HiddenStates { stacks, bias })
    }

    fn head(&self, flow: HiddenStates, batch: &DeviceBatch, cx: &mut Ctx) -> bmtrain_dist::Result<ModelOutput> {
        let missing = || bmtrain_dist::Error::setting("model", "no hidden states");
        let mut flow = flow.stacks;
        let hidden = flow.pop().ok_or_else(missing)?;
        let hidden = self.all_tokens(hidden, flow.len(), batch, cx)?; // [B, L, embedding_size]
        let hidden = length_scaled(&hidden, self.spec.length_scale, cx)?; // [B, L, embedding_size]
        let mut output = self.heads.forward(&hidden, batch, &self.tokens, cx)?;
        if let Some(prompt) = &self.prompt {
            let trim = |logits| prompt.trimmed(logits, flow.len(), cx);
            output.logits = output.logits.map(trim).transpose()?; // [B, L, V]
        }
        // Sharded tokens are gathered for a caller that wants outputs, not for a loss.
        let encoder = flow.pop().filter(|_| batch.wants_logits || self.token_ranks.is_none());
        if let Some(encoder) = encoder {
            output.extra.push(("encoder_last_hidden_state", self.all_tokens(encoder, 0, batch, cx)?)); // [B, S, D]
        }
        Ok(output)
    }
}

/// Labels of next-token prediction are the tokens themselves, and are shifted here. The decoder input of an
/// encoder-decoder is its labels shifted right if there are no `decoder_input_ids`, and for a classifier the encoder's
/// input shifted right.
/// The observed hidden states are the encoder's up to its last block, then the decoder's.
impl<A: Architecture> TextModel for Transformer<A> {
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
        let names = A::names_of_model_center(&self.config, self.heads.kind());
        let names = names.ok_or_else(|| no_model_center(self.spec.title))?;
        A::check_model_center(&self.config, self.heads.kind()).map(|()| Cow::Owned(names))
    }

    fn forward(&self, batch: &Batch, observe: Option<Observe<'_>>, cx: &mut Ctx) -> Result<ModelOutput> {
        let batch = self.upload(batch, true, cx.device())?;
        let Some(observe) = observe else { return Ok(Model::forward(self, &batch, cx)?) };
        let batch = batch.with_all_states();
        let first = self.stacks[0].layers.len();
        let constant = cx.with_tape(None);
        Ok(self.forward_observed(&batch, cx, &mut |blocks, flow| {
            let is_first = flow.stacks.len() == 1 || blocks <= first;
            let stack = usize::from(!is_first);
            observe(blocks, self.all_tokens(flow.stacks[stack].clone(), stack, &batch, &constant)?.value())
        })?)
    }

    fn loss(&self, batch: &Batch, cx: &mut Ctx) -> Result<Option<Var>> {
        let batch = self.upload(batch, false, cx.device())?;
        Ok(Model::forward(self, &batch, cx)?.loss)
    }

    fn log_probs(&self, batch: &Batch, cx: &mut Ctx) -> Result<Var> {
        let has_labels = self.heads.kind().is_lm() && batch.labels.is_some() && batch.verbalizer.is_none();
        let batch = DeviceBatch { by_sequence: true, ..self.upload(batch, false, cx.device())? };
        let losses = Model::forward(self, &batch, cx)?.loss.filter(|_| has_labels).ok_or_else(|| {
            let fix = "open the model with a language-modelling head, and label tokens";
            Error::data("batch", "it has no log-probabilities of sequences", fix)
        })?;
        Ok(ops::scale(cx, &losses, -1.0)?) // [R]
    }

    fn teaching(&self, batch: &Batch, device: &Device) -> Result<Teaching> {
        let (batch, mut cx) = (self.upload(batch, false, device)?, Ctx::inference(device));
        if !self.heads.kind().is_lm() {
            let logits = Model::forward(self, &batch, &mut cx)?.logits.filter(|_| batch.spans.is_none());
            let logits = logits.ok_or_else(|| no_teaching("it has no head whose logits can be learned"))?;
            return Ok(Teaching::Logits(logits.into_value())); // [B, outputs]
        }
        if self.token_ranks.is_some() || self.prompt.is_some() || batch.verbalizer.is_some() {
            return Err(no_teaching("it is sharded over tensor-parallel ranks, has virtual tokens or label words"));
        }
        let mut flow = self.run_stacks(&batch, &mut cx)?;
        let hidden = flow.stacks.pop().ok_or_else(|| no_teaching("it has no hidden states"))?; // [B, L, D]
        let hidden = length_scaled(&hidden, self.spec.length_scale, &cx)?; // [B, L, D]
        let head = self.heads.teacher_head(&hidden, &batch, &self.tokens, &cx)?;
        Model::release(self, &cx);
        Ok(Teaching::Head(head.ok_or_else(|| no_teaching("it has no language-modelling head"))?))
    }

    fn distilled(&self, batch: &Batch, teaching: Teaching, loss: DistillationLoss, cx: &mut Ctx) -> Result<Distilled> {
        if self.prompt.is_some() {
            return Err(no_teaching("virtual tokens are in every sequence of the student, and the teacher has none"));
        }
        let lesson = Lesson::upload(cx.device(), batch, (&self.spec, self.heads.kind()), (teaching, loss))?;
        let batch = DeviceBatch { lesson: Some(lesson), ..self.upload(batch, false, cx.device())? };
        let mut output = Model::forward(self, &batch, cx)?;
        let divergence = output.extra.iter().position(|(name, _)| *name == DIVERGENCE);
        let divergence = divergence.map(|at| output.extra.swap_remove(at).1.into_value());
        match (output.loss, divergence) {
            (Some(loss), Some(divergence)) => Ok(Distilled { loss, divergence }),
            _ => Err(no_teaching("the outputs of the student are of another kind than the teacher's")),
        }
    }

    fn embeddings(&self, batch: &Batch, pooling: PoolingMode, cx: &mut Ctx) -> Result<Var> {
        if self.spec.is_encoder_decoder() || self.prompt.is_some() {
            let (reason, fix) = match self.prompt {
                Some(_) => ("virtual tokens are no part of a text", "set adapter.method = \"lora\""),
                None => ("an encoder-decoder has no embeddings of texts", "use a model with one stack"),
            };
            return Err(Error::argument("embeddings", reason, fix));
        }
        let weights = pooling.weights(batch, cx)?; // [R, 1, L]
        let batch = self.upload(batch, true, cx.device())?.with_all_states();
        let mut flow = self.run_stacks(&batch, cx)?;
        let missing = || Error::argument("embeddings", "no hidden states", "report this");
        let hidden = self.all_tokens(flow.stacks.pop().ok_or_else(missing)?, 0, &batch, cx)?; // [R, L, D]
        Model::release(self, cx);
        let [rows, _, dim] = hidden.dims("embeddings")?;
        let hidden = ops::cast(cx, &hidden, DType::F32)?;
        Ok(ops::matmul(cx, &weights, &hidden, false, false)?.reshape([rows, dim])?) // [R, D]
    }

    fn forward_backward(
        &self,
        pipeline: &Pipeline,
        optim: &OptimManager,
        load: &mut dyn FnMut(usize) -> Result<MicroBatch<Batch>>,
    ) -> Result<Tensor> {
        let load = |number: usize| {
            let MicroBatch { batch, randomness, weight } = load(number)?;
            let batch = self.upload(&batch, false, pipeline.device())?;
            Ok::<_, Error>(MicroBatch { batch, randomness, weight })
        };
        pipeline.forward_backward(self, optim, load, loss_of)
    }

    fn block_costs(&self, device: &Device, batch: &Batch) -> Result<BlockCosts> {
        let batch = self.upload(batch, false, device)?;
        Ok(BlockCosts::measure(device, self, &batch, loss_of)?)
    }

    fn forward_stages(
        &self,
        pipeline: &Pipeline,
        batches: &[Batch],
        wants: ForwardOutputs,
    ) -> Result<Vec<ModelOutput>> {
        let wants_logits = wants == ForwardOutputs::All;
        let load = |number: usize| {
            let missing = || Error::argument("pipeline", format!("there is no batch {number}"), "report this");
            let batch = batches.get(number).ok_or_else(missing)?;
            self.upload(batch, wants_logits, pipeline.device())
        };
        if batches.is_empty() {
            return Ok(Vec::new());
        }
        let outputs = pipeline.forward_outputs(self, batches.len(), load, |output| Ok(output.into_tensors(wants)))?;
        Ok(outputs.into_iter().map(ModelOutput::of_tensors).collect())
    }

    fn decoding<'a>(&'a self, options: DecodingOptions<'_>, cx: &mut Ctx) -> Result<Box<dyn Decoding + 'a>> {
        Ok(Box::new(Incremental::new(self, options, cx)?))
    }

    fn packed_decoding<'a>(&'a self) -> Result<Box<dyn PackedDecoding + 'a>> {
        Ok(Box::new(Packed::new(self)?))
    }

    fn check_targets(&self) -> Result<()> {
        if self.spec.is_encoder_decoder() { check_targets(&self.spec) } else { Ok(()) }
    }

    fn verbalizer_position(&self) -> Result<VerbalizerPosition> {
        if !matches!(self.heads.kind(), Head::CausalLm { .. }) {
            let reason = format!("{} answers no prompts with the head that it has", self.spec.title);
            let fix = "use a model with a language-modelling head";
            return Err(Error::argument("the head asked for", reason, fix));
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

    fn check_save(&self, options: &SaveOptions<'_>) -> Result<()> {
        let names = self.names_in(options.layout)?;
        self.directory(&names, options).check(self.written().shapes())
    }

    fn left_out(&self, options: &SaveOptions<'_>) -> Result<Vec<String>> {
        self.directory(&self.names, options).left_out()
    }

    fn write(&self, to: &Path, options: &SaveOptions<'_>, fill: Fill<'_>) -> Result<()> {
        let (names, written) = (self.names_in(options.layout)?, self.written());
        let mut fill = written.filled(fill);
        self.directory(&names, options).write(to, written.shapes(), |name, values| {
            fill(name, values)?;
            if let Some(rescaled) = A::rescaled(&self.config, name, options.layout) {
                values.iter_mut().for_each(|value| *value = rescaled(*value));
            }
            Ok(())
        })
    }
}

/// The loss of a stage's micro-batch.
fn loss_of(output: ModelOutput) -> bmtrain_dist::Result<Var> {
    let missing = || bmtrain_dist::Error::setting("pipeline", "the model has no head for the labels of the batch");
    output.loss.ok_or_else(missing)
}

fn no_teaching(reason: &str) -> Error {
    Error::argument("distillation", reason, "distil classifiers, or models with a language-modelling head")
}
