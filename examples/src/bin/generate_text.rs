//! Continues a prompt with a decoder.
//!
//! cargo run --release -p bmtrain-examples --bin generate_text -- models/SmolLM2-135M "The sea was calm, and"

use model_center::Error;
use model_center::prelude::*;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, prompt] = arguments.as_slice() else {
        return Err(Error::argument("arguments", "two are needed", "give MODEL PROMPT"));
    };
    println!("{}", TextGenerator::open(model)?.generate(prompt)?);
    Ok(())
}
