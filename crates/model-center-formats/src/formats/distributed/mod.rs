//! PyTorch's distributed checkpoints: tensors in parts, in files of several ranks.
//!
//! - `metadata`: the file `.metadata`, which tells where each part of each tensor is.
//! - `sharded`: the files of `HuggingFaceStorageWriter`, safetensors whose headers tell it.
//! - `names`: which tensors are the model's, and what they are called without what is around it.
//! - `parts`: whether parts make a tensor, and the values of a range of it.
//! - `weights`: [`DistributedWeights`], the tensors of a directory.
//!
//! FSDP, `accelerate`, torchtitan and others save with `torch.distributed.checkpoint`: each rank writes its parts into
//! files `__RANK_NUMBER.distcp`, one file of `torch.save` after the other, and rank 0 writes the pickle `.metadata`.
//! Parts are along any axes, from any number of ranks; a tensor that every rank has is written once. Nothing in the
//! files is run, see [`super::pickle`]. Called by [`super::weights`].

mod metadata;
mod names;
mod parts;
mod sharded;
mod weights;

use std::path::Path;

use crate::Result;
use model_center_base::file::unreadable;

pub use names::LeftOut;
pub(super) use names::{MEGATRON_CORE_FIX, is_megatron_core};
pub use weights::DistributedWeights;

/// The file that lists tensors and their parts.
pub(super) const METADATA_FILE: &str = ".metadata";

/// Whether a directory is such a checkpoint.
pub fn is_distributed(directory: &Path) -> bool {
    directory.join(METADATA_FILE).is_file() || sharded::has_files(directory)
}

/// The names of the files that such a checkpoint is in, in order.
///
/// # Errors
/// A directory that cannot be read.
pub(super) fn distributed_files(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|e| unreadable(directory, e))? {
        let name = entry.map_err(|e| unreadable(directory, e))?.file_name().to_string_lossy().into_owned();
        let is_part = name == METADATA_FILE || name.ends_with(".distcp") || sharded::is_shard(&name);
        names.extend(is_part.then_some(name));
    }
    names.sort();
    Ok(names)
}
