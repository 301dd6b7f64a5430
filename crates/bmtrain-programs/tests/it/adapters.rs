//! Tuning with adapters by the programs: what is written and saved, resuming, layouts, exporting, merging, generating.

mod layouts;
mod mistakes;
mod quantized;

use crate::fixture::{Fixture, Outcome, program};
use model_center::formats::{SafetensorsFile, TensorSource};
use model_center::run::{deterministic_part, without_overtaken};

/// A decoder's updates of rank 2 with dropout.
const LORA: [&str; 8] = [
    "adapter.method=lora",
    "adapter.rank=2",
    "adapter.dropout=0.1",
    "data.task=language",
    "train.lr=1e-2",
    "train.steps=6",
    "train.gradient_sum=elastic",
    "checkpoint.every=2 steps",
];

fn tune(fixture: &Fixture, dir: &str, further: &[&str], sets: &[&str]) -> Outcome {
    let dir = format!("output.dir={dir}");
    let sets = LORA.iter().chain(sets).copied().chain([dir.as_str()]).flat_map(|set| ["--set", set]);
    let arguments: Vec<&str> = further.iter().copied().chain(sets).collect();
    fixture.finetune(&arguments)
}

/// The tensors of a file by name.
pub fn tensors(fixture: &Fixture, file: &str) -> Vec<(String, Vec<f32>)> {
    let file = SafetensorsFile::open(&fixture.path(file)).unwrap();
    let mut all: Vec<(String, Vec<f32>)> = Vec::new();
    for entry in file.tensors() {
        let mut values = vec![0.0; entry.elements().unwrap()];
        file.read_f32(&entry.name, &mut values).unwrap();
        all.push((entry.name.clone(), values));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn losses(fixture: &Fixture, dir: &str) -> Vec<f64> {
    let log = fixture.read(&format!("{dir}/metrics.jsonl"));
    let records = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    records.filter(|record| record["kind"] == "step").map(|record| record["loss"].as_f64().unwrap()).collect()
}

/// The largest difference, relative to the largest value.
fn difference(ours: &[(String, Vec<f32>)], expected: &[(String, Vec<f32>)]) -> f32 {
    assert!(!ours.is_empty() && ours.len() == expected.len());
    let mut worst = 0.0f32;
    for ((name, ours), (expected_name, expected)) in ours.iter().zip(expected) {
        assert_eq!((name, ours.len()), (expected_name, expected.len()));
        let largest = expected.iter().fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
        let apart = ours.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        worst = worst.max(apart / largest);
    }
    worst
}

const ADAPTER: &str = "model/adapter_model.safetensors";

#[test]
fn a_run_trains_and_saves_the_updates_alone_and_resumes_with_the_same_bits() {
    let fixture = Fixture::decoder();
    let before = fixture.bytes("model/model.safetensors");
    let run = tune(&fixture, "whole", &[], &[]).succeeded();
    assert!(run.stderr.contains("LoRA of rank 2 on"), "{}", run.stderr);
    let names = tensors(&fixture, &format!("whole/{ADAPTER}"));
    assert!(names.iter().all(|(name, _)| name.starts_with("base_model.model.transformer.h.")), "{names:?}");
    assert!(!fixture.path("whole/model/model.safetensors").exists());
    assert!(!fixture.path("whole/model/config.json").exists());
    assert!(fixture.path("whole/model/vocab.txt").exists());
    assert_eq!(fixture.bytes("model/model.safetensors"), before);
    // Checkpoints have the updates and their moments, which are a small part of the model.
    let checkpoints = std::fs::read_dir(fixture.path("whole/checkpoints")).unwrap();
    let bytes = |dir: std::path::PathBuf| {
        let files = std::fs::read_dir(dir).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>()
    };
    let values: usize = names.iter().map(|(_, values)| values.len()).sum();
    for checkpoint in checkpoints {
        let bytes = bytes(checkpoint.unwrap().path());
        assert!(bytes > 12 * values as u64 && bytes < 24 * values as u64 + 30_000, "{bytes} for {values} values");
    }
    // Killed in its third save, and by the same command again.
    let died = tune(&fixture, "died", &["--fail-points", "save.mid_shard=kill@3"], &[]);
    assert_eq!(died.code, -1, "{}", died.stderr);
    let again = tune(&fixture, "died", &[], &[]).succeeded();
    assert!(again.stderr.contains("going on after step 4"), "{}", again.stderr);
    assert_eq!(tensors(&fixture, &format!("died/{ADAPTER}")), names);
    let log = |dir: &str| {
        let log = fixture.read(&format!("{dir}/metrics.jsonl"));
        without_overtaken(&log).into_iter().map(deterministic_part).collect::<Vec<_>>()
    };
    assert_eq!(log("died"), log("whole"));
}

#[test]
fn a_merged_model_is_written_by_a_run_and_by_convert_from_its_updates() {
    let fixture = Fixture::decoder();
    let micro_batch = "train.micro_batch_size=2";
    tune(&fixture, "apart", &[], &[micro_batch]).succeeded();
    tune(&fixture, "merged", &["--ranks", "2"], &["save.merged=true", micro_batch]).succeeded();
    fixture.convert(&["model", "converted", "--merge", "apart/model"]).succeeded();
    let merged = tensors(&fixture, "merged/model/model.safetensors");
    assert_eq!(tensors(&fixture, "converted/model.safetensors"), merged);
    let base = tensors(&fixture, "model/model.safetensors");
    let changed = merged.iter().zip(&base).filter(|(ours, base)| ours.1 != base.1);
    let changed: Vec<&str> = changed.map(|(ours, _)| ours.0.as_str()).collect();
    assert!(changed.len() == 8 && changed.iter().all(|name| name.contains(".c_")), "{changed:?}");

    let prompt = ["--prompt", "the film was", "--max-new-tokens", "6", "--threads", "1"];
    let generate = |arguments: &[&str]| {
        let outcome = fixture.run(program("generate"), &[arguments, &prompt].concat());
        outcome.succeeded().stdout
    };
    let apart = generate(&["model", "--adapter", "apart/model"]);
    assert_eq!(generate(&["apart/model"]), apart);
    assert_eq!(generate(&["merged/model"]), apart);
    assert_ne!(generate(&["model"]), apart);

    // Two at once, beside the model and merged with it.
    tune(&fixture, "second", &[], &["train.seed=5", "adapter.rank=3", micro_batch]).succeeded();
    let two = ["--adapter", "apart/model", "--adapter", "second/model"];
    let weights = ["--adapter-weight", "0.5", "--adapter-weight", "-1"];
    let merge = ["--merge", "apart/model", "--merge", "second/model", "--merge-weight", "0.5", "--merge-weight", "-1"];
    fixture.convert(&[&["model", "both"], &merge[..]].concat()).succeeded();
    assert_eq!(generate(&[&["model"], &two[..], &weights].concat()), generate(&["both"]));
    let refused =
        fixture.convert(&["model", "none", "--merge", "apart/model", "--merge-weight", "1", "--merge-weight=2"]);
    assert!(refused.code != 0 && refused.stderr.contains("there are 2 for 1 adapters"), "{}", refused.stderr);
}

#[test]
fn a_checkpoint_is_exported_as_a_peft_directory_and_its_updates_are_trained_further() {
    let fixture = Fixture::new();
    let sets = |more: &[&'static str]| {
        let fixed = ["adapter.method=lora", "checkpoint.every=3 steps", "save.which=last"];
        fixed.into_iter().chain(more.iter().copied()).flat_map(|set| ["--set", set]).collect::<Vec<_>>()
    };
    let targets = ["adapter.targets=[\"query\", \"value\"]", "adapter.rank=3"];
    fixture.finetune(&sets(&targets)).succeeded();
    // A new classifier is trained and saved with the updates.
    let saved = tensors(&fixture, "run/model/adapter_model.safetensors");
    let names: Vec<&str> = saved.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"base_model.model.classifier.weight"), "{names:?}");
    assert!(names.iter().filter(|name| name.contains("lora_A")).all(|name| name.contains(".self.")), "{names:?}");
    fixture.run(program("ckpt"), &["export", "run/checkpoints", "exported"]).succeeded();
    assert_eq!(tensors(&fixture, "exported/adapter_model.safetensors"), saved);
    let config = |dir: &str| {
        let text = fixture.read(&format!("{dir}/adapter_config.json"));
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(config["task_type"], "SEQ_CLS");
        config.as_object_mut().unwrap().remove("base_model_name_or_path");
        config
    };
    assert_eq!(config("exported"), config("run/model"));
    let further = sets(&["adapter.path=exported", "output.dir=further"]);
    fixture.finetune(&further).succeeded();
    let (first, further) = (losses(&fixture, "run"), losses(&fixture, "further"));
    assert!(further[0] < first[0], "{further:?} after {first:?}");
}

