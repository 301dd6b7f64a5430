//! The short programs run on tiny models.
#![allow(missing_docs, clippy::unwrap_used)]

use model_center::corpus::{TokenFileWriter, TokenType};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A tiny model of the golden tests, with a vocabulary for it.
fn model(directory: &Path, name: &str, rows: usize) -> PathBuf {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/model-center/tests/golden").join(name);
    let model = directory.join("model");
    std::fs::create_dir_all(&model).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden.join(file), model.join(file)).unwrap();
    }
    let tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "sleeps", "rests"];
    let filled = tokens.into_iter().map(str::to_owned).chain((0..).map(|i| format!("[unused{i}]"))).take(rows);
    std::fs::write(model.join("vocab.txt"), filled.map(|token| token + "\n").collect::<String>()).unwrap();
    model
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_loop_of_ones_own_trains_a_decoder_that_generates_again() {
    let directory = tempfile::tempdir().unwrap();
    let model = model(directory.path(), "gpt2_a/lm", 97);
    let (texts, tuned) = (directory.path().join("texts.txt"), directory.path().join("tuned"));
    std::fs::write(&texts, "a cat sleeps\n".repeat(8)).unwrap();
    let [model, texts, tuned] = [&model, &texts, &tuned].map(|path| path.to_str().unwrap());
    let printed = run(env!("CARGO_BIN_EXE_finetune_loop"), &[model, texts, tuned]);
    let losses: Vec<f64> = printed.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(losses.len() == 8 && losses[7] < losses[0], "{losses:?}");
    let before = run(env!("CARGO_BIN_EXE_generate_text"), &[model, "a cat"]);
    let after = run(env!("CARGO_BIN_EXE_generate_text"), &[tuned, "a cat"]);
    assert!(before.len() > 1 && after.len() > 1);
}

#[test]
fn a_decoder_is_pretrained_on_a_token_file() {
    let directory = tempfile::tempdir().unwrap();
    let model = model(directory.path(), "gpt2_a/lm", 97);
    std::fs::remove_file(model.join("model.safetensors")).unwrap();
    let [tokens, trained] = ["tokens", "trained"].map(|name| directory.path().join(name));
    let mut writer = TokenFileWriter::create(&tokens, TokenType::U8).unwrap();
    for _ in 0..8 {
        writer.add_sequence(&(5..69).collect::<Vec<u32>>()).unwrap();
        writer.end_document().unwrap();
    }
    writer.finish().unwrap();
    let [model, tokens, trained] = [&model, &tokens, &trained].map(|path| path.to_str().unwrap());
    let printed = run(env!("CARGO_BIN_EXE_pretrain"), &[model, tokens, "8", trained]);
    let losses: Vec<f64> = printed.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(losses.len() == 8 && losses[7] < losses[0], "{losses:?}");
    assert!(Path::new(trained).join("model.safetensors").is_file());
}

#[test]
fn a_sentence_is_most_like_itself() {
    let directory = tempfile::tempdir().unwrap();
    let model = model(directory.path(), "bert_a/nsp", 101);
    let similarity = |a: &str, b: &str| -> f64 {
        run(env!("CARGO_BIN_EXE_embed_texts"), &[model.to_str().unwrap(), a, b]).trim().parse().unwrap()
    };
    assert_eq!(similarity("a cat sleeps", "a cat sleeps"), 1.0);
    assert!(similarity("a cat sleeps", "a dog rests") < 1.0);
}

#[test]
fn a_task_of_ones_own_is_trained_and_judged_by_its_own_metric() {
    let directory = tempfile::tempdir().unwrap();
    let model = model(directory.path(), "bert_a/nsp", 101);
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let lines = "first,second,grade\na cat sleeps,a cat rests,5\na cat sleeps,a dog sleeps,1\n";
    for name in ["train.csv", "eval.csv"] {
        std::fs::write(path(name), lines.to_owned() + &lines[19..].repeat(3)).unwrap();
    }
    let settings = |out: &str, further: &[&str]| {
        let fixed = [
            "data.task=similarity",
            "data.max_length=12",
            "train.batch_size=4",
            "train.steps=4",
            "train.lr=1e-3",
            "device.threads=1",
        ];
        let paths = [("data.train", path("train.csv")), ("data.eval", path("eval.csv")), ("output.dir", path(out))];
        let mut all: Vec<String> = fixed.iter().chain(further).map(|setting| (*setting).to_owned()).collect();
        all.push(format!("model.path={}", model.display()));
        all.extend(paths.map(|(key, path)| format!("{key}={path}")));
        all
    };
    let run_with = |further: &[&str]| {
        let settings = settings("run", further);
        run(env!("CARGO_BIN_EXE_own_task"), &settings.iter().map(String::as_str).collect::<Vec<_>>());
        std::fs::read_to_string(path("run/metrics.jsonl")).unwrap()
    };
    let log = run_with(&["checkpoint.every=2 steps", "checkpoint.keep=2"]);
    let evals = log.lines().filter(|line| line.contains("\"kind\":\"eval\"")).count();
    assert!(evals >= 2 && log.contains("\"adjacent_accuracy\":"), "{log}");
    assert!(log.contains("\"best\":{\"metric\":\"adjacent_accuracy\""), "{log}");
    std::fs::write(path("train.csv"), lines.replace(",5", ",6")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_own_task")).args(settings("refused", &[])).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("grade 6 is above 5"), "{output:?}");
}

#[test]
fn completions_with_an_advantage_become_likelier_by_an_objective_of_ones_own() {
    let directory = tempfile::tempdir().unwrap();
    let model = model(directory.path(), "gpt2_a/lm", 97);
    let (file, tuned) = (directory.path().join("completions.tsv"), directory.path().join("tuned"));
    std::fs::write(&file, "a cat\tsleeps\t1\na cat\trests\t-1\na dog\trests sleeps\t0.5\n").unwrap();
    let [model, file, tuned] = [&model, &file, &tuned].map(|path| path.to_str().unwrap());
    let printed = run(env!("CARGO_BIN_EXE_own_objective"), &[model, file, tuned]);
    let number = |line: &str| line.split(' ').nth(3).unwrap().parse::<f64>().unwrap();
    let losses: Vec<f64> = printed.lines().map(number).collect();
    // At first every ratio is 1, and the loss minus the mean advantage of the four tokens. It is the sum of terms that
    // are 20 times as large, in f32, and is printed with six digits.
    assert!((losses[0] + 0.25).abs() < 5e-6 && losses[7] < losses[0] - 0.01, "{losses:?}");
    assert!(printed.contains("clipped"), "{printed}");
    assert!(Path::new(tuned).join("model.safetensors").is_file());
}
