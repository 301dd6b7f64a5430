//! The programs over tensor-parallel ranks: training, a forward pass and generation have
//! the results of one rank.

mod models;
mod texts;

use crate::fixture::{Fixture, Outcome, golden};
use model_center::formats::{SafetensorsFile, TensorSource};
use model_center::run::{deterministic_part, without_overtaken};
use models::{FAMILIES, divisible};
use serde_json::Value;
use std::path::Path;

/// f32 sums over two ranks have other terms than sums on one rank.
const TOLERANCE: f64 = 1e-5;

/// Settings of a run that saves nothing.
pub const UNSAVED: [&str; 3] = ["save.which=none", "checkpoint.minutes=0", "train.steps=4"];

pub fn train(fixture: &Fixture, dir: &str, ranks: usize, sets: &[&str]) -> Outcome {
    let (dir, ranks) = (format!("output.dir={dir}"), ranks.to_string());
    let sets = sets.iter().copied().chain([dir.as_str()]).flat_map(|set| ["--set", set]);
    fixture.finetune(&["--ranks", &ranks].into_iter().chain(sets).collect::<Vec<_>>())
}

/// Settings of six steps, of four micro-batches each, with evaluations between them.
pub const SHORT: [&str; 8] = [
    "train.steps=6",
    "train.lr=1e-3",
    "train.batch_size=8",
    "train.micro_batch_size=2",
    "train.gradient_sum=elastic",
    "eval.every=3 steps",
    "eval.batch_size=4",
    "save.which=last",
];

/// A run of [`SHORT`] and these settings on one rank, the same on two ranks with these levels of ZeRO, and one that is
/// cut off and resumed have the same bits.
pub fn has_the_bits_of_one_rank(fixture: &Fixture, name: &str, levels: &[&str], sets: &[&str]) {
    let sets = [&SHORT[..], &["checkpoint.every=2 steps", "log.every=1"], sets].concat();
    train(fixture, name, 1, &sets).succeeded();
    let expected = course(fixture, name);
    assert_eq!(records(fixture, name, "step").len(), 6);
    for level in levels {
        let (dir, zero) = (format!("{name}_{level}"), format!("parallel.zero={level}"));
        train(fixture, &dir, 2, &[&sets[..], &[&zero]].concat()).succeeded();
        assert_eq!(course(fixture, &dir), expected, "{name} on two ranks, ZeRO-{level}");
    }
    // Cut off between the checkpoints of every second step.
    let cut = format!("output.dir={name}_cut");
    let all = sets.iter().copied().chain([cut.as_str()]).flat_map(|set| ["--set", set]);
    let arguments: Vec<&str> = ["--exit-after-steps", "3"].into_iter().chain(all).collect();
    assert_eq!(fixture.finetune(&arguments).code, 75);
    let again = fixture.finetune(&arguments[2..]).succeeded();
    assert!(again.stderr.contains("going on after step 3"), "{}", again.stderr);
    assert_eq!(course(fixture, &format!("{name}_cut")), expected, "{name} resumed");
}

/// The records of a kind in a run's log.
pub fn records(fixture: &Fixture, dir: &str, kind: &str) -> Vec<Value> {
    let log = fixture.read(&format!("{dir}/metrics.jsonl"));
    let records = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    records.filter(|record| record["kind"] == kind).collect()
}

/// What a run's log has that is the same on any number of ranks, after a resume without what was overtaken.
pub fn course(fixture: &Fixture, dir: &str) -> Vec<String> {
    let log = fixture.read(&format!("{dir}/metrics.jsonl"));
    let lines = without_overtaken(&log).into_iter().filter(|line| !line.starts_with("{\"kind\":\"start\""));
    lines.map(deterministic_part).collect()
}

/// A number of each of these records.
pub fn numbers(records: &[Value], name: &str) -> Vec<f64> {
    records.iter().map(|record| record[name].as_f64().unwrap()).collect()
}

fn is_close(ours: &Value, theirs: &Value) -> bool {
    let (ours, theirs) = (ours.as_f64().unwrap(), theirs.as_f64().unwrap());
    (ours - theirs).abs() <= TOLERANCE * theirs.abs().max(1.0)
}

