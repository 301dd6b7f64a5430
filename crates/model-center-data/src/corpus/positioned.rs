//! Reads at positions of a file, each within its length.
//!
//! Defines [`PositionedFile`]. Not a memory map: a file that another process cuts off ends a process that has it mapped
//! by a signal, and here in an error. Called by the readers of token files and of index maps.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::{Error, Result};
use model_center_base::file::open_regular;
use model_center_formats::io::input::{file_error, of_data};

/// An open file of known length.
#[derive(Debug)]
pub struct PositionedFile {
    path: PathBuf,
    file: File,
    length: u64,
}

impl PositionedFile {
    /// Opens a regular file.
    pub fn open(path: &Path) -> Result<Self> {
        let (file, length) = open_regular(path).map_err(of_data)?;
        Ok(PositionedFile { path: path.to_owned(), file, length })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file when it was opened.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Fills `bytes` from the file at `offset`.
    ///
    /// # Errors
    /// [`Error::Data`] if the file ends before: it was cut off after it was opened, or an offset from a file is wrong.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.length) {
            return Err(self.corrupt(format!("bytes from {offset} are needed, and the file has {}", self.length)));
        }
        match self.file.read_exact_at(bytes, offset) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(self.corrupt(format!("the file was cut off after it was opened with {} bytes", self.length)))
            }
            read => read.map_err(|error| file_error(&self.path, error)),
        }
    }

    /// An integer of 8 bytes, the least significant first.
    pub fn u64_at(&self, offset: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.read_at(offset, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The error for contents that contradict themselves.
    pub fn corrupt(&self, reason: impl Into<String>) -> Error {
        corrupt(&self.path, reason)
    }
}

/// The error for a file that is not what its name or its neighbour promises.
pub fn corrupt(path: &Path, reason: impl Into<String>) -> Error {
    let fix = "write or copy the corpus again: PREFIX.bin and PREFIX.idx belong together";
    Error::data(path.display().to_string(), reason, fix)
}
