//! Changes at random beside the checkpoints of stopped runs of nine kinds, for the claim `beside`.

use super::best::copy;
use crate::fixture::program;
use crate::fixture::{Fixture, Outcome};
use std::collections::BTreeMap;
use std::path::Path;

/// Changes of each of the first kinds of run.
const CHANGES: usize = 34;
/// Changes of each file of the other kinds of run.
const OF_EACH_FILE: usize = 2;

/// A kind of run: its program, its settings, and what it reads beside its checkpoints.
struct Kind {
    name: &'static str,
    program: &'static str,
    fixture: Fixture,
    sets: &'static [&'static str],
    files: &'static [&'static str],
    /// Whether every file is changed, in their order; else files are chosen at random.
    in_order: bool,
}

fn finetune() -> &'static str {
    program("finetune")
}
const OF_RUN: [&str; 3] = ["run/run.json", "run/metrics.jsonl", "run/recipe.toml"];
/// Beside an adapter the reference is the model itself, and no log-probabilities of it are kept.
const OF_PAIRS: [&str; 5] =
    ["model/model.safetensors", "model/config.json", "model/vocab.txt", "model/chat_template.jinja", "train.jsonl"];
const OF_TEACHER: [&str; 6] = [
    "teacher/model.safetensors",
    "teacher/config.json",
    "teacher/vocab.txt",
    "model/config.json",
    "model/vocab.txt",
    "train.jsonl",
];
const OF_MODEL: [&str; 5] =
    ["model/model.safetensors", "model/config.json", "model/vocab.txt", "train.jsonl", "eval.jsonl"];

fn kinds() -> Vec<Kind> {
    let pairs = |kto: bool| {
        let fixture = Fixture::decoder();
        let line = |at: usize| match kto {
            true => {
                format!(
                    "{{\"prompt\": \"the film\", \"completion\": \" is {at} good\", \"label\": {}}}\n",
                    at.is_multiple_of(2)
                )
            }
            false => {
                format!("{{\"prompt\": \"the film {at}\", \"chosen\": \" is good\", \"rejected\": \" is bad\"}}\n")
            }
        };
        for (file, count) in [("train.jsonl", 16), ("eval.jsonl", 4)] {
            fixture.write(file, &(0..count).map(line).collect::<String>());
        }
        fixture
    };
    let quantised = crate::adapters::wide_decoder();
    std::fs::remove_dir_all(quantised.path("model")).unwrap();
    std::fs::rename(quantised.path("wide/model"), quantised.path("model")).unwrap();
    let of = |name, fixture, sets| Kind { name, program: finetune(), fixture, sets, files: &OF_MODEL, in_order: false };
    let reference = &["run/reference.txt", "model/model.safetensors", "model/config.json", "train.jsonl"];
    vec![
        of("full", Fixture::new(), &["save.which=last"]),
        of("lora", Fixture::decoder(), &["data.task=language", "adapter.method=lora", "save.which=last"]),
        of(
            "qlora",
            quantised,
            &["data.task=language", "adapter.method=lora", "adapter.quantize=nf4", "save.which=last"],
        ),
        Kind { files: reference, ..of("dpo", pairs(false), &["data.task=preference", "save.which=last"]) },
        Kind {
            files: reference,
            ..of("kto", pairs(true), &["data.task=preference", "preference.loss=kto", "save.which=last"])
        },
        Kind {
            program: program("pretrain"),
            files: &["books.bin", "books.idx", "tokenizer/vocab.txt", "web.bin", "web.idx"],
            ..of("pretraining", crate::pretrain::fixture(), &["data.test=web", "data.split=8,2,0", "save.which=last"])
        },
        Kind {
            files: &OF_PAIRS,
            in_order: true,
            ..of(
                "dpo beside lora",
                chosen_answers(),
                &["data.task=preference", "adapter.method=lora", "save.which=last"],
            )
        },
        Kind {
            files: &OF_TEACHER,
            in_order: true,
            ..of("distillation", crate::distill::decoder(), &["distill.teacher=teacher", "save.which=last"])
        },
        Kind {
            files: &["llama.gguf", "train.jsonl", "eval.jsonl"],
            in_order: true,
            ..of(
                "gguf as stored",
                crate::generate_gguf::fixture(),
                &[
                    "model.path=llama.gguf",
                    "data.task=language",
                    "adapter.method=lora",
                    "adapter.quantize=as-stored",
                    "device.name=cpu",
                    "save.which=last",
                ],
            )
        },
    ]
}

