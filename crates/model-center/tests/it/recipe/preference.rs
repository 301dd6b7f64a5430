//! The keys of tasks `preference` and `reward`.

use super::*;
use model_center::data::{PairLabels, SftTask};
use model_center::metrics::Metric;
use model_center::preference::{PreferenceKind, PreferenceLoss};

fn of(task: &str) -> String {
    LEAST.replace("classification", task)
}

#[test]
fn pairs_have_a_loss_of_their_own_and_rewards_a_head() {
    let resolved = load(&of("preference"), &[]);
    let dpo = PreferenceLoss { kind: PreferenceKind::Dpo, beta: 0.1, gamma: 0.5, label_smoothing: 0.0 };
    assert_eq!((resolved.preference, resolved.eval.metric), (Some(dpo), EvalMetric::Loss));
    assert_eq!(resolved.data.source.task_name(), "preference");
    let simpo = load(&of("preference"), &["preference.loss=simpo", "preference.gamma=1.6"]);
    let expected = PreferenceLoss { kind: PreferenceKind::Simpo, beta: 2.0, gamma: 1.6, label_smoothing: 0.0 };
    assert_eq!(simpo.preference, Some(expected));
    assert_eq!(*load(&simpo.to_toml(), &[]), *simpo);
    assert_ne!(simpo.recipe_hash(), resolved.recipe_hash());
    let rewards = load(&of("reward"), &["data.columns.chosen=good"]);
    let DataSource::Sft(SftTask { pairs, columns, .. }) = &rewards.data.source else { panic!("{rewards:?}") };
    assert_eq!((*pairs, columns.chosen.as_deref()), (Some(PairLabels::Rewards), Some("good")));
    assert_eq!((rewards.preference, rewards.eval.metric), (None, EvalMetric::Metric(Metric::Accuracy)));
}

#[test]
fn contradictions_and_settings_without_effect_are_named() {
    for (task, sets, expected) in [
        ("sft", &["preference.beta=0.2"][..], "it is for task preference"),
        ("sft", &["data.columns.rejected=bad"], "it is for tasks preference and reward"),
        ("classification", &["data.loss_on=all"], "it is for tasks sft, preference and reward"),
        ("preference", &["data.records=text"], "records of pairs have one form"),
        ("preference", &["preference.gamma=1"], "it is for preference.loss = \"simpo\""),
        ("preference", &["preference.loss=ipo", "preference.label_smoothing=0.1"], "it is for preference.loss"),
        ("preference", &["train.label_smoothing=0.1"], "set preference.label_smoothing"),
        ("preference", &["parallel.pipeline=2"], "are not compared over pipeline stages"),
        ("preference", &["adapter.method=prompt"], "the reference model has none"),
        ("preference", &["data.packing=true"], "it is for tasks language and sft"),
        ("preference", &["eval.metric=f1"], "use \"reward_accuracy\" or \"loss\""),
        ("reward", &["data.loss_on=last"], "the head reads a sequence as a whole"),
        ("dpo", &[], "data.task = \"preference\""),
        ("kto", &[], "data.task = \"preference\" learns from pairs"),
    ] {
        let found: Vec<String> = mistakes(&of(task), sets).iter().map(ToString::to_string).collect();
        let found = found.join("\n");
        assert!(found.contains(expected), "{task} {sets:?}: {found}");
    }
    load(&of("preference"), &["adapter.method=prompt", "preference.loss=simpo"]);
}
