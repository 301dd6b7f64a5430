//! The language-modelling head: hidden states to logits over the vocabulary, or over label words, and their loss.

use super::batch::DeviceBatch;
use super::head::{Head, HeadSpec, batch_loss};
use super::labels::{Targets, VerbalizerTensors};
use super::lm_loss::in_chunks;
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{self, CrossEntropy};
use bmtrain_core::{Ctx, Shape, Tensor, Var};
use bmtrain_dist::nn::embedding::Embedding;
use bmtrain_dist::nn::linear::{Linear, LinearOptions};
use bmtrain_dist::nn::norm::Norm;
use bmtrain_dist::param::{Init, Param, Split};
use bmtrain_dist::{Builder, Result};

/// Output matrix and the layers before it: the transform of masked-LM heads, or a factor.
#[derive(Debug)]
pub(super) struct LmHead {
    transform: Option<Transform>,
    factor: f32,
    /// Of an untied head.
    matrix: Option<Linear>,
    /// `[V]`, or `[1, V]` as files have it.
    bias: Option<Param>,
}

/// `norm(activation(dense(x)))`.
#[derive(Debug)]
struct Transform {
    dense: Linear,
    activation: Activation,
    norm: Norm,
}

impl LmHead {
    pub(super) fn new(builder: &Builder, spec: &HeadSpec, kind: Head, vocab_size: usize) -> Result<Self> {
        let linear = |name: &str, outputs: usize, bias: bool| {
            Linear::new(&builder.at(name), LinearOptions::new(spec.size, outputs, bias, spec.init))
        };
        let bias = |builder: &Builder, name: &str, shape: Shape| {
            builder.param(name, shape, Init::ZEROS, Split::Replicated, false)
        };
        if let Some((norm, activation)) = spec.transform {
            let dense = linear("lm_head.dense", spec.size, true)?;
            let norm = Norm::new(&builder.at("lm_head.layer_norm"), norm)?;
            let bias = Some(bias(builder, "lm_head.decoder.bias", [vocab_size].into())?);
            let transform = Some(Transform { dense, activation, norm });
            return Ok(LmHead { transform, factor: 1.0, matrix: None, bias });
        }
        let matrix = (!kind.is_tied()).then(|| linear("lm_head", vocab_size, spec.lm_bias)).transpose()?;
        // transformers saves it and does not train it.
        let frozen = || bias(&builder.frozen(), "logits_bias", [1, vocab_size].into());
        let bias = spec.logits_bias.then(frozen).transpose()?;
        Ok(LmHead { transform: None, factor: spec.factor, matrix, bias })
    }

    /// Logits, if requested, and, with labels, the loss. Without logits the loss is computed in chunks, never storing
    /// the logits of all positions.
    pub(super) fn forward(
        &self,
        hidden: &Var,
        (batch, has_labels): (&DeviceBatch, bool),
        table: &Embedding,
        cx: &mut Ctx,
    ) -> Result<(Option<Var>, Option<Var>)> {
        let operands = self.operands(hidden, table, cx)?;
        if let Some(verbalizer) = &batch.verbalizer {
            return self.verbalizer(operands, (verbalizer, batch), table, cx);
        }
        let targets = batch.labels.as_ref().filter(|_| has_labels);
        if let (false, Some(Targets::Classes(targets))) = (batch.wants_logits, targets) {
            return Ok((None, Some(self.loss(&operands, targets, batch, table, cx)?)));
        }
        let (hidden, weight, bias) = operands;
        let logits = ops::linear(cx, &hidden, &weight, bias.as_ref(), None)?; // [B, L, V]
        let loss = match targets {
            // [1]
            Some(Targets::Classes(targets)) => Some(ops::cross_entropy(cx, &logits, targets, &self.options(batch))?),
            Some(Targets::Values(_)) | None => None,
        };
        Ok((Some(logits), loss))
    }

    /// Masked-LM heads have no label smoothing.
    fn options(&self, batch: &DeviceBatch) -> CrossEntropy {
        let label_smoothing = if self.transform.is_some() { 0.0 } else { batch.label_smoothing };
        CrossEntropy { label_smoothing, ..CrossEntropy::default() }
    }

