//! File formats of models: safetensors, PyTorch's pickles, GGUF, checkpoints of other systems.
//!
//! - [`safetensors`]: one file, read tensor by tensor with positioned reads, or written in place at known offsets.
//! - [`pickle`]: PyTorch's own files, read without running them, and written.
//! - [`weights`]: a directory's weights, one file or the shards of a [`shard_index`]; [`shards`]: their writer.
//! - `stored`: conversions between f32 and the dtypes of files; `entries`: bounded JSON objects.
//! - [`names`]: the table that maps our parameters to checkpoint tensors, the plan of a load and its report.
//! - [`model_center`]: ModelCenter's file of weights.
//! - [`known_directory`]: what a directory is that another program wrote.
//! - [`gguf`]: llama.cpp's format, quantised or not, and its conversion to a directory.
//! - [`parameters`]: all parameters of any model in one safetensors file, saved and loaded by one call each.
//! - [`ranked`]: checkpoints of Megatron-LM and DeepSpeed, one file for each rank, and their conversion.
//! - [`distributed`]: checkpoints of `torch.distributed.checkpoint`, tensors in parts.
//! - [`pretrained`]: the local directory of a model's name, such as its snapshot in the hub's cache.
//!
//! Callers: the models' loaders, the programs and [`crate::config`].

pub mod distributed;
mod entries;
pub mod gguf;
pub mod known_directory;
pub mod model_center;
pub mod names;
pub mod parameters;
pub mod pickle;
pub mod pretrained;
pub mod ranked;
pub mod safetensors;
pub mod saved_data;
pub mod shard_index;
pub mod shards;
pub(crate) mod stored;
pub mod torchtitan;
pub mod weights;

pub use distributed::{DistributedWeights, is_distributed};
pub use gguf::{GgufAsHuggingFace, GgufFile};
pub use known_directory::{DirectoryKind, KnownDirectory};
pub use names::{
    Alias, Allow, BlockPlan, Difference, Interleaved, LoadPlan, NameTable, NotFinite, ParamShape, Rule, TensorPart,
    export, shortened,
};
pub use pickle::{PickleFile, write_pickle};
pub use pretrained::{ModelCaches, Pretrained};
pub use ranked::{RankedOptions, is_ranked};
pub use safetensors::{SafetensorsFile, SafetensorsWriter, StoredDtype, TensorEntry, TensorSource};
pub use shards::{SHARD_BYTES, ShardedWriter};
pub use weights::Weights;

/// Puts the values of a parameter, by its name, into a vector.
pub type Fill<'a> = &'a mut dyn FnMut(&str, &mut Vec<f32>) -> crate::Result<()>;
