//! What a language model computes with its [`Modules`], see [`TextModel`](crate::model::TextModel): forward passes of
//! a batch, over one stage or several, and decoding.

use super::modules::{Modules, StackBlock};
use crate::distillation::{DistillationLoss, Teaching};
use crate::layer::attention::length_scaled;
use crate::model::batch::DeviceBatch;
use crate::model::batch::decoder_inputs::check_targets;
use crate::model::batch::lesson::Lesson;
use crate::model::decode::decoding::{Decoding, DecodingOptions};
use crate::model::decode::incremental::Incremental;
use crate::model::decode::packed::{Packed, PackedDecoding};
use crate::model::head::Head;
use crate::model::head::pooling::PoolingMode;
use crate::model::text_model::{DIVERGENCE, ForwardOutputs, ModelOutput, Observe};
use bmtrain_core::ops::Distilled;
use bmtrain_core::{Ctx, DType, Device, Tensor, Var, ops};
use bmtrain_dist::pipeline::{BlockCosts, MicroBatch, Pipeline};
use bmtrain_dist::{Model, OptimManager};
use model_center_base::batch::{Batch, VerbalizerPosition};
use model_center_base::error::{Error, Result};

impl<B: StackBlock> Modules<B> {
    pub(in crate::model) fn forward(
        &self,
        batch: &Batch,
        observe: Option<Observe<'_>>,
        cx: &mut Ctx,
    ) -> Result<ModelOutput> {
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

    pub(in crate::model) fn log_probs(&self, batch: &Batch, cx: &mut Ctx) -> Result<Var> {
        let has_labels = self.heads.kind().is_lm() && batch.labels.is_some() && batch.verbalizer.is_none();
        let batch = DeviceBatch { by_sequence: true, ..self.upload(batch, false, cx.device())? };
        let losses = Model::forward(self, &batch, cx)?.loss.filter(|_| has_labels).ok_or_else(|| {
            let fix = "open the model with a language-modelling head, and label tokens";
            Error::data("batch", "it has no log-probabilities of sequences", fix)
        })?;
        Ok(ops::scale(cx, &losses, -1.0)?) // [R]
    }

    pub(in crate::model) fn teaching(&self, batch: &Batch, device: &Device) -> Result<Teaching> {
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

    pub(in crate::model) fn distilled(
        &self,
        batch: &Batch,
        teaching: Teaching,
        loss: DistillationLoss,
        cx: &mut Ctx,
    ) -> Result<Distilled> {
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

    pub(in crate::model) fn embeddings(&self, batch: &Batch, pooling: PoolingMode, cx: &mut Ctx) -> Result<Var> {
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

    pub(in crate::model) fn forward_backward(
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

    pub(in crate::model) fn block_costs(&self, device: &Device, batch: &Batch) -> Result<BlockCosts> {
        let batch = self.upload(batch, false, device)?;
        Ok(BlockCosts::measure(device, self, &batch, loss_of)?)
    }

    pub(in crate::model) fn forward_stages(
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

    pub(in crate::model) fn decoding<'a>(
        &'a self,
        options: DecodingOptions<'_>,
        cx: &mut Ctx,
    ) -> Result<Box<dyn Decoding + 'a>> {
        Ok(Box::new(Incremental::new(self, options, cx)?))
    }

    pub(in crate::model) fn packed_decoding<'a>(&'a self) -> Result<Box<dyn PackedDecoding + 'a>> {
        Ok(Box::new(Packed::new(self)?))
    }

    pub(in crate::model) fn check_targets(&self) -> Result<()> {
        if self.spec.is_encoder_decoder() { check_targets(&self.spec) } else { Ok(()) }
    }

    pub(in crate::model) fn verbalizer_position(&self) -> Result<VerbalizerPosition> {
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
}

/// The loss of a stage's micro-batch.
fn loss_of(output: ModelOutput) -> bmtrain_dist::Result<Var> {
    let missing = || bmtrain_dist::Error::setting("pipeline", "the model has no head for the labels of the batch");
    output.loss.ok_or_else(missing)
}

fn no_teaching(reason: &str) -> Error {
    Error::argument("distillation", reason, "distil classifiers, or models with a language-modelling head")
}