/// A decoder with a chat template, and pairs of answers.
fn chosen_answers() -> Fixture {
    let fixture = Fixture::decoder();
    let template = "{% for message in messages %}{{ message['content'] }} [SEP] {% endfor %}";
    fixture.write("model/chat_template.jinja", template);
    let line = |at: usize| {
        let message = |role: &str, text: &str| serde_json::json!([{"role": role, "content": text}]);
        let prompt = message("user", if at.is_multiple_of(2) { "is the film good" } else { "is the plot bad" });
        let (chosen, rejected) = (message("assistant", "yes"), message("assistant", "no"));
        format!("{}\n", serde_json::json!({"prompt": prompt, "chosen": chosen, "rejected": rejected}))
    };
    for (file, count) in [("train.jsonl", 16), ("eval.jsonl", 4)] {
        fixture.write(file, &(0..count).map(line).collect::<String>());
    }
    fixture
}

impl Kind {
    fn run(&self, further: &[&str]) -> Outcome {
        let sets =
            self.sets.iter().chain(&["train.steps=4", "eval.every=2 steps"]).copied().flat_map(|set| ["--set", set]);
        let arguments = ["--recipe", "recipe.toml"].into_iter().chain(sets).chain(further.iter().copied());
        self.fixture.run(self.program, &arguments.collect::<Vec<_>>())
    }

    /// The files of the model that the run wrote.
    fn result(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(self.fixture.path("run/model")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.map(|name| (name.clone(), self.fixture.bytes(&format!("run/model/{name}")))).collect()
    }

    fn put_back(&self, from: &str) {
        let _ = std::fs::remove_dir_all(self.fixture.path("run"));
        copy(&self.fixture.path(from), &self.fixture.path("run"));
    }
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end.max(1)
    }
}

/// Changes a file, and describes how.
fn change(path: &Path, numbers: &mut Numbers) -> String {
    let mut bytes = std::fs::read(path).unwrap();
    let at = numbers.below(bytes.len());
    let what = match numbers.below(5) {
        0 | 1 => {
            let bit = numbers.below(8);
            bytes[at] ^= 1 << bit;
            format!("bit {bit} of byte {at}")
        }
        2 => {
            bytes.truncate(at);
            format!("cut at {at}")
        }
        3 => {
            let other = numbers.below(bytes.len());
            bytes.swap(at, other);
            format!("bytes {at} and {other} swapped")
        }
        _ => {
            std::fs::remove_file(path).unwrap();
            return "removed".to_owned();
        }
    };
    std::fs::write(path, bytes).unwrap();
    what
}

#[test]
#[ignore = "claim beside: minutes"]
fn no_change_beside_a_checkpoint_changes_a_run_in_silence() {
    let (mut numbers, mut sound, mut all) = (Numbers(2026), 0, 0);
    for kind in kinds() {
        kind.run(&[]).succeeded();
        let whole = kind.result();
        std::fs::remove_dir_all(kind.fixture.path("run")).unwrap();
        let stopped = kind.run(&["--exit-after-steps", "2"]);
        assert_eq!(stopped.code, 75, "{}: {}", kind.name, stopped.stderr);
        std::fs::rename(kind.fixture.path("run"), kind.fixture.path("stopped")).unwrap();
        let files: Vec<&str> = kind.files.iter().chain(&OF_RUN).copied().collect();
        let changes = if kind.in_order { files.len() * OF_EACH_FILE } else { CHANGES };
        for turn in 0..changes {
            kind.put_back("stopped");
            let file = files[if kind.in_order { turn % files.len() } else { numbers.below(files.len()) }];
            let before = kind.fixture.bytes(file);
            let what = change(&kind.fixture.path(file), &mut numbers);
            let is_changed = std::fs::read(kind.fixture.path(file)).ok().as_ref() != Some(&before);
            let outcome = kind.run(&[]);
            let is_sound = match outcome.code {
                0 => kind.result() == whole,
                2..=4 => outcome.stderr.contains("error["),
                _ => false,
            };
            if !is_sound {
                println!("{} {file}, {what}: exit {}\n{}", kind.name, outcome.code, outcome.stderr);
            }
            all += usize::from(is_changed);
            sound += usize::from(is_changed && is_sound);
            kind.fixture.write_bytes(file, &before);
        }
    }
    println!("figure: {sound}/{all}");
    assert_eq!(sound, all);
}
