//! The table of named corpora.
//!
//! Defines [`CorpusTable`]: a TOML file in which each table is a corpus, with its paths and how they are read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{MAX_DOCUMENT_BYTES, TextEncoding, TextFormat, TextSource};
use crate::{Error, Result};
use model_center_base::file::{printable, read_text};
use model_center_formats::io::input::of_data;

const MAX_TABLE_BYTES: u64 = 1 << 20;

/// Corpora by name.
pub type CorpusTable = BTreeMap<String, TextSource>;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    paths: Vec<PathBuf>,
    format: Option<TextFormat>,
    #[serde(default = "text")]
    key: String,
    #[serde(default = "comma")]
    delimiter: char,
    #[serde(default)]
    encoding: TextEncoding,
    #[serde(default = "most")]
    max_document_bytes: usize,
}

fn text() -> String {
    "text".into()
}

fn comma() -> char {
    ','
}

fn most() -> usize {
    MAX_DOCUMENT_BYTES
}

/// Reads a table of corpora. Relative paths begin at the directory of the table.
///
/// ```toml
/// [wikipedia]
/// paths = ["wiki/AA", "wiki/AB"]
/// format = "wiki"
///
/// [webtext]
/// paths = ["webtext.jsonl.gz"]
/// key = "content"
/// ```
///
/// # Errors
/// [`Error::Data`] for a file that is missing, longer than 1 MiB or not such a table.
pub fn read_table(path: &Path) -> Result<CorpusTable> {
    let text = read_text(path, MAX_TABLE_BYTES).map_err(of_data)?;
    let fix = "write a table for each corpus: its paths and, as needed, format, key, delimiter, encoding and \
               max_document_bytes";
    let entries: BTreeMap<String, Entry> = toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
        Error::data(format!("{}:{line}", path.display()), printable(error.message(), 200), fix)
    })?;
    let base = path.parent().unwrap_or(Path::new(""));
    let source = |entry: Entry| TextSource {
        paths: entry.paths.iter().map(|path| base.join(path)).collect(),
        format: entry.format,
        key: entry.key,
        delimiter: entry.delimiter,
        encoding: entry.encoding,
        max_document_bytes: entry.max_document_bytes,
    };
    Ok(entries.into_iter().map(|(name, entry)| (name, source(entry))).collect())
}
