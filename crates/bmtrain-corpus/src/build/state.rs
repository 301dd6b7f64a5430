//! Progress of a build, in a hidden file beside its result.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use super::BuildOptions;
use crate::{Error, Result};
use model_center_base::file::{read_text, write_atomic};
use model_center_data::corpus::text::{DocumentCounts, TextSource};
use model_center_data::corpus::token_type::TokenType;
use model_center_data::corpus::writer::{WriterPosition, hidden};
use model_center_formats::tokenizer::Tokenizer;

const MAX_STATE_BYTES: u64 = 1 << 16;
/// A text with what tokenizers treat differently.
const PROBE: &str =
    "The cat's 12,345 caf\u{E9}s \u{2014} \u{4E2D}\u{6587} \u{1F600}\n\n  tabs\tand URLs http://a.b/c?d=e";

/// A flushed state.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BuildState {
    /// Identity of the build; see [`identity`].
    pub(super) identity: String,
    pub(super) written: WriterPosition,
    /// Counts of what was read for it.
    pub(super) counts: DocumentCounts,
}

fn path(prefix: &Path) -> PathBuf {
    hidden(prefix, ".build.json")
}

/// A hash of all that decides about the bytes of the result: files with their lengths and times, tokenizer, options.
pub(super) fn identity(
    sources: &[TextSource],
    tokenizer: &dyn Tokenizer,
    options: &BuildOptions,
    token: TokenType,
) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: String| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    for source in sources {
        for (file, format) in source.files()? {
            let metadata = fs::metadata(&file).map_err(|e| model_center_base::file::unreadable(&file, e))?;
            let time = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            add(format!("{} {format:?} {} {time:?}", file.display(), metadata.len()));
        }
        let TextSource { key, delimiter, encoding, max_document_bytes, .. } = source;
        add(format!("{key} {delimiter} {encoding:?} {max_document_bytes}"));
    }
    let BuildOptions { end_of_document, split_lines, newline, on_bad_record, .. } = options;
    add(format!("{} {end_of_document:?} {split_lines} {newline:?} {on_bad_record:?}", token.name()));
    let size = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
    for id in 0..size {
        add(tokenizer.token(id).unwrap_or_default());
    }
    add(format!("{:?}", tokenizer.tokenize(&[PROBE])?));
    Ok(hasher.finalize().to_hex().to_string())
}

/// The state of an interrupted build of the same result.
pub(super) fn load(prefix: &Path, identity: &str) -> Option<BuildState> {
    let state: BuildState = serde_json::from_str(&read_text(&path(prefix), MAX_STATE_BYTES).ok()?).ok()?;
    (state.identity == identity).then_some(state)
}

pub(super) fn save(prefix: &Path, state: &BuildState) -> Result<()> {
    let text =
        serde_json::to_string_pretty(state).map_err(|e| Error::argument("state", e.to_string(), "report this"))?;
    write_atomic(&path(prefix), (text + "\n").as_bytes())
}

/// Removes the state of a build that is whole.
pub(super) fn remove(prefix: &Path) -> Result<()> {
    let path = path(prefix);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("remove", &path, error, "remove it by hand"))
        }
        _ => Ok(()),
    }
}
