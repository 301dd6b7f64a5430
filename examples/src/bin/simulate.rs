//! Training steps in time on machines that are described by numbers. See `examples/src/simulate/mod.rs`.

use bmtrain_core::heap::EndingHeap;
use bmtrain_examples::{limits, program, simulate, terminal};
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    limits::prepare();
    let options = program::parse::<simulate::Options>();
    terminal::start_logging();
    terminal::finish(simulate::run(&options))
}
