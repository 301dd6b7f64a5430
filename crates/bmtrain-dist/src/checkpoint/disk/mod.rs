//! Checkpoints on disk: what one is, how it is committed atomically, found, verified, read and removed.
//!
//! Nothing here knows models, devices or optimizers: a checkpoint holds runs of named tensors, however they are
//! sharded.
//!
//! ```text
//! ROOT/step-1200-5f0c2a91/          committed: its name holds the beginning of its manifest's hash
//!        manifest.json              everything about it, and at its end the hash of that
//!        rank-0.safetensors ...     one ordinary safetensors file for every rank
//!      step-1300.tmp-ID/            being saved, or left by an interrupted save
//!      .gone-step-1100-77b1c3e0/    being removed, or left by an interrupted removal
//! ```
//!
//! **Saving**: each rank calls [`Writer::begin`] and [`Writer::write_shard`] and sends the [`FileRecord`] to one rank,
//! which calls [`Writer::commit`]; a [`SaveThread`] does both while training goes on. **Resuming**:
//! [`Store::remove_leftovers`], then [`Store::newest_verified`]; every rank reads what it needs by
//! [`Checkpoint::read_runs`], however many ranks had saved. **Tools**: [`Store::reports`], [`Checkpoint::digest`],
//! [`reshard`].
//!
//! Files are not trusted: names cannot leave the directory, lengths are checked before memory is allocated, sums are
//! checked for overflow, and bytes are returned only after their hash was verified.

mod coverage;
mod digest;
mod fail_point;
mod fault;
mod filesystem;
mod hash;
mod manifest;
mod name;
mod opened;
mod piece;
mod prune;
mod reshard;
mod save_thread;
mod shard;
#[cfg(feature = "testing")]
pub mod simulated;
mod store;
mod tiling;
mod writer;

pub use crate::error::Fault;
pub use coverage::LogicalTensor;
pub use digest::Digest;
pub use fail_point::FailPoints;
#[cfg(feature = "testing")]
pub use fail_point::{FailAction, FailPoint};
pub use filesystem::{Disk, EntryKind, ReadFile, RealDisk, WriteFile};
pub use hash::ContentHash;
pub use manifest::{Facts, Manifest, SCHEMA};
pub use name::{CheckpointName, MANIFEST_FILE, NotAName};
pub use opened::{Checkpoint, ElementRun};
pub use piece::{FileRecord, Kind, PieceRecord, PieceSpec, TensorPiece};
pub use prune::{KEEP_LEAST, Keep};
pub use reshard::reshard;
pub use save_thread::{SaveJob, SaveOutcome, SaveThread};
pub use shard::ShardWriter;
pub use store::{Contents, Newest, PassedOver, Report, Store};
pub use writer::{Committed, Writer};
