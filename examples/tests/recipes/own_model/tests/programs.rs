//! The family in programs: this crate's own `finetune`, `forward` and `generate` train and run it as ours do theirs.

mod tiny;

use model_center::formats::{SafetensorsFile, TensorSource};
use model_center::model::Head;
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

const VOCABULARY: &str = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nfilm\nwas\ngood\nbad\nend\n";

const RECIPE: &str = r#"[model]
path = "model"

[data]
task = "classification"
train = "train.jsonl"
eval = "train.jsonl"
max_length = 6

[train]
steps = 40
batch_size = 4
micro_batch_size = 1
lr = 1e-2
gradient_sum = "elastic"

[output]
dir = "run"

[parallel]
zero = 3

[device]
threads = 1
"#;

/// A random model with a vocabulary, texts whose label depends on one token, and a recipe.
fn fixture() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let model = directory.path().join("model");
    std::fs::create_dir(&model).unwrap();
    tiny::write(&model, Head::Classifier { outputs: 2 });
    std::fs::write(model.join("vocab.txt"), VOCABULARY).unwrap();
    let text = |at: usize| format!("{} {}", ["the film was", "was the end"][at % 2], ["good", "bad"][at / 2 % 2]);
    let label = |at: usize| ["yes", "no"][at / 2 % 2];
    let line = |at: usize| format!("{{\"text\": \"{}\", \"label\": \"{}\"}}\n", text(at), label(at));
    std::fs::write(directory.path().join("train.jsonl"), (0..8).map(line).collect::<String>()).unwrap();
    std::fs::write(directory.path().join("recipe.toml"), RECIPE).unwrap();
    directory
}

fn run(directory: &Path, program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.current_dir(directory).args(arguments).env_remove("HF_HUB_CACHE").env("HF_HOME", directory.join("hf"));
    command.output().unwrap()
}

fn finetune(directory: &Path, further: &[&str]) -> String {
    let arguments = [&["--recipe", "recipe.toml"], further].concat();
    let output = run(directory, env!("CARGO_BIN_EXE_own_finetune"), &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn forward(directory: &Path, arguments: &[&str]) -> Output {
    run(directory, env!("CARGO_BIN_EXE_own_forward"), arguments)
}

#[test]
fn the_family_learns_in_finetune_and_forward_runs_what_it_leaves() {
    let fixture = fixture();
    let log = finetune(fixture.path(), &[]);
    assert!(log.contains("after:  accuracy 1.0000"), "{log}");
    std::fs::write(
        fixture.path().join("inputs.jsonl"),
        "{\"text\": \"the film was good\", \"labels\": 1}\n{\"text\": \"the end was bad\", \"labels\": 0}\n",
    )
    .unwrap();
    let files = ["--model", "run/model", "--inputs", "inputs.jsonl", "--out", "out.safetensors", "--grads"];
    let output = forward(fixture.path(), &files);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let out = SafetensorsFile::open(&fixture.path().join("out.safetensors")).unwrap();
    let mut logits = [0.0; 4];
    out.read_f32("logits", &mut logits).unwrap();
    assert!(logits[1] > logits[0] && logits[2] > logits[3], "{logits:?}");
    assert!(out.entry("grad.toy.layer.0.query.weight").is_some() && out.entry("hidden.2").is_some());
}

#[test]
fn two_ranks_under_zero_3_train_the_family_as_one_does_to_the_last_bit() {
    let fixture = fixture();
    finetune(fixture.path(), &["--ranks", "1"]);
    finetune(fixture.path(), &["--ranks", "2", "--set", "output.dir=shared"]);
    let weights = |dir: &str| std::fs::read(fixture.path().join(dir).join("model/model.safetensors")).unwrap();
    assert!(weights("run") == weights("shared"));
}

#[test]
fn generate_continues_texts_as_finetune_taught_it_token_by_token() {
    let fixture = fixture();
    tiny::write(&fixture.path().join("model"), Head::CausalLm { tied: false });
    finetune(fixture.path(), &["--set", "data.task=language", "--set", "train.steps=150"]);
    std::fs::write(fixture.path().join("prompts.jsonl"), "{\"prompt\": \"the\"}\n{\"prompt\": \"was\"}\n").unwrap();
    let arguments = ["run/model", "--input", "prompts.jsonl", "--max-new-tokens", "2"];
    let output = run(fixture.path(), env!("CARGO_BIN_EXE_own_generate"), &arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = String::from_utf8(output.stdout).unwrap();
    let texts: Vec<_> = rows.lines().map(|row| row.rsplit("\"generated_text\":").next().unwrap()).collect();
    assert_eq!(texts, ["\"film was\"}", "\"the end\"}"], "{rows}");
}

#[test]
fn help_and_the_refusal_of_an_unknown_family_list_it() {
    let fixture = fixture();
    let (finetune, generate) = (env!("CARGO_BIN_EXE_own_finetune"), env!("CARGO_BIN_EXE_own_generate"));
    for program in [finetune, env!("CARGO_BIN_EXE_own_forward"), generate] {
        let help = String::from_utf8(run(fixture.path(), program, &["--help"]).stdout).unwrap();
        assert!(
            help.contains("toy        A small decoder with heads for the next token and for classification"),
            "{help}"
        );
        assert!(help.contains("bert       BERT with"), "{help}");
    }
    std::fs::write(fixture.path().join("model/config.json"), "{\"model_type\": \"giraffe\"}").unwrap();
    std::fs::write(fixture.path().join("inputs.jsonl"), "{\"text\": \"the film\"}\n").unwrap();
    let files = ["--model", "model", "--inputs", "inputs.jsonl", "--out", "out.safetensors"];
    let refused = [
        forward(fixture.path(), &files),
        run(fixture.path(), finetune, &["--recipe", "recipe.toml"]),
        run(fixture.path(), generate, &["model", "--prompt", "the film"]),
    ];
    for output in refused {
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains("unknown model family \"giraffe\""), "{stderr}");
        assert!(stderr.contains("supported are: bert") && stderr.contains(", toy"), "{stderr}");
    }
}
