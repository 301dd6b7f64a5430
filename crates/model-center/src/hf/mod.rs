//! Hugging Face folders: reading weights that strangers wrote, and writing folders that `transformers` opens.
//!
//! - [`safetensors`]: one file, read tensor by tensor with positioned reads, or written in place at known offsets.
//! - [`weights`]: a folder's weights, one file or the shards of an index; [`shards`]: the way out.
//! - [`names`]: the table that says which of our parameters is which of their tensors, the plan and the report.
//! - [`folder`]: `config.json`, tokenizer files and weights written together.
//! - [`file`](mod@file): the few file operations all of these (and [`crate::config`]) share.
//!
//! Callers: the models' loaders, the example binaries and [`crate::config`].

pub mod file;
pub mod safetensors;

pub use safetensors::{SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry, TensorSource};
