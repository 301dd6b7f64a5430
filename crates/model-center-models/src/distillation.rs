//! A model that learns from the outputs of another one, its teacher: knowledge distillation.
//!
//! Defines [`teaching`], what a teacher hands over, and [`DistillationLoss`], whose [`of`](DistillationLoss::of) is the
//! loss of its student.

use crate::Result;
use crate::model::{ForwardOptions, HiddenOutputs, LmOperands, LossSettings, TextModel};
use bmtrain_core::ops::{self, CrossEntropy, Distillation, Distilled, LinearDistillation, StudentHead, TeacherHead};
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
use model_center_base::batch::{Batch, IGNORED};
use model_center_base::error::Error;

/// The loss of a student: `(1 - weight)` times the loss of the labels, plus `weight` times the divergence of the
/// student's distribution from the teacher's, times the square of the temperature.
///
/// Both are means over the tokens, or the samples, that count in the loss.
///
/// Source: Hinton et al. (2015).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DistillationLoss {
    /// How the distributions are compared.
    pub distillation: Distillation,
    /// Share of the divergence in the loss, above 0 and at most 1.
    pub weight: f32,
}

impl Default for DistillationLoss {
    fn default() -> Self {
        DistillationLoss { distillation: Distillation::default(), weight: 0.5 }
    }
}

/// A teacher's outputs for a batch. It has no gradient.
#[derive(Debug, Clone)]
pub enum Teaching {
    /// Hidden states and output matrix: the student's loss computes logits of them in chunks.
    Head(TeacherHead),
    /// The logits of a classifier, `[B, outputs]`.
    Logits(Tensor),
}

/// A teacher's outputs for a batch: logits of classes, or the operands of tokens' logits. Nothing is recorded. The
/// labels of the batch are the student's.
///
/// # Errors
/// As [`TextModel::hidden`]; a model without a classifier and without a language-modelling head, several
/// tensor-parallel ranks, virtual tokens.
pub fn teaching(teacher: &dyn TextModel, batch: &Batch, device: &Device) -> Result<Teaching> {
    let mut cx = Ctx::inference(device);
    if !teacher.info().head.is_lm() {
        let output = teacher.forward(batch, None, &mut cx)?;
        let logits = output.logits.ok_or_else(|| refused("it has no head whose logits can be learned"))?;
        return Ok(Teaching::Logits(logits.into_value())); // [B, outputs]
    }
    let hidden = teacher.hidden(batch, HiddenOutputs::LmOperands, &mut cx)?;
    let is_sharded = |lm: &LmOperands| lm.shard.as_ref().is_some_and(|shard| shard.ranks().size() > 1);
    let is_plain = hidden.virtual_tokens == 0 && batch.verbalizer.is_none();
    let lm = hidden.lm.filter(|lm| is_plain && !is_sharded(lm));
    let lm =
        lm.ok_or_else(|| refused("it is sharded over tensor-parallel ranks, has virtual tokens or label words"))?;
    Ok(Teaching::Head(lm.into_teacher()?))
}

