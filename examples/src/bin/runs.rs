//! Look at runs: lists, reports, a local page, exports.

use bmtrain_core::heap::EndingHeap;
use model_center::cli;
use std::process::ExitCode;

#[global_allocator]
static HEAP: EndingHeap = cli::HEAP;

fn main() -> ExitCode {
    cli::runs()
}
