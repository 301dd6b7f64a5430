//! The language-modelling head: hidden states to logits over the vocabulary, or over label words, and their loss.

use super::lm_operands::LmOperands;
use super::transform::Transform;
use crate::model::batch::DeviceBatch;
use crate::model::batch::labels::{Targets, VerbalizerTensors};
use crate::model::head::{Head, HeadSpec, batch_loss};
use bmtrain_core::ops::{self, CrossEntropy};
use bmtrain_core::{Ctx, Shape, Tensor, Var};
use bmtrain_dist::nn::{
    embedding::Embedding,
    linear::{Linear, LinearOptions},
};
use bmtrain_dist::param::{Init, Param, TensorSplit};
use bmtrain_dist::{Builder, Result};

/// Output matrix and the layers before it: the transform of masked-LM heads, or a factor.
#[derive(Debug)]
pub(in crate::model) struct LmHead {
    transform: Option<Transform>,
    factor: f32,
    soft_cap: Option<f32>,
    /// Matrix of an untied head.
    matrix: Option<Linear>,
    /// `[V]`, or `[1, V]` as files have it.
    bias: Option<Param>,
}

impl LmHead {
    pub(in crate::model) fn new(builder: &Builder, spec: &HeadSpec, kind: Head, vocab_size: usize) -> Result<Self> {
        // The last axis is the vocabulary.
        let bias = |builder: &Builder, name: &str, shape: Shape| {
            builder.param(name, shape, Init::ZEROS, builder.vocabulary_split(shape.rank() - 1), false)
        };
        if let Some(transform) = spec.transform {
            let transform = Some(Transform::new(&builder.at("lm_head"), spec, transform)?);
            let bias = || bias(builder, "lm_head.decoder.bias", [vocab_size].into());
            let bias = spec.tied_bias.then(bias).transpose()?;
            return Ok(LmHead { transform, factor: 1.0, soft_cap: spec.soft_cap, matrix: None, bias });
        }
        let matrix = LinearOptions::new(spec.size, vocab_size, spec.lm_bias, spec.init).split(TensorSplit::Vocabulary);
        let matrix = (!kind.is_tied()).then(|| Linear::new(&builder.at("lm_head"), matrix)).transpose()?;
        // transformers saves it and does not train it.
        let frozen = || bias(&builder.frozen(), "logits_bias", [1, vocab_size].into());
        let bias = spec.logits_bias.then(frozen).transpose()?;
        Ok(LmHead { transform: None, factor: spec.factor, soft_cap: spec.soft_cap, matrix, bias })
    }

    /// Logits, if requested, and, with labels, the loss. Without logits the loss is computed in chunks, never storing
    /// the logits of all positions.
    pub(in crate::model) fn forward(
        &self,
        hidden: &Var,
        (batch, has_labels): (&DeviceBatch, bool),
        table: &Embedding,
        cx: &mut Ctx,
    ) -> Result<(Option<Var>, Option<Var>)> {
        let read = batch.predicted.as_ref().map(|positions| rows_at(hidden, positions, cx)).transpose()?; // [P, D]
        let operands = self.operands(read.as_ref().unwrap_or(hidden), table, cx)?;
        if let Some(verbalizer) = &batch.verbalizer {
            return self.verbalizer(&operands, (verbalizer, batch), cx);
        }
        let targets = batch.labels.as_ref().filter(|_| has_labels);
        let options = self.options(batch);
        if let (false, Some(Targets::Classes(targets))) = (batch.wants_logits, targets) {
            return Ok((None, Some(operands.cross_entropy(targets, options, cx)?)));
        }
        let own = operands.own_logits(cx)?; // [B, L, V], or the columns of this rank
        let loss = match (targets, &operands.shard) {
            // [1]
            (Some(Targets::Classes(targets)), None) => Some(ops::cross_entropy(cx, &own, targets, &options)?),
            (Some(Targets::Classes(targets)), Some(shard)) => {
                Some(ops::vocabulary_cross_entropy(cx, &own, targets, shard, &options)?) // [1]
            }
            (Some(Targets::Values(_) | Targets::Sets(_)) | None, _) => None,
        };
        Ok((Some(operands.gathered(own, cx)?), loss))
    }

