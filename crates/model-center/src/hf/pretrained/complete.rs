//! What a model folder lacks before it can be opened: its configuration, its weights or some of their shards.
//!
//! Defines [`missing`], called by [`Pretrained`](super::Pretrained).

use std::fs;
use std::path::Path;

use crate::Result;
use crate::file::{printable, resolve_inside};
use crate::hf::weights::{INDEX_FILE, SINGLE_FILE, shard_names};

/// Weights of other kinds than safetensors. Whether they are read is for [`crate::hf::Weights`] to say; a folder that has them
/// is no half download.
const OTHER_WEIGHTS: [&str; 2] = ["pytorch_model.bin", "pytorch_model.pt"];
/// Their list of shards.
const OTHER_INDEX: &str = "pytorch_model.bin.index.json";
/// At most so many missing files are named.
const SHOWN: usize = 5;

/// The files that a folder lacks, in words; `None` for a complete one. Links that lead nowhere count as missing.
///
/// # Errors
/// [`crate::Error::Model`] for links out of the folder and its cache, and for an index that cannot be read.
pub(super) fn missing(folder: &Path) -> Result<Option<String>> {
    let mut absent = Vec::new();
    if !is_there(folder, "config.json")? {
        absent.push("config.json".to_owned());
    }
    let mut weights = false;
    for name in std::iter::once(SINGLE_FILE).chain(OTHER_WEIGHTS) {
        weights = weights || is_there(folder, name)?;
    }
    for index in [INDEX_FILE, OTHER_INDEX] {
        if !weights && is_there(folder, index)? {
            weights = true;
            for shard in shard_names(folder, index)? {
                if !is_there(folder, &shard)? {
                    absent.push(printable(&shard, 80));
                }
            }
        }
    }
    if !weights {
        absent.push(format!("weights ({SINGLE_FILE}, or the shards of {INDEX_FILE})"));
    }
    let more = absent.len().saturating_sub(SHOWN);
    absent.truncate(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Ok((!absent.is_empty()).then(|| format!("{}{more}", absent.join(", "))))
}

/// Whether a file is there and lies where it may.
fn is_there(folder: &Path, name: &str) -> Result<bool> {
    crate::file::check_name(folder, name)?;
    if fs::metadata(folder.join(name)).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        return Ok(false);
    }
    resolve_inside(folder, name).map(|_| true)
}
