//! What a fine-tuning run will need, before anything runs. How it is counted is in `examples/src/plan/count.rs`.

use model_center::model::Registry;
use std::process::ExitCode;

fn main() -> ExitCode {
    bmtrain_examples::plan::main(Registry::default())
}
