//! Train vocabularies, and see what a tokenizer makes of texts.

use bmtrain_examples::{terminal, tokenizer};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = tokenizer::Options::parse();
    terminal::start_logging();
    terminal::finish(tokenizer::run(&options))
}
