//! Bring a model from one program's files into another's.

use bmtrain_core::heap::EndingHeap;
use bmtrain_examples::limits;
use model_center::model::Registry;
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = limits::HEAP;

fn main() -> ExitCode {
    bmtrain_examples::convert::main(Registry::default())
}
