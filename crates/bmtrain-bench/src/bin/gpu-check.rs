//! Proof and measurements of the CUDA backend on a real device: see [`bmtrain_bench::gpu_check`].

use bmtrain_bench::gpu_check;
use bmtrain_core::heap::EndingHeap;
use bmtrain_programs::cli::{limits, program};
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    program::tool(gpu_check::run)
}
