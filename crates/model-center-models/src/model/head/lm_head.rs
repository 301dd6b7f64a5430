//! The language-modelling head: hidden states to logits over the vocabulary, or over label words, and their loss.

use super::lm_loss::in_chunks;
use crate::distillation::{DistillationLoss, Teaching};
use crate::model::batch::DeviceBatch;
use crate::model::batch::labels::{Targets, VerbalizerTensors};
use crate::model::batch::lesson::Lesson;
use crate::model::head::{Head, HeadSpec, batch_loss};
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{
    self, CrossEntropy, Distilled, LinearCrossEntropy, LinearDistillation, ProductInput, Reduction, StudentHead,
    TeacherHead, VocabularyShard,
};
use bmtrain_core::{Ctx, DType, Segment, Shape, Tensor, Var};
use bmtrain_dist::nn::{
    embedding::Embedding,
    linear::{Linear, LinearOptions},
    norm::Norm,
};
use bmtrain_dist::param::{Init, Param, TensorSplit};
use bmtrain_dist::{Builder, Error, Result};

/// Output matrix and the layers before it: the transform of masked-LM heads, or a factor.
#[derive(Debug)]
pub(in crate::model) struct LmHead {
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
    pub(in crate::model) fn new(builder: &Builder, spec: &HeadSpec, kind: Head, vocab_size: usize) -> Result<Self> {
        let linear = |name: &str, outputs: usize, bias: bool, split: TensorSplit| {
            Linear::new(&builder.at(name), LinearOptions::new(spec.size, outputs, bias, spec.init).split(split))
        };
        // The last axis is the vocabulary.
        let bias = |builder: &Builder, name: &str, shape: Shape| {
            builder.param(name, shape, Init::ZEROS, builder.vocabulary_split(shape.rank() - 1), false)
        };
        if let Some((norm, activation)) = spec.transform {
            let dense = linear("lm_head.dense", spec.size, true, TensorSplit::None)?;
            let norm = Norm::new(&builder.at("lm_head.layer_norm"), norm)?;
            let bias = Some(bias(builder, "lm_head.decoder.bias", [vocab_size].into())?);
            let transform = Some(Transform { dense, activation, norm });
            return Ok(LmHead { transform, factor: 1.0, matrix: None, bias });
        }
        let matrix = || linear("lm_head", vocab_size, spec.lm_bias, TensorSplit::Vocabulary);
        let matrix = (!kind.is_tied()).then(matrix).transpose()?;
        // transformers saves it and does not train it.
        let frozen = || bias(&builder.frozen(), "logits_bias", [1, vocab_size].into());
        let bias = spec.logits_bias.then(frozen).transpose()?;
        Ok(LmHead { transform: None, factor: spec.factor, matrix, bias })
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
            return self.verbalizer(operands, (verbalizer, batch), table, cx);
        }
        let targets = batch.labels.as_ref().filter(|_| has_labels);
        if let (false, Some(Targets::Classes(targets))) = (batch.wants_logits, targets) {
            return Ok((None, Some(self.loss(&operands, targets, batch, table, cx)?)));
        }
        let own = self.own_logits(operands, table, cx)?; // [B, L, V], or the columns of this rank
        let (shard, options) = (self.shard(table), self.options(batch));
        let loss = match (targets, shard) {
            // [1]
            (Some(Targets::Classes(targets)), None) => Some(ops::cross_entropy(cx, &own, targets, &options)?),
            (Some(Targets::Classes(targets)), Some(shard)) => {
                Some(ops::vocabulary_cross_entropy(cx, &own, targets, shard, &options)?) // [1]
            }
            (Some(Targets::Values(_) | Targets::Sets(_)) | None, _) => None,
        };
        Ok((Some(gathered(own, shard, cx)?), loss))
    }

    /// What logits of the batch's tokens are computed from, without gradients.
    pub(in crate::model) fn teacher_head(
        &self,
        hidden: &Var,
        batch: &DeviceBatch,
        table: &Embedding,
        cx: &Ctx,
    ) -> Result<TeacherHead> {
        let read = batch.predicted.as_ref().map(|positions| rows_at(hidden, positions, cx)).transpose()?; // [P, D]
        let (hidden, weight, bias) = self.operands(read.as_ref().unwrap_or(hidden), table, cx)?;
        let classes = self.shard(table).map_or(weight.shape().rows(), |shard| shard.classes().count);
        let unpadded = |tensor: Var| tensor.value().slice(0..classes);
        let (weight, bias) = (unpadded(weight)?, bias.map(unpadded).transpose()?);
        Ok(TeacherHead { hidden: hidden.into_value(), weight, bias })
    }

    /// The loss of a student and the divergence in it, `[1]` each, without the logits of all positions.
    pub(in crate::model) fn distilled(
        &self,
        hidden: &Var,
        (batch, lesson): (&DeviceBatch, &Lesson),
        table: &Embedding,
        cx: &Ctx,
    ) -> Result<Distilled> {
        let wrong = |reason: &str| Error::setting("distillation", reason);
        let Teaching::Head(teacher) = &lesson.teaching else {
            return Err(wrong("the teacher is not a language model"));
        };
        let shard = self.shard(table);
        if shard.is_some_and(|shard| shard.ranks().size() > 1)
            || batch.predicted.is_some()
            || batch.verbalizer.is_some()
        {
            return Err(wrong("logits of all tokens are compared, on one tensor-parallel rank"));
        }
        let Some(Targets::Classes(targets)) = &batch.labels else { return Err(wrong("there are no tokens to learn")) };
        let (hidden, weight, bias) = self.operands(hidden, table, cx)?;
        let LinearCrossEntropy { loss, chunk_bytes, .. } =
            in_chunks(self.options(batch), self.weight(table), cx.device());
        let DistillationLoss { distillation, weight: share } = lesson.loss;
        let classes = shard.map(|shard| shard.classes().count);
        let options = LinearDistillation { loss, distillation, weight: share, chunk_bytes, classes };
        let student = StudentHead { hidden: &hidden, weight: &weight, bias: bias.as_ref() };
        Ok(ops::linear_distillation(cx, student, teacher, targets, &lesson.counted, &options)?)
    }

    /// Logits `[B, L, V]` of hidden states `[B, L, D]`.
    pub(in crate::model) fn logits(&self, hidden: &Var, table: &Embedding, cx: &Ctx) -> Result<Var> {
        let own = self.own_logits(self.operands(hidden, table, cx)?, table, cx)?;
        gathered(own, self.shard(table), cx)
    }

    /// The logits that this tensor-parallel rank computes: all of them, or the logits of its tokens.
    fn own_logits(&self, operands: (Var, Var, Option<Var>), table: &Embedding, cx: &Ctx) -> Result<Var> {
        let (hidden, weight, bias) = operands;
        let hidden = match self.shard(table) {
            Some(shard) => ProductInput::copied(&hidden, shard.ranks()),
            None => ProductInput::from(&hidden),
        };
        Ok(ops::linear(cx, hidden, &weight, bias.as_ref(), None)?)
    }

    /// Masked-LM heads have no label smoothing.
    fn options(&self, batch: &DeviceBatch) -> CrossEntropy {
        let label_smoothing = if self.transform.is_some() { 0.0 } else { batch.label_smoothing };
        CrossEntropy { label_smoothing, ..CrossEntropy::default() }
    }

    /// The loss `[1]` without the logits of all positions, or the sum of each sequence, `[B]`.
    fn loss(
        &self,
        (hidden, weight, bias): &(Var, Var, Option<Var>),
        targets: &Tensor,
        batch: &DeviceBatch,
        table: &Embedding,
        cx: &Ctx,
    ) -> Result<Var> {
        let reduction = if batch.by_sequence { Reduction::None } else { Reduction::Mean };
        let options = LinearCrossEntropy {
            shard: self.shard(table).cloned(),
            ..in_chunks(CrossEntropy { reduction, ..self.options(batch) }, self.weight(table), cx.device())
        };
        let loss = ops::linear_cross_entropy(cx, hidden, weight, bias.as_ref(), targets, &options)?;
        if batch.by_sequence { sum_by_sequence(&loss, cx) } else { Ok(loss) }
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
        let logits = verbalizer_logits(hidden, verbalizer, (weight, bias.as_ref()), self.shard(table), cx)?; // [B, K]
        let mut loss = batch_loss(&logits, batch, cx)?; // [1]
        if let (Some(of_labels), Some((tokens, weight))) = (&loss, &batch.prompt) {
            let of_prompt = self.loss(&operands, tokens, batch, table, cx)?; // [1]
            loss = Some(ops::add(cx, of_labels, &ops::scale(cx, &of_prompt, *weight)?)?); // [1]
        }
        Ok((Some(logits), loss))
    }

    /// Operands of the output projection: hidden states `[B, L, D]`, matrix `[V, D]`, bias `[V]`. With a
    /// [`shard`](LmHead::shard) V is this rank's tokens, with padding.
    fn operands(&self, hidden: &Var, table: &Embedding, cx: &Ctx) -> Result<(Var, Var, Option<Var>)> {
        let hidden = match &self.transform {
            Some(Transform { dense, activation, norm }) => {
                norm.forward(&dense.forward_activated(hidden, *activation, cx)?, cx)? // [B, L, D]
            }
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
        let weight = self.weight(table).var_as(hidden.dtype(), cx)?; // [V, D]
        Ok((hidden, weight, bias))
    }

    /// Which tokens this rank has, where there are several tensor-parallel ranks or the vocabulary is padded.
    fn shard<'a>(&'a self, table: &'a Embedding) -> Option<&'a VocabularyShard> {
        self.matrix.as_ref().map_or(table.shard(), Linear::shard)
    }

    /// `[V, D]`.
    fn weight<'a>(&'a self, table: &'a Embedding) -> &'a Param {
        self.matrix.as_ref().map_or(table.tied_weight(), Linear::weight)
    }
}

