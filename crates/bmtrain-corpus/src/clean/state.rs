//! Progress of the work, in the directory of its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::CleanOptions;
use super::store::StorePosition;
use crate::{Error, Result};
use model_center_base::file::{read_text, write_atomic};
use model_center_data::corpus::text::{DocumentCounts, TextSource};
use model_center_formats::tokenizer::Tokenizer;

const MAX_STATE_BYTES: u64 = 1 << 16;

/// A flushed state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CleanState {
    /// Identity of inputs and options; see [`identity`].
    pub(super) identity: String,
    /// Counts of what was read.
    pub(super) counts: DocumentCounts,
    /// Documents left after the first stage.
    pub(super) store: StorePosition,
    /// URLs whose hashes are written.
    pub(super) urls: u64,
    /// Whether all was read.
    pub(super) is_screened: bool,
    /// Whether documents of the same URL are marked.
    pub(super) are_urls_done: bool,
    /// Bands that are compared.
    pub(super) bands: usize,
    /// Pairs found in them.
    pub(super) pairs: u64,
    /// Whether near-duplicates are marked.
    pub(super) are_near_done: bool,
    /// The documents after task texts were taken out.
    pub(super) filtered: Option<StorePosition>,
}

fn path(work: &Path) -> PathBuf {
    work.join("state.json")
}

/// A hash of all that decides about the result: files with their lengths and times, tokenizer, options.
pub(super) fn identity(
    source: &TextSource,
    tokenizer: Option<&dyn Tokenizer>,
    options: &CleanOptions,
) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: String| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    let mut files = source.files()?;
    if let Some(tasks) = &options.tasks {
        files.extend(tasks.files()?);
    }
    for (file, _) in files {
        let metadata = fs::metadata(&file).map_err(|e| model_center_base::file::unreadable(&file, e))?;
        let time = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        add(format!("{} {} {time:?}", file.display(), metadata.len()));
    }
    add(format!("{source:?}"));
    add(format!("{:?}", CleanOptions { threads: 0, memory: 0, ..options.clone() }));
    if let Some(tokenizer) = tokenizer {
        for id in 0..u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX) {
            add(tokenizer.token(id).unwrap_or_default());
        }
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// The state of interrupted work of the same identity, or the first state.
pub(super) fn load(work: &Path, identity: &str) -> CleanState {
    let begun = || CleanState { identity: identity.to_owned(), ..CleanState::default() };
    let Ok(text) = read_text(&path(work), MAX_STATE_BYTES) else { return begun() };
    serde_json::from_str(&text).ok().filter(|state: &CleanState| state.identity == identity).unwrap_or_else(begun)
}

pub(super) fn save(work: &Path, state: &CleanState) -> Result<()> {
    let text =
        serde_json::to_string_pretty(state).map_err(|e| Error::argument("state", e.to_string(), "report this"))?;
    write_atomic(&path(work), (text + "\n").as_bytes())
}