#[test]
fn virtual_tokens_are_trained_saved_and_generated_with() {
    for (fixture, sets) in [
        (Fixture::decoder(), &["adapter.prompt_text=the film was"][..]),
        (Fixture::seq2seq(), &["adapter.prompt_stacks=both", "data.task=seq2seq", "data.columns.target=label"]),
    ] {
        let fixed = ["adapter.method=prompt", "adapter.virtual_tokens=4", "train.lr=1e-1", "train.steps=6"];
        let task = ["data.task=language", "data.max_length=12", "checkpoint.every=2 steps"];
        let tune = |dir: &str, further: &[&str], more: &[&str]| {
            let dir = format!("output.dir={dir}");
            let all = fixed.iter().chain(&task).chain(sets).chain(more).copied().chain([dir.as_str()]);
            let arguments: Vec<&str> = further.iter().copied().chain(all.flat_map(|set| ["--set", set])).collect();
            fixture.finetune(&arguments)
        };
        let run = tune("run", &[], &[]).succeeded();
        assert!(run.stderr.contains("4 virtual tokens before a sequence"), "{}", run.stderr);
        let saved = tensors(&fixture, &format!("run/{ADAPTER}"));
        assert!(saved.len() == 1 && saved[0].0 == "prompt_embeddings", "{saved:?}");
        let course = losses(&fixture, "run");
        assert!(course[5] < course[0], "{course:?}");
        let died = tune("died", &["--fail-points", "save.mid_shard=kill@2"], &[]);
        assert_eq!(died.code, -1, "{}", died.stderr);
        tune("died", &[], &[]).succeeded();
        assert_eq!(tensors(&fixture, &format!("died/{ADAPTER}")), saved);
        tune("stages", &["--ranks", "2"], &["parallel.pipeline=2", "train.micro_batch_size=2"]).succeeded();
        tune("apart", &[], &["train.micro_batch_size=2"]).succeeded();
        assert_eq!(losses(&fixture, "stages"), losses(&fixture, "apart"));

        let text = ["--prompt", "it is a bad plot", "--max-new-tokens", "5", "--threads", "1"];
        let generate =
            |model: &str| fixture.run(program("generate"), &[&[model], &text[..]].concat()).succeeded().stdout;
        assert_ne!(generate("run/model"), generate("model"));
        let refused = fixture.convert(&["model", "merged", "--merge", "run/model"]);
        assert!(refused.code != 0 && refused.stderr.contains("cannot be merged"), "{}", refused.stderr);
    }
}

