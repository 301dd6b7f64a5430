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
//! Called by programs that convert a model, and by [`crate::tokenizer::AutoTokenizer`].

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
pub use directory::{Report, gguf_to_directory};
pub use file::GgufFile;
pub use kind::GgmlType;
pub use names::{GgufAsHuggingFace, Mapped};
pub use tokenizer::{TokenizerFiles, tokenizer_files};
pub use value::{GgufArray, GgufValue, Metadata};

use super::stored::{SHORTER, damaged, read_at, tensor_place};
use crate::file::printable;

fn key_place(place: &str, key: &str) -> String {
    format!("{place}, key {}", printable(key, 200))
}
