//! The GGUF format: one file with a model's weights, many of them quantised, its sizes and its vocabulary.
//!
//! - `cursor`, `value`, `header`: the guarded parser of untrusted files; [`GgufValue`] and [`Metadata`].
//! - `kind`: [`GgmlType`], how elements are stored; `dequantise`: blocks of them as single precision.
//! - `file`: [`GgufFile`], positioned reads of one tensor at a time under the format's own names.
//! - `family`: [`Family`], Llama or Qwen; `decoder`: [`Decoder`], a model's sizes and its `config.json`; `rope`: its
//!   rotary scaling.
//! - `names`: [`GgufAsHuggingFace`], the same tensors under the names, and in the row order, of Hugging Face.
//! - `tokenizer`, `pieces`: `tokenizer.json` and `tokenizer_config.json` out of the vocabulary.
//! - `directory`: [`gguf_to_directory`], a GGUF file as a Hugging Face directory.
//!
//! Versions 2 and 3, little endian. As with safetensors nothing is mapped into memory, every length is checked against
//! the file before memory is taken, and all claims of the header are checked before a tensor is read.
//! Called by programs that convert a model, by [`crate::tokenizer::AutoTokenizer`], and where a GGUF file stands for a
//! model directory: [`crate::formats::Weights`], the readers of `config.json` and of chat templates.

mod cursor;
mod decoder;
mod dequantise;
mod directory;
mod file;
mod header;
mod kind;
mod names;
mod pieces;
mod rope;
mod tokenizer;
mod value;

pub use decoder::{Decoder, Family};
pub(crate) use directory::write_companions;
pub use directory::{Report, gguf_to_directory};
pub use file::GgufFile;
pub use kind::GgmlType;
pub use names::{GgufAsHuggingFace, Mapped};
pub use tokenizer::{TokenizerFiles, tokenizer_files};
pub use value::{GgufArray, GgufValue, Metadata};

use super::stored::{SHORTER, damaged, read_at, tensor_place};
use crate::Result;
use crate::config::Fields;
use crate::config::json::to_text;
use crate::file::printable;
use serde_json::{Map, Value};
use std::path::Path;

/// Whether a path ends in `.gguf`.
pub(crate) fn has_gguf_name(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"))
}

/// Whether a path is a GGUF file, by its name: programs take it in the place of a model directory.
pub fn is_gguf(path: &Path) -> bool {
    has_gguf_name(path) && path.is_file()
}

/// What of a GGUF file is not used, each with the reason; nothing for another path.
#[cfg(feature = "cli")]
pub(crate) fn left_out(path: &Path) -> Result<Vec<(String, String)>> {
    match is_gguf(path) {
        true => Ok(directory::skipped(&GgufAsHuggingFace::new(GgufFile::open(path)?)?)),
        false => Ok(Vec::new()),
    }
}

/// The fields of `config.json` of a GGUF file.
pub(crate) fn config_fields(path: &Path) -> Result<Fields> {
    let config = Decoder::read(&GgufFile::open(path)?)?.to_json();
    Fields::parse(&to_text(&config), &path.display().to_string())
}

/// The fields of `tokenizer_config.json` of a GGUF file, the chat template among them.
pub(crate) fn tokenizer_config(path: &Path) -> Result<Map<String, Value>> {
    Ok(tokenizer_files(GgufFile::open(path)?.metadata(), usize::MAX)?.config)
}

fn key_place(place: &str, key: &str) -> String {
    format!("{place}, key {}", printable(key, 200))
}