    /// Masked-LM heads have no label smoothing.
    fn options(&self, batch: &DeviceBatch) -> CrossEntropy {
        let label_smoothing = if self.transform.is_some() { 0.0 } else { batch.label_smoothing };
        CrossEntropy { label_smoothing, soft_cap: self.soft_cap, ..CrossEntropy::default() }
    }

    /// Logits of the label words only and, with labels, their loss, plus the weighted next-token loss of the prompts.
    fn verbalizer(
        &self,
        operands: &LmOperands,
        (verbalizer, batch): (&VerbalizerTensors, &DeviceBatch),
        cx: &mut Ctx,
    ) -> Result<(Option<Var>, Option<Var>)> {
        let logits = verbalizer_logits(operands, verbalizer, cx)?; // [B, K]
        let mut loss = batch_loss(&logits, batch, cx)?; // [1]
        if let (Some(of_labels), Some((tokens, weight))) = (&loss, &batch.prompt) {
            let of_prompt = operands.cross_entropy(tokens, self.options(batch), cx)?; // [1]
            loss = Some(ops::add(cx, of_labels, &ops::scale(cx, &of_prompt, *weight)?)?); // [1]
        }
        Ok((Some(logits), loss))
    }

    /// Operands of the output projection of hidden states `[B, L, D]`.
    pub(in crate::model) fn operands(&self, hidden: &Var, table: &Embedding, cx: &Ctx) -> Result<LmOperands> {
        let hidden = match &self.transform {
            Some(transform) => transform.forward(hidden, cx)?, // [B, L, E]
            None if self.factor != 1.0 => ops::scale(cx, hidden, self.factor)?, // [B, L, D]
            None => hidden.clone(),
        };
        let bias = match (&self.bias, self.matrix.as_ref().and_then(Linear::bias)) {
            (Some(bias), _) if bias.spec().shape.dims().len() == 2 => {
                Some(bias.var(cx)?.reshape([bias.local_shape().elements()])?) // [V]
            }
            (Some(bias), _) | (None, Some(bias)) => Some(bias.var(cx)?), // [V]
            (None, None) => None,
        };
        let own = self.matrix.as_ref();
        let weight = own.map_or(table.tied_weight(), Linear::weight).var_as(hidden.dtype(), cx)?; // [V, D]
        let shard = own.map_or(table.shard(), Linear::shard).cloned();
        Ok(LmOperands { hidden, weight, bias, shard, soft_cap: self.soft_cap })
    }
}

/// Hidden states `[P, D]` at positions `[P]` among all tokens of `[B, L, D]`.
fn rows_at(hidden: &Var, positions: &Tensor, cx: &Ctx) -> Result<Var> {
    let [rows, length, dim] = hidden.dims("positions of a head")?;
    let tokens = hidden.reshape([rows * length, dim])?; // [B L, D]
    Ok(ops::embedding(cx, positions, &tokens, None)?) // [P, D]
}

/// Logits `[B, K]` of K label words at one position of each of B sequences.
fn verbalizer_logits(operands: &LmOperands, verbalizer: &VerbalizerTensors, cx: &Ctx) -> Result<Var> {
    let LmOperands { hidden, weight, bias, shard, soft_cap } = operands;
    let of_label_words = |table: &Var| match shard {
        None => ops::embedding(cx, &verbalizer.label_words, table, None),
        Some(shard) => ops::vocabulary_embedding(cx, &verbalizer.label_words, table, shard, None, None),
    };
    let states = rows_at(hidden, &verbalizer.positions, cx)?; // [B, D]
    let label_words = of_label_words(weight)?; // [K, D]
    let bias = match bias {
        Some(bias) => {
            let column = bias.reshape([bias.value().elements(), 1])?; // [V, 1]
            let of_label_words = of_label_words(&column)?; // [K, 1]
            Some(of_label_words.reshape([verbalizer.label_words.elements()])?) // [K]
        }
        None => None,
    };
    let logits = ops::linear(cx, &states, &label_words, bias.as_ref(), None)?; // [B, K]
    Ok(ops::soft_cap(cx, &logits, *soft_cap)?)
}
