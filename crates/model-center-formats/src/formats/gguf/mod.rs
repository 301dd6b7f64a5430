//! The GGUF format: one file with a model's weights, many of them quantised, its sizes and its vocabulary.
//!
//! - `cursor`, `value`, `header`: the guarded parser of untrusted files; [`GgufValue`] and [`Metadata`].
//! - `kind`: [`GgmlType`], how elements are stored; `dequantise`: blocks of them as single precision.
//! - `file`: [`GgufFile`], positioned reads of one tensor at a time under the format's own names.
//! - `family`: [`Family`], the architectures that are read; `keys`: the keys of one; `decoder`: [`Decoder`], a model's
//!   sizes and its `config.json`; `own`: what only one family has; `rope`: its rotary scaling.
//! - `names`: [`GgufAsHuggingFace`], the same tensors under the names, and in the row order, of Hugging Face.
//!
//! Versions 2 and 3, little endian. As with safetensors nothing is mapped into memory, every length is checked against
//! the file before memory is taken, and all claims of the header are checked before a tensor is read.
//! Called by [`crate::directory::gguf_to_directory`], by [`crate::tokenizer::AutoTokenizer`], and where a GGUF file
//! stands for a model directory: [`crate::formats::Weights`], the readers of `config.json` and of chat templates.

mod cursor;
mod decoder;
mod dequantise;
mod family;
mod file;
mod header;
pub(crate) mod keys;
mod kind;
mod names;
mod own;
pub(crate) mod rope;
mod value;

pub use decoder::Decoder;
pub use family::Family;
pub use file::GgufFile;
pub use kind::GgmlType;
pub use names::{GgufAsHuggingFace, Mapped};
pub use own::{LayerWindows, WindowedLayers};
pub use value::{GgufArray, GgufValue, Metadata};

use super::stored::{SHORTER, damaged, read_at, tensor_place};
use model_center_base::file::printable;
use std::path::Path;

/// Whether a path ends in `.gguf`.
pub fn has_gguf_name(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gguf"))
}

/// Whether a path is a GGUF file, by its name: programs take it in the place of a model directory.
pub fn is_gguf(path: &Path) -> bool {
    has_gguf_name(path) && path.is_file()
}

fn key_place(place: &str, key: &str) -> String {
    format!("{place}, key {}", printable(key, 200))
}
