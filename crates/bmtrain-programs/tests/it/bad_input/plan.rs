//! Mistakes in what the plan program is asked.

use super::fixture::Fixture;
use super::{DATA, USAGE, check};

/// Runs plan, which must leave every file as it was.
fn plan_refused(fixture: &Fixture, arguments: &[&str], code: i32, place: &str, texts: &[&str]) {
    let before = fixture.snapshot();
    check(&fixture.plan(arguments), code, place, texts);
    assert_eq!(fixture.snapshot(), before, "files were changed");
}

#[test]
fn a_plan_names_unknown_keys_and_values() {
    plan_refused(&Fixture::new(), &["--set", "train.lrr=1"], USAGE, "train.lrr", &["train.lr"]);
    plan_refused(&Fixture::new(), &["parallel.zero=4"], USAGE, "parallel.zero=4", &["fix: "]);
    let fixture = Fixture::new();
    fixture.replace("recipe.toml", "batch_size = 4", "batch_szie = 4");
    plan_refused(&fixture, &[], USAGE, "recipe.toml:12:", &["train.batch_size"]);
}

#[test]
fn a_plan_names_missing_directories_and_files() {
    plan_refused(
        &Fixture::new(),
        &["--set", "model.path=nowhere"],
        DATA,
        "model.path=nowhere",
        &["bmtrain fetch nowhere"],
    );
    for (file, place) in [("model/config.json", "recipe.toml:2:"), ("model/model.safetensors", "model")] {
        let fixture = Fixture::new();
        std::fs::remove_file(fixture.path(file)).unwrap();
        plan_refused(&fixture, &[], DATA, place, &[]);
    }
    let fixture = Fixture::new();
    std::fs::remove_file(fixture.path("train.jsonl")).unwrap();
    plan_refused(&fixture, &[], DATA, "recipe.toml:6:", &["train.jsonl", "No such file"]);
}

#[test]
fn a_plan_names_ranks_and_machines_that_cannot_be() {
    plan_refused(&Fixture::new(), &["--ranks", "0"], USAGE, "--ranks", &["from 1 to"]);
    plan_refused(&Fixture::new(), &["--ranks", "1000000"], USAGE, "--ranks", &["from 1 to"]);
    let three = ["--ranks", "3", "--set", "train.micro_batch_size=2"];
    plan_refused(&Fixture::new(), &three, USAGE, "train.micro_batch_size=2", &["3 ranks"]);
    let four = ["--ranks", "4", "--set", "train.micro_batch_size=1"];
    for local in ["3", "0", "8"] {
        plan_refused(&Fixture::new(), &[&four[..], &["--local-ranks", local]].concat(), USAGE, "--local-ranks", &[]);
    }
    for memory in ["0", "NaN", "inf", "-1"] {
        plan_refused(&Fixture::new(), &[&format!("--memory={memory}")], USAGE, "--memory", &["above 0"]);
    }
    for memory in ["0", "-1"] {
        let arguments = ["--set", "device.name=cuda", &format!("--device-memory={memory}")];
        plan_refused(&Fixture::new(), &arguments, USAGE, "--device-memory", &["above 0"]);
    }
    let on_cpu = ["--set", "device.name=cpu", "--device-memory=8"];
    plan_refused(&Fixture::new(), &on_cpu, USAGE, "--device-memory", &["device.name"]);
    for length in ["0", "17"] {
        plan_refused(&Fixture::new(), &["--length", length], USAGE, "--length", &["from 1 to 16"]);
    }
    plan_refused(&Fixture::new(), &["--set", "checkpoint.keep=0"], USAGE, "checkpoint.keep=0", &[]);
}
