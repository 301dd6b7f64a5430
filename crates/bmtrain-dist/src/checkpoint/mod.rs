//! Checkpoints on disk: what one is, how it gets there whole or not at all, how it is found, checked, read and removed.
//!
//! Nothing here knows models, devices or optimizers: a checkpoint holds runs of named tensors, whoever cut them.
//!
//! ```text
//! ROOT/step-1200-5f0c2a91/          committed: its name holds the beginning of its manifest's hash
//!        manifest.json              everything about it, and at its end the hash of that
//!        rank-0.safetensors ...     one ordinary safetensors file for every rank
//!      step-1300.tmp-ID/            being saved, or left behind
//!      .gone-step-1100-77b1c3e0/    being removed, or left behind
//! ```
//!
//! **Saving**: each rank calls [`Writer::begin`] and [`Writer::write_shard`] and carries the [`FileRecord`] to one
//! rank, which calls [`Writer::commit`]; a [`SaveThread`] does both beside the training. **Resuming**:
//! [`Store::remove_leftovers`], then [`Store::newest_verified`]; every rank reads what it needs by
//! [`Checkpoint::read_range`], however many ranks had saved. **Tools**: [`Store::reports`], [`Checkpoint::digest`],
//! [`reshard`].
//!
//! What files say is not believed: names cannot leave the directory, lengths are checked before memory is taken, sums
//! are checked for overflow, and bytes are handed out only after their hash was found right.

mod coverage;
mod digest;
pub mod disk;
mod fail_point;
mod fault;
mod hash;
mod manifest;
mod name;
mod opened;
mod piece;
mod prune;
mod reshard;
mod save_thread;
mod shard;
pub mod simulated;
mod store;
mod writer;

pub use coverage::LogicalTensor;
pub use digest::Digest;
pub use fail_point::{FailAction, FailPoint, FailPoints};
pub use fault::Fault;
pub use hash::ContentHash;
pub use manifest::{Facts, Manifest, SCHEMA};
pub use name::{CheckpointName, MANIFEST_FILE, NotAName};
pub use opened::Checkpoint;
pub use piece::{FileRecord, Kind, Piece, PieceRecord, PieceSpec};
pub use prune::{KEEP_LEAST, Keep};
pub use reshard::reshard;
pub use save_thread::{SaveJob, SaveOutcome, SaveThread};
pub use shard::ShardWriter;
pub use store::{Contents, Newest, PassedOver, Report, Store};
pub use writer::{Committed, Writer};
