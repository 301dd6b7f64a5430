//! The task that writes a token file of random ids, for measuring and for trying a recipe out.

use crate::cli::terminal;
use bmtrain_core::philox::{Key, block};
use clap::Args;
use model_center_base::{Error, Result};
use model_center_data::corpus::{TokenFileWriter, TokenType};
use serde_json::json;
use std::path::PathBuf;

/// What is written.
#[derive(Debug, Args)]
pub struct RandomArguments {
    /// Path of the token file without .bin and .idx.
    pub out: PathBuf,
    /// Ids are below this, each as likely as any other.
    #[arg(long, value_name = "N")]
    pub vocab_size: u32,
    /// Number of documents.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub documents: u64,
    /// Tokens of each document.
    #[arg(long, value_name = "L", default_value_t = 1024)]
    pub length: u32,
    /// Decides the ids.
    #[arg(long, default_value_t = 1234)]
    pub seed: u64,
}

/// Write the file.
pub(super) fn run(arguments: &RandomArguments, as_json: bool) -> Result<()> {
    let RandomArguments { out, vocab_size, documents, length, seed } = arguments;
    if *vocab_size == 0 {
        return Err(Error::argument("--vocab-size", "0 tokens", "state the number of rows of the model's embedding"));
    }
    let mut writer = TokenFileWriter::create(out, TokenType::for_vocabulary(*vocab_size as usize))?;
    let key = Key::new(*seed, "random tokens");
    let mut ids = Vec::with_capacity(*length as usize);
    for document in 0..*documents {
        ids.clear();
        let counter = |index: u32| [index, document as u32, (document >> 32) as u32, 0];
        let numbers = (0..length.div_ceil(4)).flat_map(|index| block(key, counter(index)));
        ids.extend(numbers.take(*length as usize).map(|x| ((u64::from(x) * u64::from(*vocab_size)) >> 32) as u32));
        writer.add_sequence(&ids)?;
        writer.end_document()?;
    }
    let written = writer.finish()?;
    if as_json {
        return terminal::print(&json!({"documents": written.documents, "tokens": written.tokens}).to_string());
    }
    terminal::print(&format!("{}: {} documents, {} tokens", out.display(), written.documents, written.tokens))
}
