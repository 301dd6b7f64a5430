//! Look at checkpoints, check them, and write them again in other files.

use bmtrain_examples::{ckpt, terminal};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = ckpt::Options::parse();
    terminal::start_logging();
    terminal::finish(ckpt::run(&options))
}