/// Lengths of rows, and learned factors.
#[test]
fn magnitudes_and_learned_factors_are_trained_resumed_and_merged() {
    let fixture = Fixture::decoder();
    let common = ["data.task=language", "train.lr=1e-2", "train.steps=6", "train.gradient_sum=elastic"];
    let common = [&common[..], &["checkpoint.every=2 steps", "train.micro_batch_size=2"]].concat();
    let dora = ["adapter.method=lora", "adapter.dora=true", "adapter.rank=2", "adapter.dropout=0.1"];
    for (name, method, described) in
        [("dora", &dora[..], "DoRA of rank 2 on"), ("ia3", &["adapter.method=ia3"], "IA3 on 2 c_attn, 2 c_proj")]
    {
        let at = |dir: &str| format!("{name}_{dir}");
        let tune = |dir: &str, further: &[&str], more: &[&str]| {
            let dir = format!("output.dir={}", at(dir));
            let all = common.iter().chain(method).chain(more).copied().chain([dir.as_str()]);
            let arguments: Vec<&str> = further.iter().copied().chain(all.flat_map(|set| ["--set", set])).collect();
            fixture.finetune(&arguments)
        };
        let result = |dir: &str| {
            let dir = at(dir);
            (tensors(&fixture, &format!("{dir}/{ADAPTER}")), losses(&fixture, &dir))
        };
        let run = tune("whole", &[], &[]).succeeded();
        assert!(run.stderr.contains(described), "{}", run.stderr);
        let whole = result("whole");
        assert!(whole.1[5] < whole.1[0], "{:?}", whole.1);
        let died = tune("died", &["--fail-points", "save.mid_shard=kill@3"], &[]);
        assert_eq!(died.code, -1, "{}", died.stderr);
        let again = tune("died", &[], &[]).succeeded();
        assert!(again.stderr.contains("going on after step 4"), "{}", again.stderr);
        assert_eq!(result("died").0, whole.0, "{name}");
        let fast = "train.gradient_sum=fast";
        tune("fast", &[], &[fast]).succeeded();
        tune("half", &[], &["model.dtype=bf16"]).succeeded();
        let (of_stages, of_half) = (result("fast"), result("half"));
        for (dir, further, more, expected) in [
            ("zero", &["--ranks", "2"][..], &["parallel.zero=3"][..], &whole),
            ("half_zero", &["--ranks", "2"], &["parallel.zero=3", "model.dtype=bf16"], &of_half),
            ("stages", &["--ranks", "2"], &["parallel.pipeline=2", fast], &of_stages),
            ("offload", &[], &["train.offload=true", "train.recompute=blocks"], &whole),
        ] {
            tune(dir, further, more).succeeded();
            assert_eq!(&result(dir), expected, "{name} {dir}");
        }
        tune("tensor", &["--ranks", "2"], &["parallel.tensor=2"]).succeeded();
        let (ours, course) = result("tensor");
        for (ours, expected) in course.iter().zip(&whole.1) {
            assert!((ours - expected).abs() <= 1e-5 * expected, "{name}: {course:?} for {:?}", whole.1);
        }
        assert!(difference(&ours, &whole.0) <= 1e-3, "{name}");
        tune("merged", &["--ranks", "2"], &["save.merged=true"]).succeeded();
        let (from, to, merged) = (at("whole/model"), at("converted"), at("merged/model"));
        fixture.convert(&["model", &to, "--merge", &from]).succeeded();
        let weights = |dir: &str| tensors(&fixture, &format!("{dir}/model.safetensors"));
        assert_eq!(weights(&to), weights(&merged), "{name}");
        let generate = |model: &str| {
            let arguments = [model, "--prompt", "the film was", "--max-new-tokens", "6", "--threads", "1"];
            fixture.run(program("generate"), &arguments).succeeded().stdout
        };
        assert_eq!(generate(&merged), generate(&from), "{name}");
        assert_ne!(weights(&merged), weights("model"), "{name}");
    }
}

/// A decoder whose rows are whole blocks of NF4.
pub fn wide_decoder() -> Fixture {
    let fixture = Fixture::decoder();
    let sets = [
        "model.init=random",
        "model.hidden=64",
        "model.heads=4",
        "model.feed_forward=128",
        "data.task=language",
        "train.steps=1",
        "save.dtype=f32",
        "output.dir=wide",
    ];
    fixture.finetune(&sets.into_iter().flat_map(|set| ["--set", set]).collect::<Vec<_>>()).succeeded();
    fixture
}