/// Losses, norms, samples, and evaluations of a run against a run on one rank.
fn assert_same_course(fixture: &Fixture, dir: &str, alone: &str) {
    for kind in ["step", "eval"] {
        let (ours, alone) = (records(fixture, dir, kind), records(fixture, alone, kind));
        assert!(!alone.is_empty() && ours.len() == alone.len(), "{dir}: {} {kind} records", ours.len());
        for (ours, alone) in ours.iter().zip(&alone) {
            for exact in ["step", "samples", "tokens", "batch"] {
                assert_eq!(ours[exact], alone[exact], "{dir}: {exact} of {ours}");
            }
            for close in ["loss", "grad_norm"].iter().filter(|name| !alone[**name].is_null()) {
                assert!(is_close(&ours[*close], &alone[*close]), "{dir}: {close} of {ours} and {alone}");
            }
            for (name, value) in alone["metrics"].as_object().into_iter().flatten() {
                assert!(is_close(&ours["metrics"][name], value), "{dir}: {name} of {ours} and {alone}");
            }
        }
    }
}

#[test]
fn training_over_tensor_and_data_parallel_ranks_is_training_on_one() {
    let fixture = Fixture::new();
    let sets = [&UNSAVED[..], &["train.micro_batch_size=2", "eval.batch_size=3", "eval.every=2 steps"]].concat();
    train(&fixture, "alone", 1, &sets).succeeded();
    for (ranks, tensor, zero) in [(2, 2, 3), (4, 4, 0), (4, 2, 0), (4, 2, 1), (4, 2, 2), (4, 2, 3)] {
        let (tensor_set, zero_set) = (format!("parallel.tensor={tensor}"), format!("parallel.zero={zero}"));
        let (dir, layout) = (format!("t{tensor}of{ranks}z{zero}"), [tensor_set.as_str(), zero_set.as_str()]);
        let outcome = train(&fixture, &dir, ranks, &[&sets[..], &layout].concat()).succeeded();
        assert_eq!(outcome.stdout.matches("trained 4 steps").count(), 1, "one rank speaks: {}", outcome.stdout);
        assert_same_course(&fixture, &dir, "alone");
        assert!(!fixture.path(&format!("{dir}/model")).exists());
        assert_eq!(records(&fixture, &dir, "start")[0]["time"]["ranks"], ranks);
    }
}

#[test]
fn a_language_model_is_trained_and_evaluated_over_tensor_parallel_ranks() {
    let fixture = Fixture::decoder();
    let sets = [&UNSAVED[..], &["data.task=language", "train.recompute=auto", "train.batch_size=4"]].concat();
    for (ranks, accumulation) in [(2, "2"), (4, "1")] {
        // As many micro-batches on one rank as on the data-parallel ranks together.
        let alone = format!("alone{accumulation}");
        train(&fixture, &alone, 1, &[&sets[..], &["train.accumulation=2"]].concat()).succeeded();
        let (dir, accumulation) = (format!("on{ranks}"), format!("train.accumulation={accumulation}"));
        train(&fixture, &dir, ranks, &[&sets[..], &["parallel.tensor=2", &accumulation]].concat()).succeeded();
        assert_same_course(&fixture, &dir, &alone);
    }
}

