//! The gpu-check program on an emulated driver, and without any. What is proved here is the program, not a device.
#![cfg(feature = "testing")]
#![allow(missing_docs, clippy::unwrap_used)]

use cuda_emulator::{Driver, with_driver};
use serde_json::Value;
use std::process::{Command, Output};

fn gpu_check(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-check"));
    command.args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Run it on the emulated driver: what it printed, and its JSON.
fn emulated(arguments: &[&str]) -> (Output, Value) {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("found.json");
    let mut command = gpu_check(arguments);
    command.arg("--json").arg(&json).env("BMTRAIN_CUDA_KERNELS", cuda_emulator::compiled_kernels());
    let output = command.output().unwrap();
    let found = std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("{output:?}"));
    (output, serde_json::from_str(&found).unwrap())
}

fn assert_every_line_is_marked_emulated(output: &Output) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(!out.is_empty());
    for line in out.lines().chain(err.lines()) {
        assert!(line.starts_with("emulated: "), "{line}");
    }
}

#[test]
fn rows_are_compared_and_everything_marks_the_device_as_emulated() {
    let test = "rows_are_compared_and_everything_marks_the_device_as_emulated";
    with_driver(test, Driver::Emulated, &[], || {
        let (output, found) = emulated(&["--only", "environment,intrinsics,conformance,kernels", "--rows", "softmax/"]);
        assert!(output.status.success(), "{output:?}");
        assert_every_line_is_marked_emulated(&output);
        let table = text(&output.stdout);
        assert!(table.contains(" 0 failed, 0 unsupported") && table.ends_with("emulated: ok\n"), "{table}");
        assert!(table.contains("not measured") && !table.contains("GB/s"), "{table}");
        assert_eq!(found["emulated"], true);
        assert_eq!(found["passed"], true);
        let conformance = &found["parts"]["conformance"];
        assert_eq!(conformance["emulated"], true);
        assert!(conformance["passed"].as_u64().unwrap() > 0, "{conformance}");
        assert_eq!(conformance["failed"], 0);
        assert_eq!(found["parts"].get("kernels"), None, "nothing is measured");
        assert!(found["running"].is_null(), "{found}");
        let probed = found["parts"]["intrinsics"]["instructions"].as_array().unwrap();
        assert!(probed.len() == 12 && probed.iter().all(|one| one["wrong"].is_null()), "{probed:?}");
        assert!(found["parts"]["environment"]["device"]["name"].as_str().unwrap().contains("emulated"));
    });
}

