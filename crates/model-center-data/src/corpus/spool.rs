//! Files that grow while a result is prepared, and go on where an earlier process left them.
//!
//! Defines [`Spool`]; used by [`super::writer`] and by the cleaner of corpora.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Bytes that are collected before they are written.
pub const BUFFER: usize = 1 << 20;

/// One of the files in preparation.
#[derive(Debug)]
pub struct Spool {
    /// Where it is.
    pub path: PathBuf,
    /// The open file.
    pub file: BufWriter<File>,
}

impl Spool {
    /// Opens the file, or makes it, and leaves it as it is.
    pub fn open(path: PathBuf) -> Result<Spool> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|e| refused(&path, e))?;
        Ok(Spool { path, file: BufWriter::with_capacity(BUFFER, file) })
    }

    /// Drops what follows the first `length` bytes; whether it has them.
    pub fn cut(&mut self, length: u64) -> Result<bool> {
        let file = self.file.get_mut();
        let cut = file.metadata().and_then(|metadata| {
            if metadata.len() < length {
                return Ok(false);
            }
            file.set_len(length)?;
            file.seek(SeekFrom::Start(length))?;
            Ok(true)
        });
        cut.map_err(|e| refused(&self.path, e))
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// [`Error::File`] if they cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|e| refused(&self.path, e))
    }

    /// Writes what is buffered and waits until the disk has it.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be written.
    pub fn sync(&mut self) -> Result<()> {
        self.file.flush().and_then(|()| self.file.get_ref().sync_data()).map_err(|e| refused(&self.path, e))
    }

    /// Allows one process at a time; whether this one is it. The lock ends with the process.
    pub fn lock(&self) -> bool {
        use rustix::fs::{FlockOperation, flock};
        flock(self.file.get_ref(), FlockOperation::NonBlockingLockExclusive).is_ok()
    }
}

/// The error for a file that cannot be written.
pub fn refused(path: &Path, source: std::io::Error) -> Error {
    Error::file(
        "write",
        path,
        source,
        "check that the directory exists, that you may write there and that the disk has room left",
    )
}
