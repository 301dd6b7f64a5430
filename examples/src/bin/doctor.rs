//! What this machine has for training, and what to do about what is missing. See `examples/src/doctor.rs`.

use bmtrain_core::heap::EndingHeap;
use bmtrain_examples::{doctor, limits, program, terminal};
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    limits::prepare();
    let options = program::parse::<doctor::Options>();
    terminal::start_logging();
    terminal::finish(doctor::run(&options))
}
