//! Proof and measurements of the CUDA backend on a real device. See `examples/src/gpu_check/mod.rs`.

use bmtrain_examples::{gpu_check, terminal};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = gpu_check::Options::parse();
    terminal::start_logging();
    terminal::finish(gpu_check::run(&options))
}
