//! The simulate program: diagrams, tables of runs, and the pictures of the documentation.

use crate::fixture::program;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(program("simulate")).args(arguments).output().unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

fn scenario(name: &str) -> String {
    root().join("examples/simulate").join(name).display().to_string()
}

#[test]
fn a_schedule_is_a_row_for_each_stage_with_bubble_and_memory() {
    let text = stdout(&["schedule", "--kind", "1f1b", "--stages", "2", "--micro-batches", "2"]);
    assert!(text.starts_with("0 |F0-F1-......B0----...B1----|\n1 |...F0-B0----F1-B1----......|\n"), "{text}");
    assert!(text.contains("bubble 50.0 %") && text.ends_with("by stage: 2 1\n"), "{text}");
    let output = run(&["schedule", "--kind", "interleaved", "--micro-batches", "6"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && message.contains("use 4 or 8"), "{message}");
}

/// The commands are in `docs/parallelism.md`.
#[test]
fn the_pictures_of_the_documentation_are_the_programs_own() {
    let directory = tempfile::tempdir().unwrap();
    let page = std::fs::read_to_string(root().join("docs/parallelism.md")).unwrap();
    let kinds = ["gpipe", "1f1b", "interleaved", "zb-1p", "zb-v"];
    for kind in kinds {
        let file = directory.path().join("picture.svg");
        stdout(&["schedule", "--kind", kind, "--svg", &file.display().to_string()]);
        let name = format!("docs/images/schedule-{kind}.svg");
        let committed = std::fs::read_to_string(root().join(&name)).unwrap();
        assert!(std::fs::read_to_string(&file).unwrap() == committed, "{name} is not what the program writes");
        assert!(page.contains(&format!("--kind {kind} --svg {name}")), "{name}");
    }
}

#[test]
fn a_file_of_runs_is_a_table_beside_what_was_published() {
    let text = stdout(&["run", &scenario("megatron_8b.toml")]);
    assert!(text.contains("8.3 B, 512 ranks") && text.contains("8 x 1 x 64"), "{text}");
    assert!(text.contains("0.74 beside"), "{text}");
    let json = stdout(&["run", &scenario("megatron_2021.toml"), "--json"]);
    let rows: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 10);
    let trillion = &rows[9];
    assert_eq!((&trillion["ranks"], &trillion["layout"]["pipeline"]), (&3072.into(), &64.into()));
    assert!(trillion["exposed_seconds"]["tensor"].as_f64().unwrap() > 0.0, "{trillion}");
}

#[test]
fn one_run_is_shown_in_full_and_scaled_over_ranks() {
    let file = scenario("bmtrain_13b.toml");
    let text = stdout(&["run", &file, "--name", "batch 8"]);
    for line in ["exposed: data-parallel communication", "model FLOP/s utilisation", "published: 24.15 beside"] {
        assert!(text.contains(line), "{text}");
    }
    let scaled = stdout(&["run", &file, "--name", "batch 8", "--data", "8,16,32"]);
    assert!(scaled.contains("batch 8 x 16") && scaled.contains("100.0 %"), "{scaled}");
    let output = run(&["run", &file, "--name", "none"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && message.contains("batch 24"), "{message}");
}