impl DistillationLoss {
    /// The loss of a student, f32 `[1]`, with the divergence in it, means over what counts in [`TextModel::loss`]. The
    /// logits of tokens are not stored. Where classes have weights, the class of a sample weighs its divergence, too.
    ///
    /// # Errors
    /// As [`TextModel::hidden`]; outputs of another kind or number than the teacher's, several tensor-parallel ranks,
    /// virtual tokens.
    pub fn of(
        self,
        student: &dyn TextModel,
        batch: &Batch,
        (teaching, settings): (&Teaching, LossSettings<'_>),
        cx: &mut Ctx,
    ) -> Result<Distilled> {
        match student.info().head.is_lm() {
            true => self.of_tokens(student, batch, (teaching, settings), cx),
            false => self.of_classes(student, batch, (teaching, settings), cx),
        }
    }

    fn of_tokens(
        self,
        student: &dyn TextModel,
        batch: &Batch,
        (teaching, settings): (&Teaching, LossSettings<'_>),
        cx: &mut Ctx,
    ) -> Result<Distilled> {
        let Teaching::Head(teacher) = teaching else { return Err(refused("the teacher is not a language model")) };
        let hidden = student.hidden(batch, HiddenOutputs::LmOperands, cx)?;
        if hidden.virtual_tokens > 0 {
            return Err(refused("virtual tokens are in every sequence of the student, and the teacher has none"));
        }
        let (lm, targets) = hidden.lm_targets(cx.device())?;
        if lm.shard.as_ref().is_some_and(|shard| shard.ranks().size() > 1) {
            return Err(refused("logits of all tokens are compared, on one tensor-parallel rank"));
        }
        let (counted, _) = self.counted(&hidden.targets, None, cx.device())?; // [B L]
        let label_smoothing = settings.label_smoothing;
        let loss = lm.in_chunks(CrossEntropy { label_smoothing, ..CrossEntropy::default() }, cx.device());
        let DistillationLoss { distillation, weight } = self;
        let (chunk_bytes, classes) = (loss.chunk_bytes, lm.shard.as_ref().map(|_| lm.classes()));
        let options = LinearDistillation { loss: loss.loss, distillation, weight, chunk_bytes, classes };
        let head = StudentHead { hidden: &lm.hidden, weight: &lm.weight, bias: lm.bias.as_ref() };
        Ok(ops::linear_distillation(cx, head, teacher, &targets, &counted, &options)?)
    }

    fn of_classes(
        self,
        student: &dyn TextModel,
        batch: &Batch,
        (teaching, loss): (&Teaching, LossSettings<'_>),
        cx: &mut Ctx,
    ) -> Result<Distilled> {
        let wrong = |reason: &str| Error::data("labels", reason, "distil next tokens, or one class of each sample");
        let labels = batch.labels.as_ref().ok_or_else(|| wrong("there are none"))?;
        let ids = labels.ids().ok_or_else(|| wrong("they are not class numbers"))?;
        let Teaching::Logits(teacher) = teaching else { return Err(refused("the teacher has no classifier's logits")) };
        let (counted, total) = self.counted(ids, loss.class_weights, cx.device())?; // [B]
        let output = student.forward_with(batch, ForwardOptions { loss, ..ForwardOptions::default() }, cx)?;
        let other = || refused("the outputs of the student are of another kind than the teacher's");
        let (logits, of_labels) = output.logits.zip(output.loss).ok_or_else(other)?; // [B, outputs], [1]
        let DistillationLoss { distillation, weight } = self;
        let each = ops::logits_divergence(cx, &logits, teacher, distillation)?; // [B]
        let sum = ops::sum(cx, &ops::mul(cx, &each, &Var::constant(counted))?)?; // [1]
        let mean = ops::scale(cx, &sum, if total > 0.0 { 1.0 / total } else { 0.0 })?; // [1]
        let divergence = mean.value().clone();
        let share = ops::scale(cx, &mean, weight)?; // [1]
        let loss = match weight {
            1.0 => share,
            _ => ops::add(cx, &ops::scale(cx, &of_labels, 1.0 - weight)?, &share)?, // [1]
        };
        Ok(Distilled { loss, divergence })
    }

    /// f32, what each sample, or each token, counts in the divergence, 0 where the label is ignored; and the sum.
    fn counted(self, labels: &[i64], class_weights: Option<&[f32]>, device: &Device) -> Result<(Tensor, f32)> {
        let weight = |id: &i64| match class_weights {
            _ if *id == IGNORED => Some(0.0),
            None => Some(1.0),
            Some(weights) => usize::try_from(*id).ok().and_then(|class| weights.get(class)).copied(),
        };
        let counted = labels.iter().map(weight).collect::<Option<Vec<f32>>>();
        let counted = counted.ok_or_else(|| {
            let fix = "distil next tokens, or one class of each sample";
            Error::data("labels", "one has no weight in class_weights", fix)
        })?;
        let total = counted.iter().sum();
        Ok((Tensor::from_slice_in(device, [counted.len()], &counted, Segment::Data)?, total))
    }
}

fn refused(reason: &str) -> Error {
    Error::argument("distillation", reason, "distil classifiers, or models with a language-modelling head")
}
