//! Look at checkpoints, check them, and write them again in other files.

use bmtrain_core::heap::EndingHeap;
use bmtrain_examples::{ckpt, limits, terminal};
use clap::Parser;
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    limits::prepare();
    let options = ckpt::Options::parse();
    terminal::start_logging();
    terminal::finish(ckpt::run(&options))
}
