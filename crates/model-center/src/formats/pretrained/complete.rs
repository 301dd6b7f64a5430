//! What a model directory lacks before it can be opened: its configuration, its weights or some of their shards.
//!
//! Defines [`missing`], called by [`Pretrained`](super::Pretrained).

use std::path::Path;

use crate::Result;
use crate::file::{is_inside, printable};
use crate::formats::shard_index::shard_names;
use crate::formats::weights::WeightsName;

const SHOWN: usize = 5;

/// Describes the missing files of a directory; `None` for a complete one. Dangling links count as missing.
pub(super) fn missing(directory: &Path) -> Result<Option<String>> {
    let mut absent = Vec::new();
    if !is_inside(directory, "config.json")? {
        absent.push("config.json".to_owned());
    }
    match WeightsName::of(directory)? {
        Some(list) if list.is_index => {
            for shard in shard_names(directory, list.name)? {
                if !is_inside(directory, &shard)? {
                    absent.push(printable(&shard, 80));
                }
            }
        }
        Some(_) => {}
        None => absent.push(format!("weights ({})", WeightsName::all())),
    }
    let more = absent.len().saturating_sub(SHOWN);
    absent.truncate(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Ok((!absent.is_empty()).then(|| format!("{}{more}", absent.join(", "))))
}
