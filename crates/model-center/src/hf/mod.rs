//! Hugging Face folders: reading weights that strangers wrote, and writing folders that `transformers` opens.
//!
//! - [`safetensors`]: one file, read tensor by tensor with positioned reads, or written in place at known offsets.
//! - [`pickle`]: PyTorch's own files, read without running them, and written.
//! - [`weights`]: a folder's weights, one file or the shards of a [`shard_index`]; [`shards`]: the way out.
//! - `stored`: values in the types that files have.
//! - [`names`]: the table that says which of our parameters is which of their tensors, the plan and the report.
//! - [`model_center`]: the names of ModelCenter's own files.
//! - [`folder`]: `config.json`, tokenizer files and weights written together.
//! - [`gguf`]: the other format of weights, quantised or not, and the way from there to a folder.
//! - [`pretrained`]: which local folder a name stands for, such as that of a model in the hub's cache.
//!
//! Callers: the models' loaders, the example binaries and [`crate::config`].

pub mod folder;
pub mod gguf;
pub mod model_center;
pub mod names;
pub mod pickle;
pub mod pretrained;
pub mod safetensors;
pub mod shard_index;
pub mod shards;
mod stored;
pub mod weights;

pub use folder::{COMPANION_FILES, FolderLayout, ModelFolder};
pub use gguf::{GgufAsHuggingFace, GgufFile, gguf_to_folder};
pub use names::{
    Alias, Allow, Difference, Interleaved, NameTable, NotFinite, ParamShape, Piece, Plan, Rule, export, shortened,
};
pub use pickle::{PickleFile, write_pickle};
pub use pretrained::{Places, Pretrained};
pub use safetensors::{SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry, TensorSource};
pub use shards::{SHARD_BYTES, ShardedWriter};
pub use weights::Weights;
