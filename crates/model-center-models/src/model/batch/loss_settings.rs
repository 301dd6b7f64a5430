//! Settings of a model's own loss that are not properties of its samples.
//!
//! Defines [`LossSettings`], which the objective of a training step passes to
//! [`TextModel::forward_with`](crate::model::TextModel::forward_with).

use crate::model::architecture::Spec;
use model_center_base::batch::Batch;
use model_center_base::error::{Error, Result};

/// Settings of a model's loss of labels.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LossSettings<'a> {
    /// Share of the target probability that is spread over all classes.
    pub label_smoothing: f32,
    /// Weight of each class in the mean of a classifier's loss; `None` for equal weights.
    pub class_weights: Option<&'a [f32]>,
    /// With a verbalizer, the weight of the decoder's next-token loss over the prompts beside the loss of the label
    /// tokens; 0 for none.
    pub prompt_loss: f32,
}

impl LossSettings<'_> {
    /// Checks that the model can count the loss of prompts, where it has a weight.
    pub(in crate::model) fn check(&self, batch: &Batch, spec: &Spec, has_virtual_tokens: bool) -> Result<()> {
        let refused = |reason: &str, fix: &str| Err(Error::data("verbalizer", reason, fix));
        if batch.verbalizer.is_none() || self.prompt_loss == 0.0 {
            return Ok(());
        }
        if !(self.prompt_loss.is_finite() && self.prompt_loss > 0.0) {
            return refused(&format!("a prompt_loss of {}", self.prompt_loss), "give a number from 0 on");
        }
        if spec.is_encoder_decoder() {
            let reason = "an encoder predicts no tokens of a prompt, so their loss cannot count";
            return refused(reason, "leave the loss of the prompt out");
        }
        if has_virtual_tokens {
            let reason = "the loss of prompts would count virtual tokens, which are no tokens of the vocabulary";
            return refused(reason, "set train.prompt_loss = 0");
        }
        Ok(())
    }
}
