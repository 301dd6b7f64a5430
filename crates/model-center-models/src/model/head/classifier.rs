//! Classifiers of sequences and of tokens, and their losses.
//!
//! Defines [`Classifier`] and [`TokenClassifier`], which [`super::Heads`] has.

use super::pooling::weighted_sum;
use super::{ClassifierInput, HeadDropout};
use crate::model::batch::DeviceBatch;
use crate::model::batch::labels::Targets;
use bmtrain_core::kernel::Activation;
use bmtrain_core::ops::{self, CrossEntropy, Reduction};
use bmtrain_core::{Ctx, Var};
use bmtrain_dist::nn::linear::Linear;
use bmtrain_dist::{Error, Result};

/// A linear layer of every hidden state, after dropout.
#[derive(Debug)]
pub(super) struct TokenClassifier {
    pub(super) projection: Linear,
    pub(super) dropout: f32,
}

impl TokenClassifier {
    /// `[B, L, D]` to `[B, L, outputs]`.
    pub(super) fn forward(&self, hidden: &Var, cx: &mut Ctx) -> Result<Var> {
        let dropout = cx.dropout("token_classifier", self.dropout)?;
        self.projection.forward(&ops::dropout(cx, hidden, dropout)?, cx) // [B, L, outputs]
    }
}

/// Classes of a sequence, of the pooler's output or of one of its tokens.
#[derive(Debug)]
pub(super) struct Classifier {
    pub(super) input: ClassifierInput,
    /// With the function after it.
    pub(super) dense: Option<(Linear, Activation)>,
    pub(super) projection: Linear,
    pub(super) dropout: HeadDropout,
}

impl Classifier {
    /// What it reads of hidden states `[B, L, D]`: `[B, D]`.
    pub(super) fn features(&self, hidden: &Var, pooled: Option<&Var>, batch: &DeviceBatch, cx: &Ctx) -> Result<Var> {
        Ok(match (self.input, pooled) {
            (ClassifierInput::Pooled, Some(pooled)) => pooled.clone(), // [B, D]
            (ClassifierInput::Pooled | ClassifierInput::FirstToken, _) => ops::select_row(cx, hidden, 0)?, // [B, D]
            (ClassifierInput::MeanToken, _) => mean_token(hidden, batch, cx)?, // [B, D]
            (ClassifierInput::LastToken | ClassifierInput::EosToken, _) => last_token(hidden, batch, cx)?, // [B, D]
        })
    }

    /// `[B, D]` to `[B, outputs]`, of multiple choice `[samples, choices]`.
    pub(super) fn forward(&self, mut features: Var, batch: &DeviceBatch, cx: &mut Ctx) -> Result<Var> {
        // Names that distinguish the dropout masks.
        let (before_dense, before_projection) = match self.input {
            ClassifierInput::EosToken => ("cls_dense", "cls_projection"),
            _ => ("classifier_dense", "classifier"),
        };
        if let Some((dense, activation)) = &self.dense {
            let dropout = cx.dropout(before_dense, self.dropout.dense)?;
            features = dense.forward_activated(&ops::dropout(cx, &features, dropout)?, *activation, cx)?; // [B, D]
        }
        let dropout = cx.dropout(before_projection, self.dropout.classifier)?;
        let logits = self.projection.forward(&ops::dropout(cx, &features, dropout)?, cx)?; // [B, outputs]
        match batch.choices {
            1 => Ok(logits),
            choices => Ok(logits.reshape([logits.value().elements() / choices, choices])?), // [samples, choices]
        }
    }
}

/// The mean hidden state `[B, D]` of each sequence's tokens.
///
/// Numerics: sums in `f32`.
fn mean_token(hidden: &Var, batch: &DeviceBatch, cx: &Ctx) -> Result<Var> {
    let missing = || Error::setting("classifier", "the batch does not have the weight of each token");
    let weights = batch.weights.clone().ok_or_else(missing)?; // [B, 1, L]
    Ok(ops::cast(cx, &weighted_sum(hidden, weights, cx)?, hidden.dtype())?) // [B, D]
}

/// The hidden state `[B, D]` of each sequence's last token.
fn last_token(hidden: &Var, batch: &DeviceBatch, cx: &Ctx) -> Result<Var> {
    let missing = || Error::setting("classifier", "the batch does not have the position of each last token");
    let last = batch.last.as_ref().ok_or_else(missing)?;
    let [rows, length, dim] = hidden.dims("classifier")?;
    let tokens = hidden.reshape([rows * length, dim])?; // [B L, D]
    Ok(ops::embedding(cx, last, &tokens, None)?) // [B, D]
}

/// The loss `[1]` of a classifier's logits, if there are labels.
pub(in crate::model) fn batch_loss(logits: &Var, batch: &DeviceBatch, cx: &mut Ctx) -> Result<Option<Var>> {
    Ok(match &batch.labels {
        None => None,
        Some(Targets::Classes(targets)) => {
            let (label_smoothing, class_weights) = (batch.label_smoothing, batch.class_weights.clone());
            let options = CrossEntropy { label_smoothing, class_weights, ..CrossEntropy::default() };
            Some(ops::cross_entropy(cx, logits, targets, &options)?)
        }
        Some(Targets::Values(targets)) => Some(ops::squared_error(cx, logits, targets)?),
        Some(Targets::Sets(targets)) => Some(ops::binary_cross_entropy(cx, logits, targets, Reduction::Mean)?),
    })
}