#[test]
fn what_one_layout_saves_another_resumes_and_the_model_is_that_of_one_rank() {
    let fixture = Fixture::new();
    let sets = ["train.micro_batch_size=2", "checkpoint.every=2 steps", "save.which=last", "train.steps=4"];
    train(&fixture, "alone", 1, &sets).succeeded();
    let layouts: [(usize, &[&str]); 4] = [
        (1, &[]),
        (2, &["parallel.tensor=2", "parallel.sequence=true"]),
        (4, &["parallel.tensor=2", "parallel.zero=3"]),
        (4, &["parallel.tensor=4", "parallel.sequence=true"]),
    ];
    let model = |dir: &str| tensors(&fixture.path(&format!("{dir}/model/model.safetensors")));
    let alone = model("alone");
    let assert_same = |dir: &str| {
        let ours = model(dir);
        assert_eq!(ours.len(), alone.len());
        // Gradients of key biases are zero in exact arithmetic, and Adam takes whole steps along their rounding.
        let pairs = ours.iter().zip(&alone).filter(|((name, _), _)| !name.ends_with("key.bias"));
        for ((name, ours), (of, alone)) in pairs {
            let difference: Vec<f32> = ours.iter().zip(alone).map(|(a, b)| a - b).collect();
            let (error, whole) = (norm(&difference), norm(alone).max(1e-2));
            assert!(name == of && error <= 1e-4 * whole, "{dir}: {name}, {error:e} of {whole:e}");
        }
    };
    for (number, (ranks, layout)) in layouts.into_iter().enumerate() {
        let (dir, on) = (format!("from{number}"), format!("on{number}"));
        train(&fixture, &dir, ranks, &[&sets[..], layout].concat()).succeeded();
        assert_same_course(&fixture, &dir, "alone");
        assert_same(&dir);
        let (ranks, layout) = layouts[(number + 1) % layouts.len()];
        let (ranks, output, from) = (ranks.to_string(), format!("output.dir={on}"), format!("{dir}@2"));
        let settings = sets.iter().chain(layout).copied().chain([output.as_str()]).flat_map(|set| ["--set", set]);
        let arguments = ["--ranks", &ranks, "--resume", &from].into_iter().chain(settings).collect::<Vec<_>>();
        let outcome = fixture.finetune(&arguments).succeeded();
        assert!(outcome.stderr.contains("going on after step 2"), "{}", outcome.stderr);
        assert_same(&on);
    }
}

#[test]
fn all_that_ranks_do_not_divide_is_named_at_once() {
    let fixture = Fixture::decoder();
    let task = ["data.task=language", "parallel.tensor=3", "train.batch_size=5", "train.accumulation=2"];
    let error = train(&fixture, "run", 6, &[&UNSAVED[..], &task].concat()).refused();
    for part in [
        "`train.batch_size` = 5 cannot be divided by train.accumulation 2 x 2 data ranks",
        "4 attention heads and 4 kv heads and 80 feed-forward columns cannot be divided over 3 tensor-parallel ranks",
        "set train.batch_size = 4 or 8; set parallel.tensor = 2 or 4",
    ] {
        assert!(error.contains(part), "no {part:?} in {error}");
    }
    assert_eq!(error.matches("error[recipe]").count(), 1, "{error}");
    let plan = fixture.plan(&["--ranks", "6", "--set", "parallel.tensor=3", "--set", "train.batch_size=6"]).refused();
    assert!(plan.contains("cannot be divided over 3 tensor-parallel ranks"), "{plan}");
    assert!(!fixture.path("run").exists());
}

