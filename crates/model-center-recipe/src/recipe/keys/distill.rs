//! The keys of `[distill]`: a teacher whose outputs are learned beside the labels.

use super::{Settings, adapter};
use crate::recipe::engine::kinds::{Expected, Range};
use crate::recipe::engine::reader::Reader;
use crate::recipe::engine::table::settings;
use bmtrain_core::ops::{Distillation, Divergence};
use model_center_models::distillation::DistillationLoss;

const TEACHER: Expected =
    Expected { what: "the path or the name of the teacher's model directory", example: "models/large" };
const DIVERGENCES: [(&str, Divergence); 3] =
    [("forward", Divergence::Forward), ("reverse", Divergence::Reverse), ("js", Divergence::JensenShannon)];

settings! {
    #[derive(Debug)]
    pub(super) struct DistillKeys in "distill" (r) {
        /// Directory or hub name of a model whose logits are learned beside the labels, of tasks `language`, `sft` and
        /// classifications. It has the same vocabulary, and of classes the same ones. See
        /// [distillation](distillation.md).
        teacher: Option<String> = optional_text("not set: no teacher", TEACHER), "0.2";
        /// What the logits of teacher and student are divided by; the divergence is multiplied by its square.
        temperature: f32 = single(1.0, Range::Above(0.0)), "0.2";
        /// Share of the divergence in the loss, above 0; the rest is the loss of the labels.
        weight: f32 = single(0.5, Range::Within(0.0, 1.0)), "0.2";
        /// Divergence of the student from the teacher: `forward` from teacher to student, `reverse`, or `js`, the
        /// divergence of Jensen and Shannon.
        divergence: Divergence = choice(&DIVERGENCES, Divergence::Forward), "0.2";
    }
}

/// `[distill]`: what is learned from a teacher.
#[derive(Debug, Clone, PartialEq)]
pub struct DistillSettings {
    /// The directory of the teacher, or its name on the hub.
    pub teacher: String,
    /// The loss.
    pub loss: DistillationLoss,
}

/// Reads the table; `None` without a teacher.
pub(super) fn read(r: &mut Reader) -> Option<DistillSettings> {
    let DistillKeys { teacher, temperature, weight, divergence } = DistillKeys::read(r);
    let Some(teacher) = teacher else {
        let (why, fix) = ("distill.teacher is not set", "set distill.teacher, or remove it");
        for row in DistillKeys::TABLE.rows().iter().skip(1) {
            r.without_effect(row.key, "distill.teacher", why, fix);
        }
        return None;
    };
    let distillation = Distillation { divergence, temperature };
    Some(DistillSettings { teacher, loss: DistillationLoss { distillation, weight } })
}

/// Adds what contradicts itself.
pub(crate) fn check(r: &mut Reader, s: &Settings) {
    let Some(distill) = &s.distill else { return };
    if distill.loss.weight == 0.0 {
        let reason = "a weight of 0 leaves the teacher without effect";
        r.contradiction(&["distill.weight"], reason, "give a number above 0, or remove the table [distill]");
    }
    if !s.data.source.task().has_teachable_labels() {
        let reason = "a student learns next tokens or one class of each text, and this task has other labels";
        let fix = "remove the table [distill], or choose task language, sft or classification";
        r.contradiction(&["data.task", "distill.teacher"], reason, fix);
    }
    for (key, ranks) in [("parallel.tensor", s.parallel.tensor), ("parallel.pipeline", s.parallel.pipeline)] {
        if ranks > 1 {
            let reason = "logits of a teacher are compared on data-parallel ranks alone";
            r.contradiction(&["distill.teacher", key], reason, format!("set {key} = 1"));
        }
    }
    if adapter::is_of(r, &["prompt"]) {
        let reason = "virtual tokens are in every sequence, and the teacher has none";
        r.contradiction(&["distill.teacher", "adapter.method"], reason, "set adapter.method = \"lora\"");
    }
}
