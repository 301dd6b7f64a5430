//! Tests that look at the peak of their own process's memory, each in a process of its own.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::process::Command;

mod gguf_memory;
mod hf_memory;
mod hf_pickle_memory;

/// Whether this process runs the test `name` alone. If not, starts one that does, and panics where it fails.
fn is_alone(name: &str) -> bool {
    const MARKER: &str = "BMTRAIN_TEST_ALONE";
    if std::env::var_os(MARKER).is_some() {
        return true;
    }
    let arguments = ["--exact", name, "--test-threads=1"];
    let output = Command::new(std::env::current_exe().unwrap()).args(arguments).env(MARKER, "1").output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{}", String::from_utf8_lossy(&output.stderr));
    false
}

/// The most memory that this process has had resident, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}
