//! Checkpoints that a training run of Megatron-LM or DeepSpeed left, one file for each rank, as a Hugging Face
//! directory.
//!
//! - `found`: which files of a directory belong to which rank.
//! - `pieces`: the tensors of a tensor-parallel rank, over its pipeline stages; `zero`: ZeRO's f32 master weights.
//! - `joined`: pieces of all ranks as one tensor, and the orders of queries, keys and values.
//! - `names`, `bert`: whole tensors under Hugging Face's names, and the configuration.
//!
//! [`crate::directory::ranked_to_directory`] writes them.

mod bert;
pub(crate) mod found;
mod fragments;
pub(crate) mod joined;
pub(crate) mod names;
pub(crate) mod pieces;
mod zero;

pub use found::{RankedSystem, is_ranked};
pub use joined::JoinedTensor;

use bmtrain_core::dtype::DType;
use std::path::PathBuf;

/// Facts that the files of a checkpoint may not tell.
#[derive(Debug, Clone, Default)]
pub struct RankedOptions {
    /// Dtype that is written; `None` for the one that most values have.
    pub dtype: Option<DType>,
    /// Attention heads.
    pub heads: Option<usize>,
    /// Tokens of the vocabulary without padding.
    pub vocabulary: Option<usize>,
    /// A directory with the config.json and the tokenizer of the model.
    pub config: Option<PathBuf>,
}
