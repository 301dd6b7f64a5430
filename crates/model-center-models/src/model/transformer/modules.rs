//! The modules of a transformer, of any family: token embedding, an encoder, a decoder or both, head.
//!
//! Defines [`Modules`], which `build` constructs from a [`Spec`] and blocks. A forward pass goes through `embed`
//! ([`Inputs`]), `run_stack` (the blocks of a [`Stack`]) and `head` ([`Heads`]). Generic over the block alone, so that
//! families with the same block are one compiled function.

use super::inputs::Inputs;
use super::prompt::Prompt;
use super::shared_layers::WrittenParams;
use super::stack::Stack;
use crate::layer::{
    AttentionContext, BlockCache, Memory, Shared, Visible, attention::length_scaled, position::Rows, token_dropout,
};
use crate::model::architecture::Spec;
use crate::model::batch::loss_settings::LossSettings;
use crate::model::batch::{DeviceBatch, Sequences};
use crate::model::head::Heads;
use crate::model::head::lm_operands::LmOperands;
use crate::model::head::sentence_encoder::dense_layer::{DenseLayer, is_dense};
use crate::model::load::registry::param_shapes;
use crate::model::text_model::{ForwardOptions, ForwardOutputs, ModelInfo, ModelOutput};
use bmtrain_core::comm::Communicator;
use bmtrain_core::{Ctx, DType, Device, Shape, Var, ops};
use bmtrain_dist::Block;
use bmtrain_dist::block::RunOptions;
use bmtrain_dist::nn::embedding::Embedding;
use bmtrain_dist::pipeline::Edge;
use bmtrain_dist::{Bundle, Model, Module, Parameters};
use model_center_base::batch::Batch;
use model_center_base::error::Result;
use std::borrow::Cow;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

/// A block that stacks are made of.
pub trait StackBlock: Block<Carry = Var, Shared = Shared, Cache = BlockCache> + Debug + 'static {}

impl<B: Block<Carry = Var, Shared = Shared, Cache = BlockCache> + Debug + 'static> StackBlock for B {}

/// Embeddings, stacks of blocks and heads, with their parameters.
#[derive(Debug)]
pub(in crate::model) struct Modules<B> {
    pub(in crate::model) spec: Spec,
    pub(in crate::model) info: ModelInfo,
    /// Dtype of hidden states, and of the parameters but for those that are stored in f32.
    pub(in crate::model) dtype: DType,
    pub(in crate::model) tokens: Embedding,
    /// One per stack.
    pub(in crate::model) inputs: Vec<Inputs>,
    pub(in crate::model) stacks: Vec<Stack<B>>,
    pub(in crate::model) heads: Heads,
    /// Modules after the pooling of a sentence encoder.
    pub(in crate::model) dense: Vec<DenseLayer>,
    /// Virtual tokens of prompt tuning.
    pub(in crate::model) prompt: Option<Prompt>,
    pub(in crate::model) parameters: Parameters,
    /// The tensor-parallel ranks, where they shard tokens.
    pub(in crate::model) token_ranks: Option<Arc<dyn Communicator>>,
}

/// Hidden states on their way from the embedding through the blocks to the head, and over the edges of a pipeline.
#[derive(Debug, Clone)]
pub struct HiddenStates {
    /// Hidden states of each stack, `[B, L, D]`; of a stack that has run, `[B, L, output_size]`.
    pub(in crate::model) stacks: Vec<Var>,
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

impl<B: StackBlock> Modules<B> {
    /// Token ids of one stack to the input of its first block, `[B, L, D]`; where tokens are sharded, here and below
    /// `[own, D]`.
    pub(in crate::model) fn embed_stack(
        &self,
        stack: usize,
        sequences: &Sequences,
        cx: &mut Ctx,
    ) -> bmtrain_dist::Result<Var> {
        let prompt = self.prompt.as_ref().and_then(|prompt| prompt.table(stack));
        let hidden = self.inputs[stack].forward((&self.tokens, prompt), sequences, cx)?; // [B, L, D]
        cx.at(self.stacks[stack].name, |cx| cx.observe("embedding", &hidden))?;
        Ok(hidden)
    }

