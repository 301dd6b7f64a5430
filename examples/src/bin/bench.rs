//! Measurements of the parts a training run is made of: `bench collectives` measures communication between ranks.

use bmtrain_core::heap::EndingHeap;
use bmtrain_examples::{bench, limits, program, terminal};
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    limits::prepare();
    let options = program::parse::<bench::Options>();
    terminal::start_logging();
    terminal::finish(bench::run(&options))
}
