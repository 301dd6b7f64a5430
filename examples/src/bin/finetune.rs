//! Fine-tune a model on labelled text. The training step is in `examples/src/finetune/train.rs`.

use bmtrain_examples::{finetune, terminal};
use clap::Parser;
use model_center::model::Registry;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = finetune::Options::parse();
    terminal::start_logging();
    terminal::finish(finetune::run(&options, Registry::default()))
}
