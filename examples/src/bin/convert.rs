//! Bring a model from one program's files into another's.

use model_center::model::Registry;
use std::process::ExitCode;

fn main() -> ExitCode {
    bmtrain_examples::convert::main(Registry::default())
}
