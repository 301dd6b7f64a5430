//! Recipes from commands of Megatron-LM, CPM-Pretrain and ModelCenter, and configurations of DeepSpeed.

use bmtrain_core::heap::EndingHeap;
use bmtrain_examples::{import, limits, program, terminal};
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    limits::prepare();
    let options = program::parse::<import::Options>();
    terminal::start_logging();
    terminal::finish(import::run(&options))
}