#[test]
fn what_is_looked_at_is_of_the_whole_model_on_any_ranks() {
    let fixture = Fixture::new();
    let sets = [&UNSAVED[..], &["train.micro_batch_size=2", "train.inspect_every=3"]].concat();
    let tables = |dir: &str, ranks: usize, layout: &[&str]| -> Vec<Vec<String>> {
        let outcome = train(&fixture, dir, ranks, &[&sets[..], layout].concat()).succeeded();
        assert_eq!(outcome.stderr.matches("hidden states of step 3\n").count(), 1, "{}", outcome.stderr);
        assert_eq!(outcome.stderr.matches("parameters before step").count(), 1, "{}", outcome.stderr);
        let lines = outcome.stderr.lines().filter(|line| line.contains(".0.hidden") || line.contains("[32"));
        lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    let alone = tables("alone", 1, &[]);
    assert!(alone.len() > 10, "{alone:?}");
    assert!(alone.iter().any(|row| row[0] == "encoder.0.hidden"), "{alone:?}");
    for (dir, ranks, layout) in [
        ("d2", 2, &["parallel.zero=2"][..]),
        ("t2", 2, &["parallel.tensor=2"]),
        ("t2d2", 4, &["parallel.tensor=2", "parallel.zero=3"]),
    ] {
        let rows = tables(dir, ranks, layout);
        assert_eq!(rows.len(), alone.len());
        for (ours, alone) in rows.iter().zip(&alone) {
            for (ours, alone) in ours.iter().zip(alone) {
                // Five digits are printed.
                let close = ours.parse::<f64>().ok().zip(alone.parse::<f64>().ok());
                let close = close.is_some_and(|(a, b)| (a - b).abs() <= 2e-4 * b.abs().max(0.1));
                assert!(ours == alone || close, "{dir}: {ours} and {alone} in {rows:?}");
            }
        }
    }
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

fn tensors(path: &Path) -> Vec<(String, Vec<f32>)> {
    let file = SafetensorsFile::open(path).unwrap();
    let read = |name: &String| {
        let mut values = vec![0.0; file.entry(name).unwrap().elements().unwrap()];
        file.read_f32(name, &mut values).unwrap();
        (name.clone(), values)
    };
    file.tensors().iter().map(|entry| read(&entry.name)).collect()
}

#[test]
fn a_forward_pass_of_every_family_is_that_of_one_rank() {
    let fixture = Fixture::new();
    for family in FAMILIES {
        let directory = divisible(&fixture, family);
        let inputs = golden(family.0, family.1).join("inputs.safetensors");
        let [model, inputs] = [&directory, &inputs].map(|path| path.to_str().unwrap());
        let forward = |out: &str, more: &[&str]| {
            let arguments = ["--model", model, "--inputs", inputs, "--out", out, "--threads", "1"];
            fixture.forward(&[&arguments[..], more].concat()).succeeded()
        };
        let alone = forward("alone", &["--grads"]);
        let shared = forward("shared", &["--grads", "--tensor", "2"]);
        assert_eq!(shared.stdout, alone.stdout, "one rank speaks");
        let (alone, shared) = (tensors(&fixture.path("alone")), tensors(&fixture.path("shared")));
        let gradients = alone.iter().filter(|(name, _)| name.starts_with("grad."));
        let all = norm(&gradients.flat_map(|(_, values)| values.clone()).collect::<Vec<_>>());
        assert!(all > 0.0 && alone.len() == shared.len());
        for ((name, alone), (other, shared)) in alone.iter().zip(&shared) {
            assert_eq!(name, other);
            let apart: Vec<f32> = alone.iter().zip(shared).map(|(a, b)| a - b).collect();
            // For gradients that are zero in exact arithmetic, such as key biases'.
            let small = if name.starts_with("grad.") { 1e-7 * all } else { 0.0 };
            let (error, bound) = (norm(&apart), TOLERANCE * norm(alone) + small);
            assert!(error <= bound, "{family:?} {name}: error {error:e}, bound {bound:e}");
        }
        // With shared weights besides: the outputs without gradients.
        forward("both", &["--ranks", "4", "--tensor", "2"]);
        let (name, logits) = tensors(&fixture.path("both")).into_iter().find(|(name, _)| name == "loss").unwrap();
        let alone = &alone.iter().find(|(known, _)| *known == name).unwrap().1;
        assert!((f64::from(logits[0]) - f64::from(alone[0])).abs() <= TOLERANCE * f64::from(alone[0]).abs());
    }
}

#[test]
fn tensor_parallel_ranks_that_do_not_divide_a_model_are_refused_with_those_that_would() {
    let fixture = Fixture::new();
    let (directory, inputs) = (golden("llama_a", "lm"), golden("llama_a", "lm").join("inputs.safetensors"));
    let [model, inputs] = [&directory, &inputs].map(|path| path.to_str().unwrap());
    let arguments = ["--model", model, "--inputs", inputs, "--out", "out", "--threads", "1"];
    let error = fixture.forward(&[&arguments[..], &["--tensor", "2"]].concat()).refused();
    assert!(error.contains("33 feed-forward columns cannot be divided over 2 tensor-parallel ranks"), "{error}");
    let error = fixture.forward(&[&arguments[..], &["--tensor", "2", "--ranks", "3"]].concat()).refused();
    assert!(error.contains("3 ranks and 33 feed-forward columns cannot be divided"), "{error}");
    let error = fixture.forward(&[&arguments[..], &["--ranks", "2", "--grads"]].concat()).refused();
    assert!(error.contains("--ranks"), "{error}");
    let error = fixture.forward(&[&arguments[..], &["--tensor", "0"]].concat()).refused();
    assert!(error.contains("--tensor"), "{error}");
    let error = Fixture::decoder().generate(&["--prompt", "the film", "--tensor", "8"]).refused();
    assert!(error.contains("4 attention heads cannot be divided over 8"), "{error}");
    assert!(error.contains("use --tensor 4"), "{error}");
}
