//! Checkpoints that a training run of Megatron-LM or DeepSpeed left, one file for each rank, as a Hugging Face
//! directory.
//!
//! - `found`: which files of a directory belong to which rank.
//! - `pieces`: the tensors of a tensor-parallel rank, over its pipeline stages; `zero`: ZeRO's f32 master weights.
//! - `joined`: pieces of all ranks as one tensor, and the orders of queries, keys and values.
//! - `names`, `bert`: whole tensors under Hugging Face's names, and the configuration.
//! - `directory`: [`ranked_to_directory`], which writes them.
//!
//! Called by programs that convert a model.

mod bert;
mod directory;
mod found;
mod fragments;
mod joined;
mod names;
mod pieces;
mod zero;

pub use directory::{RankedOptions, RankedReport, ranked_to_directory};
pub use found::{RankedSystem, is_ranked};
pub use joined::JoinedTensor;
