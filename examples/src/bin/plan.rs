//! What a fine-tuning run will need, before anything runs. How it is counted is in `examples/src/plan/count.rs`.

use bmtrain_examples::{plan, terminal};
use clap::Parser;
use model_center::model::Registry;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = plan::Options::parse();
    terminal::start_logging();
    terminal::finish(plan::run(&options, Registry::default()))
}
