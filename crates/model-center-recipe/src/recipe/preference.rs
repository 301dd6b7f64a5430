//! The keys of `[preference]`: the loss of completions that are compared.

use super::data_source::DataSource;
use super::kinds::Range;
use super::reader::Reader;
use super::settings::{EvalMetric, Settings};
use model_center_data::metrics::Metric;
use model_center_data::{PairLabels, SftTask};
use model_center_models::adapter::{Adapter, AdapterConfig};
use model_center_models::preference::{PreferenceKind, PreferenceLoss};

const KEYS: [&str; 6] = [
    "preference.loss",
    "preference.beta",
    "preference.gamma",
    "preference.label_smoothing",
    "preference.good_weight",
    "preference.bad_weight",
];

/// Keys of some kinds of losses, and what they are for.
const OF_KINDS: [(&[&str], &[PreferenceKind], &str); 4] = [
    (&["data.columns.label", "data.columns.completion"], &[PreferenceKind::Kto], "it is for preference.loss = \"kto\""),
    (&["preference.gamma"], &[PreferenceKind::Simpo], "it is for preference.loss = \"simpo\""),
    (
        &["preference.label_smoothing"],
        &[PreferenceKind::Dpo, PreferenceKind::Simpo],
        "it is for preference.loss = \"dpo\" and \"simpo\"",
    ),
    (
        &["preference.good_weight", "preference.bad_weight"],
        &[PreferenceKind::Kto],
        "it is for preference.loss = \"kto\"",
    ),
];

/// Reads the loss, and makes the source's completions judged ones where the loss is of these.
pub(super) fn read(r: &mut Reader, source: &mut DataSource) -> Option<PreferenceLoss> {
    let kind = r.choice("preference.loss", &PreferenceKind::ALL, PreferenceKind::Dpo);
    let loss = PreferenceLoss {
        kind,
        beta: r.single("preference.beta", if kind == PreferenceKind::Simpo { 2.0 } else { 0.1 }, Range::Above(0.0)),
        gamma: r.single("preference.gamma", 0.5, Range::AtLeast(0.0)),
        label_smoothing: r.single("preference.label_smoothing", 0.0, Range::Below(0.0, 0.5)),
        judgement_weights: ["preference.good_weight", "preference.bad_weight"]
            .map(|key| r.single(key, 1.0, Range::AtLeast(0.0))),
    };
    let Some(pairs @ Some(PairLabels::LogProbs)) = source.task_as_mut().map(|task: &mut SftTask| &mut task.pairs)
    else {
        for key in KEYS {
            r.without_effect(key, "data.task", "it is for task preference", "remove it");
        }
        return None;
    };
    if kind == PreferenceKind::Kto {
        *pairs = Some(PairLabels::Judged);
    }
    for (keys, kinds, why) in OF_KINDS {
        for key in keys.iter().filter(|_| !kinds.contains(&kind)) {
            r.without_effect(key, "preference.loss", why, "remove it");
        }
    }
    Some(loss)
}

/// Adds what contradicts itself or has no effect.
pub(super) fn check(r: &mut Reader, s: &Settings) {
    let Some(loss) = &s.preference else { return };
    let why = "pairs have preference.label_smoothing";
    r.without_effect("train.label_smoothing", "data.task", why, "set preference.label_smoothing");
    if s.eval.metric == EvalMetric::Metric(Metric::Kl) && loss.kind != PreferenceKind::Kto {
        let reason = "the divergence is estimated by preference.loss = \"kto\" alone";
        r.contradiction(&["eval.metric", "preference.loss"], reason, "use \"reward_accuracy\" or \"loss\"");
    }
    if s.parallel.pipeline > 1 {
        let reason = "log-probabilities of completions are not compared over pipeline stages";
        r.contradiction(&["data.task", "parallel.pipeline"], reason, "set parallel.pipeline = 1");
    }
    let has_virtual_tokens =
        matches!(s.adapter, Some(Adapter::New(AdapterConfig::Prompt(_) | AdapterConfig::Prefix(_))));
    if loss.kind.has_reference() && has_virtual_tokens {
        let reason = "virtual tokens are in every sequence, and the reference model has none";
        let fix = "set adapter.method = \"lora\", or preference.loss = \"simpo\" or \"orpo\"";
        r.contradiction(&["preference.loss", "adapter.method"], reason, fix);
    }
}
