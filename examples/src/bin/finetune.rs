//! Fine-tune a model on text. The training step is in `examples/src/finetune/train.rs`.

use model_center::model::Registry;
use std::process::ExitCode;

fn main() -> ExitCode {
    bmtrain_examples::finetune::main(Registry::default())
}