/// The sums `[B]` of the losses `[B, L]` of tokens.
fn sum_by_sequence(losses: &Var, cx: &Ctx) -> Result<Var> {
    let [rows, length] = losses.dims("losses of sequences")?;
    let ones = Tensor::full_in(cx.device(), [1, length], DType::F32, 1.0, Segment::Activations)?; // [1, L]
    let sums = ops::linear(cx, losses, &Var::constant(ones), None, None)?; // [B, 1]
    Ok(sums.reshape([rows])?) // [B]
}

/// Logits of all tokens, `[B, L, V]`.
fn gathered(own: Var, shard: Option<&VocabularyShard>, cx: &Ctx) -> Result<Var> {
    match shard {
        Some(shard) => Ok(ops::gather_logits(cx, &own, shard)?),
        None => Ok(own),
    }
}

/// Hidden states `[P, D]` at positions `[P]` among all tokens of `[B, L, D]`.
fn rows_at(hidden: &Var, positions: &Tensor, cx: &Ctx) -> Result<Var> {
    let [rows, length, dim] = hidden.dims("positions of a head")?;
    let tokens = hidden.reshape([rows * length, dim])?; // [B L, D]
    Ok(ops::embedding(cx, positions, &tokens, None)?) // [P, D]
}

/// Logits `[B, K]` of K label words at one position of each of B sequences, from hidden states `[B, L, D]`, the output
/// matrix `[V, D]` and its bias `[V]`.
fn verbalizer_logits(
    hidden: &Var,
    verbalizer: &VerbalizerTensors,
    (weight, bias): (&Var, Option<&Var>),
    shard: Option<&VocabularyShard>,
    cx: &Ctx,
) -> Result<Var> {
    let of_words = |table: &Var| match shard {
        None => ops::embedding(cx, &verbalizer.label_words, table, None),
        Some(shard) => ops::vocabulary_embedding(cx, &verbalizer.label_words, table, shard, None, None),
    };
    let states = rows_at(hidden, &verbalizer.positions, cx)?; // [B, D]
    let words = of_words(weight)?; // [K, D]
    let bias = match bias {
        Some(bias) => {
            let column = bias.reshape([bias.value().elements(), 1])?; // [V, 1]
            let of_words = of_words(&column)?; // [K, 1]
            Some(of_words.reshape([verbalizer.label_words.elements()])?) // [K]
        }
        None => None,
    };
    Ok(ops::linear(cx, &states, &words, bias.as_ref(), None)?) // [B, K]
}
