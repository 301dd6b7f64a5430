//! Run a model once on given inputs and write logits, hidden states and gradients: for people who port or check a
//! model.

use bmtrain_core::heap::EndingHeap;
use bmtrain_examples::limits;
use model_center::model::Registry;
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    bmtrain_examples::forward::main(Registry::default())
}
