//! Proof and measurements of the CUDA backend on a real device. See `crates/bmtrain-programs/src/gpu_check/mod.rs`.

use bmtrain_core::heap::EndingHeap;
use bmtrain_programs::{
    cli::{limits, program, terminal},
    gpu_check,
};
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    limits::prepare();
    let options = program::parse::<gpu_check::Options>();
    terminal::start_logging();
    terminal::finish(gpu_check::run(&options))
}
