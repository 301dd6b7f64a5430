//! A model that learns from the outputs of another one, its teacher: knowledge distillation.
//!
//! Defines [`DistillationLoss`]; what a teacher hands over is [`Teaching`], made by
//! [`TextModel::teaching`](crate::model::TextModel::teaching), and
//! [`TextModel::distilled`](crate::model::TextModel::distilled) is the loss of its student.

use bmtrain_core::Tensor;
use bmtrain_core::ops::{Distillation, TeacherHead};

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

/// What a student learns of a batch from its teacher. It has no gradient.
#[derive(Debug, Clone)]
pub enum Teaching {
    /// Hidden states and output matrix: the student's loss computes logits of them in chunks.
    Head(TeacherHead),
    /// The logits of a classifier, `[B, outputs]`.
    Logits(Tensor),
}
