//! A CUDA device that is asked for where there is none.

use super::fixture::{Fixture, Outcome, write_inputs};
use super::{USAGE, check, classifier};
use bmtrain_core::cuda::{CudaOptions, survey};
use std::io::Write;

/// Whether there is a driver, and therefore possibly a device; if so, the test reports that it is skipped.
fn has_driver(test: &str) -> bool {
    let has = survey(&CudaOptions::default()).driver.is_some();
    if has {
        // Not by `eprintln`, which is shown for tests that fail alone.
        let line = format!("\nSKIPPED {test}: this machine has NVIDIA's driver\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    has
}

/// One error, in the first line, which names what is missing; then the way out.
fn without_driver(outcome: &Outcome, place: &str) {
    let fix = "  fix: choose device cpu or auto, or install NVIDIA's driver\n";
    check(outcome, USAGE, place, &["libcuda.so.1", fix]);
    let errors = outcome.stderr.lines().filter(|line| line.contains("error")).count();
    assert_eq!(errors, 1, "{}", outcome.stderr);
    assert!(outcome.stderr.lines().next().unwrap().contains("libcuda.so.1"), "{}", outcome.stderr);
}

#[test]
fn a_missing_driver_is_named_by_every_program_that_computes() {
    if has_driver("a_missing_driver_is_named_by_every_program_that_computes") {
        return;
    }
    let fixture = Fixture::new();
    let before = fixture.snapshot();
    without_driver(&fixture.finetune(&["--device", "cuda"]), "device cuda");
    without_driver(&fixture.finetune(&["--set", "device.name=cuda:1"]), "device cuda:1");
    assert_eq!(fixture.snapshot(), before, "files were changed");

    let fixture = classifier();
    write_inputs(&fixture.path("in.safetensors"), &[("input_ids", &[1, 3], &[2, 7, 3])]);
    let before = fixture.snapshot();
    let arguments = ["--model", "model", "--inputs", "in.safetensors", "--out", "out.safetensors", "--device", "cuda"];
    without_driver(&fixture.forward(&arguments), "device cuda");
    assert_eq!(fixture.snapshot(), before, "files were changed");
}
