//! The keys of `[distill]`.

use super::*;
use bmtrain_core::ops::{Distillation, Divergence};
use model_center::distillation::DistillationLoss;
use model_center::recipe::DistillSettings;

#[test]
fn a_teacher_has_a_loss_and_without_one_its_keys_have_no_effect() {
    assert_eq!(load(LEAST, &[]).distill, None);
    let resolved = load(LEAST, &["distill.teacher=large"]);
    let distillation = Distillation { divergence: Divergence::Forward, temperature: 1.0 };
    let settings =
        DistillSettings { teacher: "large".to_owned(), loss: DistillationLoss { distillation, weight: 0.5 } };
    assert_eq!(resolved.distill, Some(settings));
    let sets = ["distill.teacher=large", "distill.temperature=2", "distill.weight=1", "distill.divergence=js"];
    let other = load(LEAST, &sets);
    let distillation = Distillation { divergence: Divergence::JensenShannon, temperature: 2.0 };
    assert_eq!(other.distill.as_ref().unwrap().loss, DistillationLoss { distillation, weight: 1.0 });
    assert_eq!(*load(&other.to_toml(), &[]), *other);
    assert_ne!(other.recipe_hash(), resolved.recipe_hash());
}

#[test]
fn contradictions_and_settings_without_effect_are_named() {
    let teacher = "distill.teacher=large";
    let of_task = |task: &str| LEAST.replace("classification", task);
    for (text, sets, expected) in [
        (LEAST.to_owned(), &["distill.temperature=2"][..], "distill.teacher is not set"),
        (LEAST.to_owned(), &[teacher, "distill.temperature=0"], "must be a number above 0"),
        (LEAST.to_owned(), &[teacher, "distill.weight=1.5"], "must be a number from 0 to 1"),
        (LEAST.to_owned(), &[teacher, "distill.weight=0"], "a weight of 0 leaves the teacher without effect"),
        (LEAST.to_owned(), &[teacher, "distill.divergence=kl"], "\"forward\""),
        (LEAST.to_owned(), &[teacher, "parallel.tensor=2"], "set parallel.tensor = 1"),
        (LEAST.to_owned(), &[teacher, "parallel.pipeline=2"], "set parallel.pipeline = 1"),
        (LEAST.to_owned(), &[teacher, "adapter.method=prompt"], "virtual tokens are in every sequence"),
        (LEAST.to_owned(), &[teacher, "adapter.method=prompt", "adapter.path=a"], "virtual tokens are in every"),
        (of_task("regression"), &[teacher], "this task has other labels"),
        (of_task("embedding"), &[teacher], "this task has other labels"),
        (of_task("seq2seq"), &[teacher], "this task has other labels"),
        (of_task("preference"), &[teacher], "this task has other labels"),
    ] {
        let found: Vec<String> = mistakes(&text, sets).iter().map(ToString::to_string).collect();
        let found = found.join("\n");
        assert!(found.contains(expected), "{sets:?}: {found}");
    }
    for task in ["language", "sft"] {
        assert!(load(&of_task(task), &[teacher]).distill.is_some(), "{task}");
    }
}
