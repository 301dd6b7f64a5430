//! The tasks on datasets of BMTrain's block files.

use crate::cli::terminal;
use bmtrain_corpus::formats::{compact_blocks, mask_blocks, shuffle_blocks};
use clap::Subcommand;
use model_center_base::Result;
use serde_json::json;
use std::path::PathBuf;

/// What to do with block files.
#[derive(Debug, Subcommand)]
pub enum BlockTask {
    /// Write the records in a random order to a new dataset.
    Shuffle {
        /// The directory of the dataset.
        from: PathBuf,
        /// The directory of the result, which is made.
        to: PathBuf,
        /// Decides the order.
        #[arg(long, default_value_t = 1234)]
        seed: u64,
        /// Bytes of records that are put in order in memory; the order does not depend on it.
        #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
        bucket_bytes: u64,
    },
    /// Drop files that are missing from the list of a dataset, and number the blocks of the others anew.
    Compact {
        /// The directory of the dataset.
        path: PathBuf,
    },
    /// Leave a file of a dataset out of reading, or take it in again.
    Mask {
        /// The directory of the dataset.
        path: PathBuf,
        /// The name of the file.
        name: String,
        /// Take it in again.
        #[arg(long)]
        off: bool,
    },
}

/// Do it and report.
pub(super) fn run(task: &BlockTask, as_json: bool) -> Result<()> {
    let (record, text) = match task {
        BlockTask::Shuffle { from, to, seed, bucket_bytes } => {
            let records = shuffle_blocks(from, to, *seed, *bucket_bytes)?;
            (json!({"records": records}), format!("{}: {records} records shuffled", to.display()))
        }
        BlockTask::Compact { path } => {
            let dropped = compact_blocks(path)?;
            (json!({"dropped": dropped}), format!("{}: {dropped} missing files dropped", path.display()))
        }
        BlockTask::Mask { path, name, off } => {
            mask_blocks(path, name, !off)?;
            let state = if *off { "read" } else { "masked" };
            (json!({"name": name, "masked": !off}), format!("{}: {name} is {state}", path.display()))
        }
    };
    terminal::print(&if as_json { record.to_string() } else { text })
}
