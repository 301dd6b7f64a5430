//! Measurements of the parts a training run is made of: `bench collectives` is the exchange between ranks.

use bmtrain_examples::{bench, terminal};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = bench::Options::parse();
    terminal::start_logging();
    terminal::finish(bench::run(&options))
}
