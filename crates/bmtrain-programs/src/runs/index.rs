//! Summary and curves of a run, in a file beside its metrics that follows them.
//!
//! Defines [`Index`]. The file has two lines: the summary with how far the metrics were read, and the curves. A list of
//! runs reads first lines only.

use super::curves::Curves;
use super::directory::RunDirectory;
use super::summary::Summary;
use crate::Result;
use model_center_base::file::temporary_name;
use model_center_recipe::run::{LineReader, metrics_reader::Position, tensorboard::scalars};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The file of a run's index, in its directory.
pub const INDEX_FILE: &str = ".runs-index";

/// A change of what the lines hold is a new number; files with another one are made anew.
const FORMAT: u32 = 1;
/// An index has some hundred kilobytes; a larger file is not one.
const MAX_BYTES: u64 = 16 << 20;

/// Index of a run's metrics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Index {
    head: Head,
    /// The scalars.
    pub curves: Curves,
}

/// The first line of the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Head {
    format: u32,
    /// Hash of the second line.
    curves: String,
    position: Position,
    damaged: u64,
    summary: Summary,
}

impl Index {
    /// The summary of a run: from its index file if that is as new as the metrics, else brought up to date. The second
    /// value is whether metrics were read.
    ///
    /// # Errors
    /// [`crate::Error::File`] if the metrics cannot be read. Of a run without metrics the summary is empty.
    pub fn summary(run: &RunDirectory) -> Result<(Summary, bool)> {
        let length = match fs::metadata(&run.metrics) {
            Ok(found) if found.is_file() => found.len(),
            _ => return Ok((Summary::default(), false)),
        };
        // A line that is still being written is beyond the position, and read again each time: it is short.
        if let Some(head) = read_head(&run.path.join(INDEX_FILE))
            && head.position.bytes == length
            && LineReader::open_at(&run.metrics, &head.position)?.is_some()
        {
            return Ok((head.summary, false));
        }
        Ok((Index::update(run)?.head.summary, true))
    }

    /// Summary and curves up to the present end of the metrics. Writes the index file if something was new.
    ///
    /// # Errors
    /// As [`Index::summary`].
    pub fn update(run: &RunDirectory) -> Result<Index> {
        if !run.metrics.is_file() {
            return Ok(Index::default());
        }
        let path = run.path.join(INDEX_FILE);
        let (mut index, mut reader) = match read(&path) {
            Some(index) => match LineReader::open_at(&run.metrics, &index.head.position)? {
                Some(reader) => (index, reader),
                None => (Index::default(), LineReader::open(&run.metrics)?),
            },
            None => (Index::default(), LineReader::open(&run.metrics)?),
        };
        let before = index.head.position.clone();
        while let Some(record) = reader.advance()? {
            index.add(&record);
        }
        index.head.position = reader.position().clone();
        index.head.damaged += reader.damaged;
        if index.head.position != before {
            // Without it the next look takes longer; a directory may be someone else's.
            let _ = index.write(&path);
        }
        Ok(index)
    }

    fn add(&mut self, record: &Value) {
        let at = self.head.summary.add(record);
        let context = match record.get("kind").and_then(Value::as_str) {
            Some("step") => "train",
            Some("eval") => "validation",
            Some("test") => "test",
            _ => return,
        };
        self.curves.push(context, at, &scalars(record));
    }

    /// Without waiting for the disk: a damaged file is found by its hash.
    fn write(&mut self, path: &Path) -> std::io::Result<()> {
        let curves = serde_json::to_string(&self.curves)?;
        self.head.format = FORMAT;
        self.head.curves = blake3::hash(curves.as_bytes()).to_hex().to_string();
        let text = format!("{}\n{curves}\n", serde_json::to_string(&self.head)?);
        let temporary = temporary_name(path);
        let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// The records in short.
    pub fn records(&self) -> &Summary {
        &self.head.summary
    }

    /// Lines of the metrics file that are not records.
    pub fn damaged_lines(&self) -> u64 {
        self.head.damaged
    }
}

fn open(path: &Path) -> Option<BufReader<std::io::Take<File>>> {
    let found = fs::symlink_metadata(path).ok()?;
    if !found.is_file() || found.len() > MAX_BYTES {
        return None;
    }
    Some(BufReader::new(File::open(path).ok()?.take(MAX_BYTES)))
}

fn read_head(path: &Path) -> Option<Head> {
    let mut line = String::new();
    open(path)?.read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok().filter(|head: &Head| head.format == FORMAT)
}

fn read(path: &Path) -> Option<Index> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text).ok()?;
    let (head, curves) = text.split_once('\n')?;
    let curves = curves.strip_suffix('\n')?;
    let head: Head = serde_json::from_str(head).ok()?;
    let is_whole = head.format == FORMAT && head.curves == blake3::hash(curves.as_bytes()).to_hex().as_str();
    Some(Index { curves: is_whole.then(|| serde_json::from_str(curves).ok())??, head })
}
