//! Times training steps of a model of known size: see [`bmtrain_bench::step_bench`].

use anyhow::Result;
use bmtrain_bench::step_bench::{Options, run};
use bmtrain_core::heap::CountingHeap;
use bmtrain_programs::cli::program;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

fn main() -> Result<()> {
    run(&program::parse::<Options>())
}
