//! What a student learns of a batch from its teacher, on the device.
//!
//! Defines [`Lesson`], a part of a [`DeviceBatch`](super::DeviceBatch) that the heads read.

use super::labels::IGNORED;
use crate::distillation::{DistillationLoss, Teaching};
use crate::model::architecture::Spec;
use crate::model::batch::{are_at_positions, next_tokens};
use crate::model::head::Head;
use bmtrain_core::ops::{self, Distilled};
use bmtrain_core::{Ctx, Device, Segment, Tensor, Var};
use model_center_base::batch::{Batch, Labels};
use model_center_base::error::{Error, Result};

/// The teacher's outputs, and what counts of them.
#[derive(Debug, Clone)]
pub(in crate::model) struct Lesson {
    pub(in crate::model) teaching: Teaching,
    pub(in crate::model) loss: DistillationLoss,
    /// f32, the weight of each sample `[B]`, or of each token `[B L]`: 0 where the label is ignored.
    pub(in crate::model) counted: Tensor,
    /// The sum of these.
    total: f32,
}

impl Lesson {
    /// Of a batch whose labels are class numbers or tokens.
    ///
    /// # Errors
    /// Other labels, or none; class weights without one for a label; out of memory.
    pub(in crate::model) fn upload(
        device: &Device,
        batch: &Batch,
        model: (&Spec, Head),
        (teaching, loss): (Teaching, DistillationLoss),
    ) -> Result<Self> {
        let wrong = |reason: &str| Error::data("labels", reason, "distil next tokens, or one class of each sample");
        let labels = batch.labels.as_ref().ok_or_else(|| wrong("there are none"))?;
        let ids = labels.ids().ok_or_else(|| wrong("they are not class numbers"))?;
        let shifted = !are_at_positions(labels, model) && !matches!(labels, Labels::Predicted(_));
        let shifted = shifted.then(|| next_tokens(ids, batch));
        let weight = |id: &i64| match &batch.class_weights {
            _ if *id == IGNORED => Some(0.0),
            None => Some(1.0),
            Some(weights) => usize::try_from(*id).ok().and_then(|class| weights.get(class)).copied(),
        };
        let counted = shifted.as_deref().unwrap_or(ids).iter().map(weight).collect::<Option<Vec<f32>>>();
        let counted = counted.ok_or_else(|| wrong("one has no weight in class_weights"))?;
        let total = counted.iter().sum();
        let counted = Tensor::from_slice_in(device, [counted.len()], &counted, Segment::Data)?;
        Ok(Lesson { teaching, loss, counted, total })
    }

    /// The loss of a classifier with the logits `[B, outputs]`, whose loss of the labels is `of_labels`, `[1]`.
    pub(in crate::model) fn classified(
        &self,
        logits: &Var,
        of_labels: &Var,
        cx: &Ctx,
    ) -> bmtrain_core::Result<Distilled> {
        let DistillationLoss { distillation, weight } = self.loss;
        let Teaching::Logits(teacher) = &self.teaching else {
            return Err(bmtrain_core::Error::argument("distillation", "the teacher has no classifier's logits"));
        };
        let each = ops::logits_divergence(cx, logits, teacher, distillation)?; // [B]
        let sum = ops::sum(cx, &ops::mul(cx, &each, &Var::constant(self.counted.clone()))?)?; // [1]
        let mean = ops::scale(cx, &sum, if self.total > 0.0 { 1.0 / self.total } else { 0.0 })?; // [1]
        let divergence = mean.value().clone();
        let share = ops::scale(cx, &mean, weight)?; // [1]
        let loss = match weight {
            1.0 => share,
            _ => ops::add(cx, &ops::scale(cx, of_labels, 1.0 - weight)?, &share)?, // [1]
        };
        Ok(Distilled { loss, divergence })
    }
}