    /// The loss `[1]` without the logits of all positions.
    fn loss(
        &self,
        (hidden, weight, bias): &(Var, Var, Option<Var>),
        targets: &Tensor,
        batch: &DeviceBatch,
        table: &Embedding,
        cx: &Ctx,
    ) -> Result<Var> {
        let options = in_chunks(self.options(batch), self.weight(table));
        Ok(ops::linear_cross_entropy(cx, hidden, weight, bias.as_ref(), targets, &options)?)
    }

    /// Logits of the label words only and, with labels, their loss, plus the weighted next-token loss of the prompts.
    fn verbalizer(
        &self,
        operands: (Var, Var, Option<Var>),
        (verbalizer, batch): (&VerbalizerTensors, &DeviceBatch),
        table: &Embedding,
        cx: &mut Ctx,
    ) -> Result<(Option<Var>, Option<Var>)> {
        let (hidden, weight, bias) = &operands;
        let logits = verbalizer_logits(hidden, verbalizer, (weight, bias.as_ref()), cx)?; // [B, K]
        let mut loss = batch_loss(&logits, batch, cx)?; // [1]
        if let (Some(of_labels), Some((tokens, weight))) = (&loss, &batch.prompt) {
            let of_prompt = self.loss(&operands, tokens, batch, table, cx)?; // [1]
            loss = Some(ops::add(cx, of_labels, &ops::scale(cx, &of_prompt, *weight)?)?); // [1]
        }
        Ok((Some(logits), loss))
    }

    /// Operands of the output projection: hidden states `[B, L, D]`, matrix `[V, D]`, bias `[V]`.
    pub(super) fn operands(&self, hidden: &Var, table: &Embedding, cx: &Ctx) -> Result<(Var, Var, Option<Var>)> {
        let hidden = match &self.transform {
            Some(Transform { dense, activation, norm }) => {
                norm.forward(&dense.forward_activated(hidden, *activation, cx)?, cx)? // [B, L, D]
            }
            None if self.factor != 1.0 => ops::scale(cx, hidden, self.factor)?, // [B, L, D]
            None => hidden.clone(),
        };
        let bias = match (&self.bias, self.matrix.as_ref().and_then(Linear::bias)) {
            (Some(bias), _) if bias.spec().shape.dims().len() == 2 => {
                Some(bias.var(cx)?.reshape([bias.spec().shape.elements()])?) // [V]
            }
            (Some(bias), _) | (None, Some(bias)) => Some(bias.var(cx)?), // [V]
            (None, None) => None,
        };
        Ok((hidden, self.weight(table).var(cx)?, bias))
    }

    /// `[V, D]`.
    fn weight<'a>(&'a self, table: &'a Embedding) -> &'a Param {
        self.matrix.as_ref().map_or(table.weight(), Linear::weight)
    }
}

/// Logits `[B, K]` of K label words at one position of each of B sequences, from hidden states `[B, L, D]`, the output
/// matrix `[V, D]` and its bias `[V]`.
fn verbalizer_logits(
    hidden: &Var,
    verbalizer: &VerbalizerTensors,
    (weight, bias): (&Var, Option<&Var>),
    cx: &Ctx,
) -> Result<Var> {
    let [rows, length, dim] = hidden.dims("verbalizer_logits")?;
    let tokens = hidden.reshape([rows * length, dim])?; // [B L, D]
    let states = ops::embedding(cx, &verbalizer.positions, &tokens, None)?; // [B, D]
    let words = ops::embedding(cx, &verbalizer.label_words, weight, None)?; // [K, D]
    let bias = match bias {
        Some(bias) => {
            let column = bias.reshape([bias.value().elements(), 1])?; // [V, 1]
            let of_words = ops::embedding(cx, &verbalizer.label_words, &column, None)?; // [K, 1]
            Some(of_words.reshape([verbalizer.label_words.elements()])?) // [K]
        }
        None => None,
    };
    Ok(ops::linear(cx, &states, &words, bias.as_ref(), None)?) // [B, K]
}
