//! What this machine has for training, and what to do about what is missing. See `examples/src/doctor.rs`.

use bmtrain_examples::{doctor, terminal};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = doctor::Options::parse();
    terminal::start_logging();
    terminal::finish(doctor::run(&options))
}
