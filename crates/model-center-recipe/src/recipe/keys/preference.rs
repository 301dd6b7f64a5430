//! The keys of `[preference]`: the loss of completions that are compared.

use super::super::data_source::DataSource;
use super::eval::EvalMetric;
use super::{Settings, adapter};
use crate::recipe::engine::kinds::{Range, name_of, quoted};
use crate::recipe::engine::reader::Reader;
use crate::recipe::engine::table::settings;
use model_center_data::metrics::Metric;
use model_center_data::{PairLabels, SftTask};
use model_center_models::preference::{PreferenceKind, PreferenceLoss};

settings! {
    #[derive(Debug)]
    pub(super) struct PreferenceKeys in "preference" (r) {
        /// Loss of pairs of completions: `dpo`, `ipo`, or `simpo` and `orpo`, which have no reference model; of
        /// completions that are judged one by one: `kto`. See [preferences](preference.md).
        loss: PreferenceKind = choice(&PreferenceKind::ALL, PreferenceKind::Dpo), "0.2";
        /// Factor of log-ratios, or of the mean log-probabilities of SimPO and ORPO, in rewards; of ORPO also of the
        /// term that compares.
        beta: f32 = single(if loss == PreferenceKind::Simpo { 2.0 } else { 0.1 }, Range::Above(0.0)), "0.2",
            default("`0.1`, of `simpo` `2.0`");
        /// SimPO's margin between the rewards of a pair.
        gamma: f32 = single(0.5, Range::AtLeast(0.0)), "0.2", uses(&["simpo"]);
        /// Probability that a preference is the other way round, as in conservative DPO.
        label_smoothing: f32 = single(0.0, Range::Below(0.0, 0.5)), "0.2", uses(&["dpo", "simpo"]);
        /// KTO's weight of the loss of a good completion.
        good_weight: f32 = single(1.0, Range::AtLeast(0.0)), "0.2", uses(&["kto"]);
        /// KTO's weight of the loss of a bad completion.
        bad_weight: f32 = single(1.0, Range::AtLeast(0.0)), "0.2", uses(&["kto"]);
    }
}

/// Reads the loss, and makes the source's completions unpaired where the loss is of these.
pub(super) fn read(r: &mut Reader, source: &mut DataSource) -> Option<PreferenceLoss> {
    let keys = PreferenceKeys::read(r);
    let Some(pairs @ Some(PairLabels::LogProbs)) = source.task_as_mut().map(|task: &mut SftTask| &mut task.pairs)
    else {
        for row in PreferenceKeys::TABLE.rows() {
            r.without_effect(row.key, "data.task", "it is for task preference", "remove it");
        }
        return None;
    };
    let kind = keys.loss;
    if kind == PreferenceKind::Kto {
        *pairs = Some(PairLabels::Unpaired);
    } else {
        for key in ["data.columns.label", "data.columns.completion"] {
            r.without_effect(key, "preference.loss", "it is for preference.loss = \"kto\"", "remove it");
        }
    }
    r.refuse_others(&PreferenceKeys::TABLE, ("preference.loss", name_of(&PreferenceKind::ALL, &kind)), |losses| {
        (format!("it is for preference.loss = {}", quoted(losses, " and ")), "remove it".to_owned())
    });
    let label_weights = [keys.good_weight, keys.bad_weight];
    let PreferenceKeys { beta, gamma, label_smoothing, .. } = keys;
    Some(PreferenceLoss { kind, beta, gamma, label_smoothing, label_weights })
}

/// Adds what contradicts itself or has no effect.
pub(crate) fn check(r: &mut Reader, s: &Settings) {
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
    if loss.kind.has_reference() && adapter::is_of(r, adapter::VIRTUAL_TOKENS) {
        let reason = "virtual tokens are in every sequence, and the reference model has none";
        let fix = "set adapter.method = \"lora\", or preference.loss = \"simpo\" or \"orpo\"";
        r.contradiction(&["preference.loss", "adapter.method"], reason, fix);
    }
}
