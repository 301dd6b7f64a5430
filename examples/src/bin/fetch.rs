//! Fetch a model from a hub into the cache that the other programs look into. The only program that uses the network.

use bmtrain_examples::{fetch, terminal};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = fetch::Options::parse();
    terminal::start_logging();
    terminal::finish(fetch::run(&options))
}
