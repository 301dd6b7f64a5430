//! Times training steps of a model of known size: see [`bmtrain_programs::bench::steps`].

use anyhow::Result;
use bmtrain_core::heap::CountingHeap;
use bmtrain_programs::bench::steps::{Options, run};
use bmtrain_programs::cli::program;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

fn main() -> Result<()> {
    run(&program::parse::<Options>())
}
