//! Replacement of Parquet files in a build without the feature `parquet`: an error that names it.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde_json::{Map, Value};

use super::input::TextEncoding;
use super::lines::Flaw;
use super::record::Unread;
use crate::{Error, Result};

/// Part of each row that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// A column that must be there, of text.
    pub text: Option<&'a str>,
    /// Whether the other columns are read too.
    pub others: bool,
}

/// Never there.
#[derive(Debug)]
pub struct ParquetRows(Infallible);

impl ParquetRows {
    /// Never opens a file.
    ///
    /// # Errors
    /// [`Error::Data`] that names the feature, always.
    pub fn open(path: &Path, _: Wanted<'_>, _: (usize, TextEncoding), _: &Arc<AtomicU64>) -> Result<ParquetRows> {
        let reason = "this program was built without the feature parquet, and reads no Parquet files";
        let fix = "build it with the feature, a default of the programs, or write the rows as JSON lines or Arrow";
        Err(Error::data(path.display().to_string(), reason, fix))
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        match self.0 {}
    }

    /// Columns that are not read.
    pub fn unread(&self) -> &[Unread] {
        match self.0 {}
    }

    /// The number of the row, from 1.
    pub fn row(&self) -> u64 {
        match self.0 {}
    }

    /// The next row.
    pub fn advance(&mut self) -> Result<Option<std::result::Result<Map<String, Value>, Flaw>>> {
        match self.0 {}
    }
}
