//! Fetch a model from a hub into the cache that the other programs look into. The only program that uses the network.

use bmtrain_core::heap::EndingHeap;
use bmtrain_examples::{fetch, limits, program, terminal};
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    limits::prepare();
    let options = program::parse::<fetch::Options>();
    terminal::start_logging();
    terminal::finish(fetch::run(&options))
}
