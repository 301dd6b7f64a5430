//! Disks for tests: in memory, failing on purpose, and remembering so that every power cut can be replayed.
//!
//! - [`MemoryDisk`]: a disk that is a table, and lets a test damage what is on it.
//! - [`FailingDisk`]: fails at the k-th change, as a full or a broken disk does.
//! - [`RecordingDisk`] and [`WriteLog`]: what was written, flushed and renamed, and the disk as a power cut at any
//!   moment may leave it.

mod failing;
mod memory;
mod recording;
mod write_log;

pub use failing::{FailingDisk, Failure};
pub use memory::MemoryDisk;
pub use recording::RecordingDisk;
pub use write_log::{Loss, WriteLog};
