//! A teacher in the programs: classifiers and language models, on any layout of data-parallel ranks, resumed, planned.

use crate::fixture::{Fixture, Outcome, golden};
use crate::tensor::{course, numbers, records, train};
use serde_json::Value;

const WORDS: [&str; 11] = ["good", "the", "film", "bad", "plot", "is", "a", "very", "end", "cast", "of"];

/// A tiny GPT-2 that learns texts, and another one as its teacher.
fn decoder() -> Fixture {
    let fixture = Fixture::decoder();
    let text = |first: usize| (0..6).map(|at| WORDS[(first + at * at) % WORDS.len()]).collect::<Vec<_>>().join(" ");
    let lines = |count: usize| (0..count).map(|at| format!("{{\"text\": \"{}\"}}\n", text(at))).collect::<String>();
    fixture.write("train.jsonl", &lines(16));
    fixture.write("eval.jsonl", &lines(6));
    fixture.replace("recipe.toml", "\"classification\"", "\"language\"");
    for file in ["config.json", "model.safetensors"] {
        let bytes = std::fs::read(golden("gpt2_a", "untied").join(file)).unwrap();
        fixture.write_bytes(&format!("teacher/{file}"), &bytes);
    }
    fixture.write("teacher/vocab.txt", &fixture.read("model/vocab.txt"));
    fixture
}

const SETS: [&str; 10] = [
    "train.steps=6",
    "train.lr=1e-3",
    "train.batch_size=8",
    "train.micro_batch_size=2",
    "train.gradient_sum=elastic",
    "eval.every=3 steps",
    "eval.batch_size=4",
    "save.which=last",
    "distill.temperature=2",
    "log.every=1",
];

fn run(fixture: &Fixture, dir: &str, ranks: usize, sets: &[&str]) -> Outcome {
    train(fixture, dir, ranks, &[&SETS[..], sets].concat())
}

/// A run of one rank, some of two ranks and one that is cut off and resumed have the same bits.
fn check_ranks_and_resume(fixture: &Fixture, name: &str, sets: &[&str]) {
    let sets = [sets, &["checkpoint.every=2 steps"]].concat();
    run(fixture, name, 1, &sets).succeeded();
    let expected = course(fixture, name);
    let steps = records(fixture, name, "step");
    assert_eq!(steps.len(), 6);
    assert!(numbers(&steps, "distillation").iter().all(|value| *value > 0.0), "{steps:?}");
    for level in ["2", "3"] {
        let (dir, zero) = (format!("{name}_{level}"), format!("parallel.zero={level}"));
        run(fixture, &dir, 2, &[&sets[..], &[&zero]].concat()).succeeded();
        assert_eq!(course(fixture, &dir), expected, "{name} on two ranks, ZeRO-{level}");
    }
    let cut = format!("output.dir={name}_cut");
    let all = SETS.iter().chain(&sets).copied().chain([cut.as_str()]).flat_map(|set| ["--set", set]);
    let arguments: Vec<&str> = ["--exit-after-steps", "3"].into_iter().chain(all).collect();
    assert_eq!(fixture.finetune(&arguments).code, 75);
    fixture.finetune(&arguments[2..]).succeeded();
    assert_eq!(course(fixture, &format!("{name}_cut")), expected, "{name} resumed");
}

#[test]
fn a_language_model_has_the_same_bits_on_two_ranks_and_after_a_resume() {
    let fixture = decoder();
    check_ranks_and_resume(&fixture, "full", &["distill.teacher=teacher"]);
    check_ranks_and_resume(&fixture, "lora", &["distill.teacher=teacher", "adapter.method=lora"]);
}

#[test]
fn micro_batches_and_recomputation_change_roundings_alone_and_a_student_approaches_its_teacher() {
    let fixture = decoder();
    let sets = ["distill.teacher=teacher", "model.hidden_dropout=0", "model.attention_dropout=0"];
    run(&fixture, "alone", 1, &sets).succeeded();
    let expected = records(&fixture, "alone", "step");
    for (dir, more) in [("large", "train.micro_batch_size=8"), ("blocks", "train.recompute=blocks")] {
        run(&fixture, dir, 1, &[&sets[..], &[more]].concat()).succeeded();
        let steps = records(&fixture, dir, "step");
        for name in ["loss", "grad_norm", "distillation"] {
            for (ours, expected) in numbers(&steps, name).iter().zip(numbers(&expected, name)) {
                assert!((ours - expected).abs() <= 1e-4 * expected.abs().max(1e-2), "{dir}: {name} {ours} {expected}");
            }
        }
    }
    for divergence in ["forward", "reverse", "js"] {
        let set = format!("distill.divergence={divergence}");
        run(&fixture, divergence, 1, &[&sets[..], &[&set, "distill.weight=1", "train.steps=20"]].concat()).succeeded();
        let steps = records(&fixture, divergence, "step");
        let values = numbers(&steps, "distillation");
        assert!(values[19] < 0.7 * values[0], "{divergence}: {values:?}");
        assert_eq!(numbers(&steps, "loss"), values, "{divergence}: the teacher alone");
        // Evaluation is of the labels, whatever is learned.
        assert!(records(&fixture, divergence, "eval")[0]["metrics"]["distillation"].is_null());
    }
}

#[test]
fn a_classifier_learns_from_another_one_with_the_same_bits_on_two_ranks_and_after_a_resume() {
    let fixture = Fixture::new();
    train(&fixture, "teacher", 1, &["train.steps=12", "train.lr=1e-3", "save.which=last"]).succeeded();
    check_ranks_and_resume(&fixture, "student", &["distill.teacher=teacher/model", "data.class_weights=balanced"]);
}

#[test]
fn a_plan_counts_the_teacher() {
    let fixture = decoder();
    let weights = |sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        let arguments: Vec<&str> = ["--recipe", "recipe.toml", "--json"].into_iter().chain(sets).collect();
        let outcome = fixture.run(env!("CARGO_BIN_EXE_plan"), &arguments);
        outcome.stdout
    };
    let (with, without) = (weights(&["distill.teacher=teacher"]), weights(&[]));
    assert_ne!(with, without);
}

#[test]
fn teachers_that_do_not_fit_are_named() {
    let fixture = decoder();
    fixture.write("other/vocab.txt", &fixture.read("model/vocab.txt").replace("film", "movie"));
    for file in ["config.json", "model.safetensors"] {
        fixture.write_bytes(&format!("other/{file}"), &fixture.bytes(&format!("teacher/{file}")));
    }
    let missing = |teacher: &str| fixture.finetune(&["--set", &format!("distill.teacher={teacher}")]).refused();
    let unknown = missing("nowhere");
    assert!(unknown.contains("distill.teacher") && unknown.contains("nowhere"), "{unknown}");
    let other = missing("other");
    assert!(other.contains("is \"movie\", the student's \"film\""), "{other}");
    let error = fixture.finetune(&["--set", "distill.teacher=teacher", "--set", "distill.weight=2"]).refused();
    assert!(error.contains("distill.weight"), "{error}");
}

#[test]
fn a_classifier_of_other_classes_is_no_teacher() {
    let fixture = Fixture::new();
    let config: Value = serde_json::from_str(&fixture.read("model/config.json")).unwrap();
    assert!(config["id2label"].is_null());
    // Without a classifier there is nothing to learn.
    let error = fixture.finetune(&["--set", "distill.teacher=model"]).refused();
    assert!(error.contains("distill.teacher"), "{error}");
}
