//! The keys of `[preference]`: the loss of pairs of completions.

use super::data_source::DataSource;
use super::kinds::Range;
use super::reader::Reader;
use super::settings::Settings;
use crate::adapter::{Adapter, AdapterConfig};
use crate::data::PairLabels;
use crate::preference::{PreferenceKind, PreferenceLoss};

const KEYS: [&str; 4] = ["preference.loss", "preference.beta", "preference.gamma", "preference.label_smoothing"];

pub(super) fn read(r: &mut Reader, source: &DataSource) -> Option<PreferenceLoss> {
    let kind = r.choice("preference.loss", &PreferenceKind::ALL, PreferenceKind::Dpo);
    let loss = PreferenceLoss {
        kind,
        beta: r.single("preference.beta", if kind == PreferenceKind::Simpo { 2.0 } else { 0.1 }, Range::Above(0.0)),
        gamma: r.single("preference.gamma", 0.5, Range::AtLeast(0.0)),
        label_smoothing: r.single("preference.label_smoothing", 0.0, Range::Below(0.0, 0.5)),
    };
    if source.pairs() != Some(PairLabels::LogProbs) {
        for key in KEYS {
            r.without_effect(key, "data.task", "it is for task preference", "remove it");
        }
        return None;
    }
    if kind != PreferenceKind::Simpo {
        let why = "it is for preference.loss = \"simpo\"";
        r.without_effect("preference.gamma", "preference.loss", why, "remove it");
    }
    if kind == PreferenceKind::Ipo {
        let why = "it is for preference.loss = \"dpo\" and \"simpo\"";
        r.without_effect("preference.label_smoothing", "preference.loss", why, "remove it");
    }
    Some(loss)
}

/// Adds what contradicts itself or has no effect.
pub(super) fn check(r: &mut Reader, s: &Settings) {
    let Some(loss) = &s.preference else { return };
    let why = "pairs have preference.label_smoothing";
    r.without_effect("train.label_smoothing", "data.task", why, "set preference.label_smoothing");
    if s.parallel.pipeline > 1 {
        let reason = "log-probabilities of completions are not compared over pipeline stages";
        r.contradiction(&["data.task", "parallel.pipeline"], reason, "set parallel.pipeline = 1");
    }
    if loss.kind.has_reference() && matches!(s.adapter, Some(Adapter::New(AdapterConfig::Prompt(_)))) {
        let reason = "virtual tokens are in every sequence, and the reference model has none";
        let fix = "set adapter.method = \"lora\", or preference.loss = \"simpo\"";
        r.contradiction(&["preference.loss", "adapter.method"], reason, fix);
    }
}
