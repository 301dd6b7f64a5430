//! Times training steps of a model of known size: see [`bmtrain_examples::bench::steps`].

use anyhow::Result;
use bmtrain_core::heap::CountingHeap;
use bmtrain_examples::bench::steps::{Options, run};
use bmtrain_examples::program;

#[global_allocator]
static HEAP: CountingHeap = CountingHeap;

fn main() -> Result<()> {
    run(&program::parse::<Options>())
}
