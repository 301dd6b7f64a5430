//! The keys of `[distill]`: a teacher whose outputs are learned beside the labels.

use super::kinds::{Expected, Range};
use super::reader::Reader;
use super::settings::Settings;
use bmtrain_core::ops::{Distillation, Divergence};
use model_center_models::adapter::{Adapter, AdapterConfig};
use model_center_models::distillation::DistillationLoss;

const TEACHER: Expected =
    Expected { what: "the path or the name of the teacher's model directory", example: "models/large" };
const OF_LOSS: [&str; 3] = ["distill.temperature", "distill.weight", "distill.divergence"];
const DIVERGENCES: [(&str, Divergence); 3] =
    [("forward", Divergence::Forward), ("reverse", Divergence::Reverse), ("js", Divergence::JensenShannon)];

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
    let teacher = r.optional_text("distill.teacher", "not set: no teacher", TEACHER);
    let temperature = r.single("distill.temperature", 1.0, Range::Above(0.0));
    let weight = r.single("distill.weight", 0.5, Range::Within(0.0, 1.0));
    let divergence = r.choice("distill.divergence", &DIVERGENCES, Divergence::Forward);
    let Some(teacher) = teacher else {
        for key in OF_LOSS {
            r.without_effect(key, "distill.teacher", "distill.teacher is not set", "set distill.teacher, or remove it");
        }
        return None;
    };
    let distillation = Distillation { divergence, temperature };
    Some(DistillSettings { teacher, loss: DistillationLoss { distillation, weight } })
}

/// Adds what contradicts itself.
pub(super) fn check(r: &mut Reader, s: &Settings) {
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
    if matches!(s.adapter, Some(Adapter::New(AdapterConfig::Prompt(_)))) {
        let reason = "virtual tokens are in every sequence, and the teacher has none";
        r.contradiction(&["distill.teacher", "adapter.method"], reason, "set adapter.method = \"lora\"");
    }
}
