//! Fine-tune a model on text. `docs/training-step.md` walks through a step of it.

use bmtrain_core::heap::EndingHeap;
use model_center::cli;
use model_center::model::Registry;
use model_center::train::finetune_on;
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = cli::HEAP;

fn main() -> ExitCode {
    cli::finetune::main_with(Registry::default(), finetune_on)
}
