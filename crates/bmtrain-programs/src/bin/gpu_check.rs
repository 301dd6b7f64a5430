//! Proof and measurements of the CUDA backend on a real device. See `crates/bmtrain-programs/src/gpu_check/mod.rs`.

use bmtrain_core::heap::EndingHeap;
use bmtrain_programs::cli::{limits, program};
use bmtrain_programs::gpu_check;
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    program::tool(gpu_check::run)
}
