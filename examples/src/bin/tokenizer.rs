//! Train vocabularies, and see what a tokenizer makes of texts.

use bmtrain_core::heap::EndingHeap;
use bmtrain_examples::{limits, program, terminal, tokenizer};
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    limits::prepare();
    let options = program::parse::<tokenizer::Options>();
    terminal::start_logging();
    terminal::finish(tokenizer::run(&options))
}
