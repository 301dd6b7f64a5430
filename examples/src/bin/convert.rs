//! Bring a model from one program's files into another's.

use bmtrain_examples::{convert, terminal};
use clap::Parser;
use model_center::model::Registry;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = convert::Options::parse();
    terminal::start_logging();
    terminal::finish(convert::run(&options, Registry::default()))
}
