//! The doctor program: the processors that it finds are those that its launcher leaves to it.

use crate::fixture::program;
use bmtrain_core::cpu::{Pinning, Placement, Processors};
use serde_json::{Value, json};
use std::process::Command;

fn doctor(arguments: &[&str]) -> String {
    let output = Command::new(program("doctor")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn processors_are_those_of_the_affinity_mask_that_a_launcher_set() {
    let found = Processors::of_this_process();
    let last = found.cores.len() - 1;
    let placement = Placement { pinning: Pinning::Cores, index: last, ranks: last + 1 };
    // A program has the mask of the thread that started it.
    let start = move || {
        placement.pin_rank();
        (doctor(&["--json"]), doctor(&[]))
    };
    let (object, text) = std::thread::scope(|scope| scope.spawn(start).join().unwrap());
    let object: Value = serde_json::from_str(&object).unwrap();
    let own = Processors { cores: vec![found.cores[last].clone()], ..found.clone() };
    let of = |key: &str| object[key].clone();
    assert_eq!([of("processors"), of("cores"), of("threads")], [json!(own.count()), json!(1), json!(1)]);
    if found.has_mask {
        assert_eq!(of("affinity"), json!(own.list()));
    }
    for line in ["\n✓ threads      1 by default, ", "\n✓ pinning      threads are not pinned", "\n✓ CPU quota    "]
    {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn every_line_has_a_mark_and_what_is_wrong_has_a_fix() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(program("doctor"));
    command.arg("--directory").arg(directory.path()).env("RANK", "3").env_remove("WORLD_SIZE");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let names = ["version", "shared memory", "open files", "disk", "disk speed", "port", "launcher", "variables", "so"];
    for name in names {
        let has_name = |line: &str| line.chars().skip(2).collect::<String>().starts_with(name);
        assert!(text.lines().any(has_name), "{name}: {text}");
    }
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let is_fix = line.trim_start().starts_with("fix: ");
        assert!(is_fix || ['✓', '!', '✗'].iter().any(|mark| line.starts_with(*mark)), "{line}");
        assert!(!line.starts_with('✗') || lines[at + 1].trim_start().starts_with("fix: "), "{line}");
    }
    // RANK alone is half of a launcher.
    assert!(text.contains("✗ launcher") && text.contains("RANK=3"), "{text}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    let object: Value = serde_json::from_str(&doctor(&["--json"])).unwrap();
    let checks = object["checks"].as_array().unwrap();
    assert!(checks.len() > 12 && checks.iter().all(|check| check["state"].is_string()), "{object}");
    assert!(object["version"].is_string());
}
