//! Learning from a teacher beside the labels.

use super::{Objective, ObjectiveLoss, Pass, Supervised};
use crate::Result;
use bmtrain_core::Ctx;
use bmtrain_core::ops::Distilled;
use model_center_models::TextModel;
use model_center_models::distillation::{DistillationLoss, teaching};
use std::fmt;

/// The teacher of a run, and the loss of its student.
pub(super) struct Distillation {
    pub(super) teacher: Box<dyn TextModel>,
    pub(super) loss: DistillationLoss,
    /// The loss of the labels.
    pub(super) supervised: Supervised,
}

impl fmt::Debug for Distillation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Distillation").field("loss", &self.loss).finish_non_exhaustive()
    }
}

impl Objective for Distillation {
    /// The teacher's pass leaves nothing on the tape.
    fn loss(&self, pass: &Pass<'_>, cx: &mut Ctx) -> Result<ObjectiveLoss> {
        let taught = {
            let _teacher = tracing::debug_span!("teacher").entered();
            teaching(&*self.teacher, pass.batch, cx.device())?
        };
        let given = (&taught, self.supervised.settings(0.0));
        let Distilled { loss, divergence } = self.loss.of(pass.model, pass.batch, given, cx)?;
        Ok(ObjectiveLoss { loss, numbers: vec![divergence] })
    }

    fn metrics(&self) -> &[&'static str] {
        &["distillation"]
    }
}
