//! Generate texts behind prompts, or talk.

use model_center::model::Registry;
use std::process::ExitCode;

fn main() -> ExitCode {
    bmtrain_examples::generate::main(Registry::default())
}