    /// A batch to logits and loss, see [`TextModel::forward_with`](crate::model::TextModel::forward_with).
    pub(in crate::model) fn forward_with(
        &self,
        batch: &Batch,
        ForwardOptions { outputs, loss, observe }: ForwardOptions<'_>,
        cx: &mut Ctx,
    ) -> Result<ModelOutput> {
        let batch = self.upload(batch, (outputs == ForwardOutputs::All, loss), cx.device())?;
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

    /// The hidden states of every stack after its last block.
    pub(in crate::model) fn run_stacks(&self, batch: &DeviceBatch, cx: &mut Ctx) -> bmtrain_dist::Result<HiddenStates> {
        let mut flow = self.embed(batch, cx)?;
        for (stack, blocks) in Model::stacks(self).into_iter().enumerate().filter(|(_, blocks)| *blocks > 0) {
            flow = self.run_stack(stack, 0..blocks, flow, batch, cx)?;
        }
        Ok(flow)
    }

    /// Runs the blocks `range` of a stack and, after the last block, the norm and the projection: `[B, L, D]` to
    /// `[B, L, D]`, or `[B, L, output_size]`. The learned bias of the stack's positions is made with its first
    /// block, or given. With KV caches, one per block, the tokens follow the cached ones, and masks cover all of them.
    pub(in crate::model) fn run_blocks_of(
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
        let context = match is_packed {
            // Each sequence has its own bias, in the caches.
            true => positions.packed_context(rows, cx)?,
            false => positions.context(visible, rows, bias, cx)?,
        };
        let (documents, prefix) = (sequences.documents.clone(), prefix.cloned());
        let context = AttentionContext { documents, prefix, tokens: tokens.cloned(), ..context };
        let shared = Shared { context, memory, reads: sequences.reads };
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
            Some(project_out) => project_out.forward(&hidden, cx), // [B, L, output_size]
            None => Ok(hidden),
        }
    }

    /// What the logits of hidden states `[B, L, output_size]` are computed from; `None` without a language-modelling
    /// head.
    pub(in crate::model) fn lm_operands(&self, hidden: &Var, cx: &Ctx) -> bmtrain_dist::Result<Option<LmOperands>> {
        let hidden = length_scaled(hidden, self.spec.length_scale, cx)?; // [B, L, output_size]
        self.heads.lm_operands(&hidden, &self.tokens, cx)
    }

    /// Hidden states `[B, L, output_size]` to logits `[B, L, V]`; `None` without a language-modelling head.
    pub(in crate::model) fn lm_logits(&self, hidden: &Var, cx: &Ctx) -> bmtrain_dist::Result<Option<Var>> {
        self.lm_operands(hidden, cx)?.map(|operands| operands.logits(cx)).transpose()
    }

    /// The batch with virtual tokens before its sequences, where the model has some.
    pub(in crate::model) fn prompted<'b>(&self, batch: &'b Batch) -> Result<Cow<'b, Batch>> {
        match &self.prompt {
            Some(prompt) => Ok(Cow::Owned(prompt.batch(batch, &self.spec, self.heads.kind())?)),
            None => Ok(Cow::Borrowed(batch)),
        }
    }

    /// Checks a batch and copies it to the device. Without `wants_logits` only the loss is computed.
    pub(in crate::model) fn upload(
        &self,
        batch: &Batch,
        (wants_logits, settings): (bool, LossSettings<'_>),
        device: &Device,
    ) -> Result<DeviceBatch> {
        settings.check(batch, &self.spec, self.prompt.is_some())?;
        let host = self.prompted(batch)?;
        self.upload_prompted(&host, (wants_logits, settings), device)
    }

    /// The same of a batch that has virtual tokens.
    pub(in crate::model) fn upload_prompted(
        &self,
        host: &Batch,
        outputs: (bool, LossSettings<'_>),
        device: &Device,
    ) -> Result<DeviceBatch> {
        let mut batch = DeviceBatch::upload(device, host, (&self.spec, self.heads.kind()), outputs)?;
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
    pub(in crate::model) fn all_tokens(
        &self,
        hidden: Var,
        stack: usize,
        batch: &DeviceBatch,
        cx: &Ctx,
    ) -> bmtrain_core::Result<Var> {
        match batch.sequences.get(stack).and_then(|sequences| sequences.tokens.as_ref()) {
            Some(tokens) => ops::gather_tokens(cx, tokens, &hidden), // [B, L, D]
            None => Ok(hidden),
        }
    }

    /// The parameters of a directory's weights; modules `Dense` have files of their own.
    pub(in crate::model) fn written(&self) -> WrittenParams {
        let mut own = param_shapes(&self.parameters);
        own.retain(|shape| !is_dense(&shape.name));
        WrittenParams::of(&self.spec, own)
    }
}

impl<B: StackBlock> Module for Modules<B> {
    fn parameters(&self) -> &Parameters {
        &self.parameters
    }
}

impl<B: StackBlock> Model for Modules<B> {
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
            let width = if block >= end { self.spec.output_size() } else { self.spec.dim_model };
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
        let hidden = self.all_tokens(hidden, flow.len(), batch, cx)?; // [B, L, output_size]
        let hidden = length_scaled(&hidden, self.spec.length_scale, cx)?; // [B, L, output_size]
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
