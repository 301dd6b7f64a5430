//! The forward program for this crate's family and those of `model-center`.

use model_center::model::Registry;
use std::process::ExitCode;

fn main() -> ExitCode {
    bmtrain_examples::forward::main(Registry::new(own_model::TABLES))
}
