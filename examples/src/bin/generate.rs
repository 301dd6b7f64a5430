//! Generate texts for prompts, or answer in a conversation.

use bmtrain_core::heap::EndingHeap;
use bmtrain_examples::limits;
use model_center::model::Registry;
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    bmtrain_examples::generate::main(Registry::default())
}
