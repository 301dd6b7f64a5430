//! Run a model once on given inputs and write logits, hidden states and gradients: for people who port or check a model.

use bmtrain_examples::{forward, terminal};
use clap::Parser;
use model_center::model::Registry;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = forward::Options::parse();
    terminal::start_logging();
    terminal::finish(forward::run(&options, Registry::default()))
}