#[test]
fn after_a_kernel_that_kills_the_device_nothing_more_is_run() {
    let test = "after_a_kernel_that_kills_the_device_nothing_more_is_run";
    let settings = [("EMULATED_CUDA_FAILING_KERNEL", "softmax_bf16")];
    with_driver(test, Driver::Emulated, &settings, || {
        let (output, found) = emulated(&["--only", "conformance,training", "--rows", "softmax/"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let lost = found["device_lost"].as_str().unwrap();
        assert!(lost.contains("the device is lost after the row softmax/") && lost.contains("LAUNCH_FAILED"), "{lost}");
        let conformance = &found["parts"]["conformance"];
        // The row that did it is the one that failed.
        assert_eq!(conformance["failed"], 1, "{conformance}");
        assert!(conformance["rows_run"].as_u64() < conformance["rows"].as_u64(), "{conformance}");
        assert_eq!(found["failures"].as_array().unwrap().len(), 2, "{found}");
        assert_eq!(found["parts"].get("training"), None);
        assert!(text(&output.stdout).contains("not run: the device is lost"), "{output:?}");
    });
}

#[test]
fn a_row_that_fails_alone_stops_nothing() {
    let test = "a_row_that_fails_alone_stops_nothing";
    with_driver(test, Driver::Emulated, &[("EMULATED_CUDA_REFUSED_KERNEL", "softmax_bf16")], || {
        let (output, found) = emulated(&["--only", "conformance", "--rows", "softmax/"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(found["device_lost"].is_null(), "{found}");
        let conformance = &found["parts"]["conformance"];
        assert_eq!(conformance["rows_run"], conformance["rows"]);
        assert!(conformance["failed"].as_u64() > Some(1) && conformance["passed"].as_u64() > Some(0), "{conformance}");
    });
}

#[test]
fn a_part_beyond_its_limit_ends_the_program_and_the_parts_before_it_are_kept() {
    let test = "a_part_beyond_its_limit_ends_the_program_and_the_parts_before_it_are_kept";
    // Every launch takes a second.
    with_driver(test, Driver::Emulated, &[("EMULATED_CUDA_DAWDLE", "1000000")], || {
        let (output, found) =
            emulated(&["--only", "environment,conformance", "--rows", "softmax/", "--part-limit", "1"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(text(&output.stderr).contains("conformance took longer than 1 s"), "{output:?}");
        assert_eq!((&found["running"], &found["passed"]), (&"conformance".into(), &false.into()));
        assert!(found["parts"]["environment"].is_object() && found["parts"].get("conformance").is_none(), "{found}");
    });
}

#[test]
fn a_run_goes_on_after_one_that_ended_in_a_part() {
    let test = "a_run_goes_on_after_one_that_ended_in_a_part";
    with_driver(test, Driver::Emulated, &[], || {
        let directory = tempfile::tempdir().unwrap();
        let json = directory.path().join("found.json");
        let start = |arguments: &[&str]| {
            let mut command = gpu_check(arguments);
            command.arg("--json").arg(&json).env("BMTRAIN_CUDA_KERNELS", cuda_emulator::compiled_kernels());
            command.output().unwrap()
        };
        let run = |arguments: &[&str]| {
            let output = start(arguments);
            (output, serde_json::from_str::<Value>(&std::fs::read_to_string(&json).unwrap()).unwrap())
        };
        // Without a file a run begins anew.
        let (output, mut found) = run(&["--resume", "--only", "environment,intrinsics"]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(found["done"], serde_json::json!(["environment", "intrinsics"]));
        // As if it had ended in the conformance table.
        found["running"] = "conformance".into();
        std::fs::write(&json, found.to_string()).unwrap();
        let (output, found) = run(&["--resume", "--only", "environment,intrinsics,overlap"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let progress = text(&output.stderr);
        assert!(progress.contains("environment: not run again"), "{progress}");
        assert!(progress.contains("overlap: not measured"), "{progress}");
        assert!(found["failures"][0].as_str().unwrap().contains("--only conformance"), "{found}");
        assert!(found["parts"].get("conformance").is_none() && found["running"].is_null(), "{found}");
        // The table has the lines of both runs.
        assert!(text(&output.stdout).contains("as the host computes them"), "{output:?}");

        let mut again = found;
        (again["running"], again["failures"]) = ("conformance".into(), Value::Array(Vec::new()));
        again["done"] = serde_json::json!(["environment", "intrinsics"]);
        std::fs::write(&json, again.to_string()).unwrap();
        let (output, found) = run(&["--resume", "--only", "conformance", "--rows", "softmax/"]);
        assert!(output.status.success(), "{output:?}");
        assert!(found["parts"]["conformance"].is_object() && found["parts"]["intrinsics"].is_object(), "{found}");

        std::fs::write(&json, found.to_string().replace("\"emulated\":true", "\"emulated\":false")).unwrap();
        let output = start(&["--resume"]);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(text(&output.stderr).contains("on a real device"), "{output:?}");
        std::fs::write(&json, "[]").unwrap();
        let output = start(&["--resume"]);
        assert!(text(&output.stderr).contains("not a report of gpu-check"), "{output:?}");
    });
}

#[test]
fn rows_of_no_name_are_a_failure() {
    let test = "rows_of_no_name_are_a_failure";
    with_driver(test, Driver::Emulated, &[], || {
        let (output, found) = emulated(&["--only", "conformance", "--rows", "nothing is called so"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(found["passed"], false);
        assert!(text(&output.stdout).contains("FAILED"), "{output:?}");
    });
}

#[test]
fn without_a_complete_driver_one_line_reports_what_is_missing() {
    let test = "without_a_complete_driver_one_line_reports_what_is_missing";
    with_driver(test, Driver::Incomplete, &[], || {
        let output = gpu_check(&[]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        let message = text(&output.stderr);
        assert_eq!(message.lines().count(), 1, "{message}");
        assert!(message.contains("has no function"), "{message}");
    });
}

#[test]
fn the_parts_are_listed_and_others_refused() {
    let output = gpu_check(&["--list"]).output().unwrap();
    assert!(output.status.success() && text(&output.stdout).lines().count() == 7, "{output:?}");
    let output = gpu_check(&["--only", "speed"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(text(&output.stderr).contains("conformance"), "{output:?}");
}
