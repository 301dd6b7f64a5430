//! Hugging Face folders: reading weights that strangers wrote, and writing folders that `transformers` opens.
//!
//! - [`safetensors`]: one file, read tensor by tensor with positioned reads, or written in place at known offsets.
//! - [`weights`]: a folder's weights, one file or the shards of an index; [`shards`]: the way out.
//! - [`names`]: the table that says which of our parameters is which of their tensors, the plan and the report.
//! - [`folder`]: `config.json`, tokenizer files and weights written together.
//! - [`pretrained`]: which local folder a name stands for, such as that of a model in the hub's cache.
//!
//! Callers: the models' loaders, the example binaries and [`crate::config`].

pub mod folder;
pub mod names;
pub mod pretrained;
pub mod safetensors;
pub mod shards;
pub mod weights;

pub use folder::{COMPANION_FILES, ModelFolder};
pub use names::{Alias, Allow, Difference, Interleaved, NameTable, ParamShape, Piece, Plan, Rule, export};
pub use pretrained::{Places, Pretrained};
pub use safetensors::{SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry, TensorSource};
pub use shards::{SHARD_BYTES, ShardedWriter};
pub use weights::Weights;
