//! Raw text: the documents of files in several formats, one in memory at a time.
//!
//! Defines [`TextSource`], what is read, and [`Documents`], which reads it. `json_array` has the elements of a JSON
//! array, `wiki` the output of WikiExtractor, `aliases` the table of named corpora. Called by the builder of token
//! files.

mod aliases;
mod documents;
mod json_array;
mod wiki;

pub use aliases::{CorpusTable, read_table};
pub use documents::{DocumentCounts, Documents, TextRecord};

use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_formats::io::arrow::not_one;
pub use model_center_formats::io::input::TextEncoding;
use model_center_formats::saved_data::{SavedKind, saved_kind};

/// Directories in a directory are read this deep.
const MAX_DEPTH: usize = 8;
/// The most bytes of a document unless a source sets it: 256 MiB.
pub const MAX_DOCUMENT_BYTES: usize = 1 << 28;

/// How the documents of a file are marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum TextFormat {
    /// JSON objects, one a line or in one array, each with a document under the key. An array may hold texts, too.
    Json,
    /// Rows after a header that names the column of documents, fields quoted as in RFC 4180.
    Csv,
    /// Rows after a header, tabs between fields, no quoting.
    Tsv,
    /// A file is a document.
    Text,
    /// A line is a document.
    Lines,
    /// Lines up to an empty one are a document.
    Paragraphs,
    /// WikiExtractor's output: documents between `<doc …>` and `</doc>`.
    Wiki,
    /// Rows of a column of text.
    Arrow,
    /// The same, unless the feature `parquet` is left out.
    Parquet,
}

impl TextFormat {
    /// Every format with its name.
    pub const ALL: [(TextFormat, &'static str); 9] = [
        (TextFormat::Json, "json"),
        (TextFormat::Csv, "csv"),
        (TextFormat::Tsv, "tsv"),
        (TextFormat::Text, "text"),
        (TextFormat::Lines, "lines"),
        (TextFormat::Paragraphs, "paragraphs"),
        (TextFormat::Wiki, "wiki"),
        (TextFormat::Arrow, "arrow"),
        (TextFormat::Parquet, "parquet"),
    ];

    /// The format that a file name stands for: `.json`, `.jsonl`, `.ndjson`, `.csv`, `.tsv`, `.tab`, `.txt`, each also
    /// with `.gz`, `.zst` or `.zstd`, WikiExtractor's `wiki_00`, `.arrow`, `.feather`, `.parquet`, and a directory that
    /// `datasets` saved.
    pub fn of(path: &Path) -> Option<TextFormat> {
        let name = path.file_name()?.to_str()?.to_lowercase();
        let compressed = [".gz", ".zst", ".zstd"].iter().find_map(|ending| name.strip_suffix(ending));
        let name = compressed.unwrap_or(&name);
        let is_wiki = name.strip_prefix("wiki_").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
        match name.rsplit_once('.').map(|(_, ending)| ending) {
            Some("json" | "jsonl" | "ndjson") => Some(TextFormat::Json),
            Some("csv") => Some(TextFormat::Csv),
            Some("tsv" | "tab") => Some(TextFormat::Tsv),
            Some("txt") => Some(TextFormat::Text),
            // These compress themselves.
            Some("arrow" | "feather") if compressed.is_none() => Some(TextFormat::Arrow),
            Some("parquet") if compressed.is_none() => Some(TextFormat::Parquet),
            _ if is_wiki => Some(TextFormat::Wiki),
            _ => (saved_kind(path) == Some(SavedKind::Set)).then_some(TextFormat::Arrow),
        }
    }
}

/// Files of documents, and how they are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextSource {
    /// Files, and directories whose files are read in the order of their names, however deep. Hidden ones are not.
    pub paths: Vec<PathBuf>,
    /// The format; by default what each file name stands for.
    pub format: Option<TextFormat>,
    /// The key or column of the documents; a dot reaches into JSON objects.
    pub key: String,
    /// Delimiter of the fields of CSV.
    pub delimiter: char,
    /// How the texts are stored.
    pub encoding: TextEncoding,
    /// The most bytes of a document, a line or a record; bounds memory.
    pub max_document_bytes: usize,
}

impl TextSource {
    /// Documents under `text`, of UTF-8 files with the formats of their names.
    pub fn new(paths: Vec<PathBuf>) -> TextSource {
        TextSource {
            paths,
            format: None,
            key: "text".into(),
            delimiter: ',',
            encoding: TextEncoding::default(),
            max_document_bytes: MAX_DOCUMENT_BYTES,
        }
    }

    /// The files, directories resolved, each with its format.
    ///
    /// # Errors
    /// [`Error::Data`] for a path that is missing, a directory without files, and a name that stands for no format.
    pub fn files(&self) -> Result<Vec<(PathBuf, TextFormat)>> {
        let mut files = Vec::new();
        for path in &self.paths {
            let before = files.len();
            collect(path, MAX_DEPTH, &mut files)?;
            if files.len() == before {
                let fix = "name a directory with files";
                return Err(Error::data(path.display().to_string(), "the directory has no files", fix));
            }
        }
        if files.is_empty() {
            return Err(Error::argument("files", "no files", "name at least one"));
        }
        let formatted = files.into_iter().map(|path| match self.format.or_else(|| TextFormat::of(&path)) {
            Some(format) => Ok((path, format)),
            None => Err(Error::data(
                path.display().to_string(),
                "the file name does not determine the format",
                format!("set the format to one of {}", names()),
            )),
        });
        formatted.collect()
    }
}

fn names() -> String {
    TextFormat::ALL.map(|(_, name)| name).join(", ")
}

/// Adds the files of a path.
fn collect(path: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<()> {
    let failed = |error| model_center_formats::io::input::of_data(model_center_base::file::unreadable(path, error));
    if !fs::metadata(path).map_err(failed)?.is_dir() || saved_kind(path) == Some(SavedKind::Set) {
        files.push(path.to_owned());
        return Ok(());
    }
    if depth == 0 {
        let reason = format!("directories deeper than {MAX_DEPTH} levels");
        return Err(Error::data(path.display().to_string(), reason, "name the directory itself"));
    }
    let entries = fs::read_dir(path).map_err(failed)?;
    let mut entries = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
    entries.retain(|entry| !entry.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")));
    if saved_kind(path) == Some(SavedKind::Dictionary) {
        // A corpus of all splits would have the test's.
        return Err(not_one(path));
    }
    entries.sort();
    entries.iter().try_for_each(|entry| collect(entry, depth - 1, files))
}

/// A text that is quoted in an error.
pub(super) fn quoted(text: &str) -> String {
    printable(text, 60)
}
