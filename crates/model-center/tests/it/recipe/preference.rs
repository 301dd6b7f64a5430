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
    let dpo = PreferenceLoss {
        kind: PreferenceKind::Dpo,
        beta: 0.1,
        gamma: 0.5,
        label_smoothing: 0.0,
        label_weights: [1.0, 1.0],
    };
    assert_eq!((resolved.preference, resolved.eval.metric), (Some(dpo), EvalMetric::Loss));
    assert_eq!(resolved.data.source.task().name(), "preference");
    let simpo = load(&of("preference"), &["preference.loss=simpo", "preference.gamma=1.6"]);
    let expected = PreferenceLoss { kind: PreferenceKind::Simpo, beta: 2.0, gamma: 1.6, ..dpo };
    assert_eq!(simpo.preference, Some(expected));
    assert_eq!(*load(&simpo.to_toml(), &[]), *simpo);
    assert_ne!(simpo.recipe_hash(), resolved.recipe_hash());
    let rewards = load(&of("reward"), &["data.columns.chosen=good"]);
    let SftTask { pairs, columns, .. } = rewards.data.source.task_as().unwrap();
    assert_eq!((*pairs, columns.chosen.as_deref()), (Some(PairLabels::Rewards), Some("good")));
    assert_eq!((rewards.preference, rewards.eval.metric), (None, EvalMetric::Metric(Metric::Accuracy)));
}

#[test]
fn kto_has_unpaired_completions_and_weights_of_both_labels() {
    let sets =
        ["preference.loss=kto", "preference.bad_weight=1.5", "data.columns.label=ok", "data.columns.completion=y"];
    let kto = load(&of("preference"), &sets);
    let loss = PreferenceLoss { label_weights: [1.0, 1.5], ..PreferenceLoss::new(PreferenceKind::Kto) };
    assert_eq!((kto.preference, kto.data.source.task().name()), (Some(loss), "preference"));
    let SftTask { pairs, columns, .. } = kto.data.source.task_as().unwrap();
    assert_eq!(*pairs, Some(PairLabels::Unpaired));
    assert_eq!([columns.label.as_deref(), columns.completion.as_deref()], [Some("ok"), Some("y")]);
    assert_eq!(*load(&kto.to_toml(), &[]), *kto);
    let by_divergence = load(&of("preference"), &["preference.loss=kto", "eval.metric=kl"]);
    assert_eq!(by_divergence.eval.metric, EvalMetric::Metric(Metric::Kl));
    let orpo = load(&of("preference"), &["preference.loss=orpo"]);
    assert_eq!(orpo.preference, Some(PreferenceLoss::new(PreferenceKind::Orpo)));
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
        ("preference", &["adapter.method=prompt", "adapter.path=a"], "the reference model has none"),
        ("preference", &["adapter.method=prefix"], "the reference model has none"),
        ("preference", &["data.packing=true"], "it is for tasks language and sft"),
        ("preference", &["eval.metric=f1"], "use \"reward_accuracy\" or \"loss\""),
        ("reward", &["data.loss_on=last"], "the head reads a sequence as a whole"),
        ("preference", &["preference.loss=orpo", "preference.label_smoothing=0.1"], "it is for preference.loss"),
        ("preference", &["preference.loss=orpo", "preference.gamma=1"], "it is for preference.loss = \"simpo\""),
        ("preference", &["preference.good_weight=2"], "it is for preference.loss = \"kto\""),
        ("preference", &["data.columns.label=ok"], "it is for preference.loss = \"kto\""),
        ("preference", &["data.columns.completion=y"], "it is for preference.loss = \"kto\""),
        ("preference", &["eval.metric=kl"], "the divergence is estimated by preference.loss = \"kto\" alone"),
        ("preference", &["preference.loss=kto", "adapter.method=prompt"], "the reference model has none"),
        ("reward", &["data.columns.completion=y"], "records of pairs have one form"),
        ("dpo", &[], "data.task = \"preference\""),
        ("kto", &[], "data.task = \"preference\""),
        ("grpo", &[], "learns from completions that were compared or judged before"),
    ] {
        let found: Vec<String> = mistakes(&of(task), sets).iter().map(ToString::to_string).collect();
        let found = found.join("\n");
        assert!(found.contains(expected), "{task} {sets:?}: {found}");
    }
    for kind in ["simpo", "orpo"] {
        load(&of("preference"), &["adapter.method=prompt", &format!("preference.loss={kind}")]);
    }
}
