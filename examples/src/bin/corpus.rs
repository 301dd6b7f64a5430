//! Build, describe, check and split pretraining corpora.

use bmtrain_core::heap::EndingHeap;
use bmtrain_examples::{corpus, limits, program, terminal};
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    limits::prepare();
    let options = program::parse::<corpus::Options>();
    terminal::start_logging();
    terminal::finish(corpus::run(&options))
}
