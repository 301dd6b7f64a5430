//! What a fine-tuning run will need, before anything runs. How it is counted is in `examples/src/plan/count.rs`.

use bmtrain_core::heap::EndingHeap;
use bmtrain_examples::limits;
use model_center::model::Registry;
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    bmtrain_examples::plan::main(Registry::default())
}
