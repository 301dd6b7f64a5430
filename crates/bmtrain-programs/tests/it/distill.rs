//! A teacher in the programs: classifiers and language models, on any layout of data-parallel ranks, resumed, planned.

use crate::fixture::{Fixture, Outcome, golden};
use crate::tensor::{SHORT, has_the_bits_of_one_rank, numbers, records, train};
use serde_json::Value;

const WORDS: [&str; 11] = ["good", "the", "film", "bad", "plot", "is", "a", "very", "end", "cast", "of"];

/// A tiny GPT-2 that learns texts, and another one as its teacher.
pub fn decoder() -> Fixture {
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

fn run(fixture: &Fixture, dir: &str, ranks: usize, sets: &[&str]) -> Outcome {
    train(fixture, dir, ranks, &[&SHORT[..], &["distill.temperature=2", "log.every=1"], sets].concat())
}

/// On any layout of data-parallel ranks and after a resume; and the divergence is recorded.
fn check_ranks_and_resume(fixture: &Fixture, name: &str, sets: &[&str]) {
    has_the_bits_of_one_rank(fixture, name, &["2", "3"], &[&["distill.temperature=2"], sets].concat());
    let values = numbers(&records(fixture, name, "step"), "distillation");
    assert!(values.iter().all(|value| *value > 0.0), "{values:?}");
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
fn a_classifier_learns_from_another_one_of_the_same_classes_on_two_ranks_and_after_a_resume() {
    let fixture = Fixture::new();
    train(&fixture, "teacher", 1, &["train.steps=12", "train.lr=1e-3", "save.which=last"]).succeeded();
    check_ranks_and_resume(&fixture, "student", &["distill.teacher=teacher/model", "data.class_weights=balanced"]);
    // The same teacher with another name for a class.
    let config = fixture.read("teacher/model/config.json");
    assert!(config.contains("positive"), "{config}");
    fixture.write("teacher/model/config.json", &config.replace("positive", "pleasant"));
    let error = fixture.finetune(&["--set", "distill.teacher=teacher/model"]).refused();
    assert!(error.contains("its classes are") && error.contains("pleasant"), "{error}");
}

#[test]
fn a_plan_has_the_bytes_of_a_run_with_a_teacher() {
    let fixture = decoder();
    // Texts of one length, so that every batch is the largest.
    for file in ["train.jsonl", "eval.jsonl"] {
        fixture.write(file, &"{\"text\": \"the plot of the film is good\"}\n".repeat(16));
    }
    let planned = |dir: &str, sets: &[&str]| -> Value {
        let dir = format!("output.dir={dir}");
        let sets = SHORT.iter().chain(sets).copied().chain([dir.as_str()]).flat_map(|set| ["--set", set]);
        let outcome = fixture.plan(&["--json"].into_iter().chain(sets).collect::<Vec<_>>()).succeeded();
        serde_json::from_str(&outcome.stdout).unwrap()
    };
    let of_pool = |plan: &Value, name: &str| plan["pool"]["at_peak"][name].as_u64().unwrap();
    let sets = ["distill.teacher=teacher"];
    let (plan, without) = (planned("taught", &sets), planned("untaught", &[]));
    assert!(of_pool(&plan, "parameters") > of_pool(&without, "parameters"), "{plan} {without}");
    train(&fixture, "taught", 1, &[&SHORT[..], &sets].concat()).succeeded();
    let log = fixture.read("taught/metrics.jsonl");
    let last: Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    for (name, bytes) in plan["pool"]["at_peak"].as_object().unwrap() {
        assert_eq!(*bytes, last["time"][format!("pool_{name}_bytes")], "{name}: {plan} {last}");
    }
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
fn a_model_without_a_classifier_is_no_teacher_of_one() {
    let fixture = Fixture::new();
    let error = fixture.finetune(&["--set", "distill.teacher=model"]).refused();
    assert!(error.contains("distill.teacher"), "{error}");
}
