//! Run a model once on given inputs and write logits, hidden states and gradients: for people who port or check a model.

use model_center::model::Registry;
use std::process::ExitCode;

fn main() -> ExitCode {
    bmtrain_examples::forward::main(Registry::default())
}
