//! Training some parameters alone, by patterns of their names.

use crate::adapters::tensors;
use crate::fixture::{Fixture, Outcome};

const WEIGHTS: &str = "model/model.safetensors";

fn train(fixture: &Fixture, dir: &str, further: &[&str], sets: &[&str]) -> Outcome {
    let common = [
        "data.task=language",
        "train.steps=6",
        "train.lr=1e-2",
        "train.gradient_sum=elastic",
        "train.micro_batch_size=2",
        "checkpoint.every=2 steps",
    ];
    let dir = format!("output.dir={dir}");
    let sets = common.iter().chain(sets).copied().chain([dir.as_str()]).flat_map(|set| ["--set", set]);
    fixture.finetune(&further.iter().copied().chain(sets).collect::<Vec<_>>())
}

#[test]
fn biases_are_trained_alone_in_every_layout_and_resume_with_the_same_bits() {
    let fixture = Fixture::decoder();
    let only = "train.only=[\"*.bias\"]";
    let run = train(&fixture, "whole", &[], &[only]).succeeded();
    let (before, after) = (tensors(&fixture, WEIGHTS), tensors(&fixture, &format!("whole/{WEIGHTS}")));
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        assert_eq!(before != after, name.ends_with(".bias"), "{name}\n{}", run.stderr);
    }
    let layouts: [(&str, &[&str], &[&str]); 3] = [
        ("zero", &["--ranks", "2"], &["parallel.zero=3"]),
        ("offload", &[], &["train.offload=true", "train.recompute=blocks"]),
        ("died", &["--fail-points", "save.mid_shard=kill@3"], &[]),
    ];
    for (dir, further, sets) in layouts {
        let sets = [&[only][..], sets].concat();
        let mut outcome = train(&fixture, dir, further, &sets);
        if dir == "died" {
            assert_eq!(outcome.code, -1, "{}", outcome.stderr);
            outcome = train(&fixture, dir, &[], &sets);
        }
        outcome.succeeded();
        assert_eq!(tensors(&fixture, &format!("{dir}/{WEIGHTS}")), after, "{dir}");
    }
}

#[test]
fn what_is_frozen_keeps_its_values_and_a_pattern_without_parameters_is_named() {
    let fixture = Fixture::decoder();
    train(&fixture, "run", &[], &["train.frozen=[\"input_embedding.*\", \"*.layers.0.*\"]"]).succeeded();
    let (before, after) = (tensors(&fixture, WEIGHTS), tensors(&fixture, &format!("run/{WEIGHTS}")));
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        let is_frozen = name.contains("wte.") || name.contains("h.0.");
        assert_eq!(before == after, is_frozen, "{name}");
    }
    let outcome = train(&fixture, "none", &[], &["train.frozen=[\"*.wieght\"]"]);
    assert_eq!(outcome.code, 2, "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("no parameter of the model is called \"*.wieght\"\n  --> --set train.frozen"),
        "{}",
        outcome.stderr
    );
}
