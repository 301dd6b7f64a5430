//! Fine-tune a model on text. The training step is in `crates/model-center/src/train/step.rs`.

use bmtrain_core::heap::EndingHeap;
use bmtrain_examples::limits;
use model_center::model::Registry;
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    bmtrain_examples::finetune::main(Registry::default())
}
