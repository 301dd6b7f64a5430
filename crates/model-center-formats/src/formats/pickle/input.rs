//! A stretch of a file, read from front to back: nothing is believed about a length before the file is known to have
//! it.

use std::fs::File;
use std::path::Path;

use super::super::stored::{damaged, read_at};
use crate::{Error, Result};
use model_center_base::file::printable;

const BUFFER: usize = 64 * 1024;

/// The error for a file that holds something that is not read here, whole as it may be.
pub(super) fn refused(path: &Path, reason: impl Into<String>) -> Error {
    Error::model(
        path.display().to_string(),
        reason,
        "use the model's safetensors file, or convert this one on a machine that you trust it with: load it there, and \
         save the dictionary of its tensors alone with save_file of the Python package safetensors",
    )
}

/// The bytes `at..end` of a file, taken one after another.
#[derive(Debug)]
pub(super) struct Input<'a> {
    path: &'a Path,
    file: &'a File,
    /// Name of the stretch in messages, such as `data.pkl`.
    what: &'static str,
    /// The file offset of byte 0 in messages.
    origin: u64,
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    /// Bytes of the buffer that were taken already.
    taken: usize,
}

impl<'a> Input<'a> {
    /// The bytes `start..end` of `file`, which has them.
    pub(super) fn new(path: &'a Path, file: &'a File, what: &'static str, start: u64, end: u64) -> Self {
        Self { path, file, what, origin: start, at: start, end, buffer: Vec::new(), taken: 0 }
    }

    pub(super) fn path(&self) -> &'a Path {
        self.path
    }

    /// The next byte's number, counted from the start of the stretch.
    pub(super) fn offset(&self) -> u64 {
        self.at - self.origin
    }

    /// The next byte's place in the file.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    pub(super) fn left(&self) -> u64 {
        self.end - self.at
    }

    /// The error for contents that contradict themselves around byte `offset` of the stretch.
    pub(super) fn damaged(&self, offset: u64, reason: impl AsRef<str>) -> Error {
        damaged(self.path.display(), format!("{}, byte {offset}: {}", self.what, reason.as_ref()))
    }

    /// The error for contents that are not read here, at byte `offset` of the stretch.
    pub(super) fn refused(&self, offset: u64, reason: impl AsRef<str>) -> Error {
        refused(self.path, format!("{}, byte {offset}: {}", self.what, reason.as_ref()))
    }

    /// An error with a fix of its own.
    pub(super) fn refused_for(&self, offset: u64, reason: impl AsRef<str>, fix: &str) -> Error {
        let reason = format!("{}, byte {offset}: {}", self.what, reason.as_ref());
        Error::model(self.path.display().to_string(), reason, fix)
    }

    /// The error for contents that no file of weights has by accident.
    pub(super) fn hostile(&self, offset: u64, reason: impl AsRef<str>) -> Error {
        Error::model(
            self.path.display().to_string(),
            format!("{}, byte {offset}: {}; nothing was run", self.what, reason.as_ref()),
            "the file may be an attack on Python programs that load it: do not open it there, and tell its source",
        )
    }

    fn require(&self, length: u64) -> Result<()> {
        if length > self.left() {
            let reason = format!("{length} bytes should follow, but {} are left", self.left());
            return Err(self.damaged(self.offset(), reason));
        }
        Ok(())
    }

    pub(super) fn skip(&mut self, length: u64) -> Result<()> {
        self.require(length)?;
        self.at += length;
        let buffered = (self.buffer.len() - self.taken) as u64;
        if length <= buffered {
            self.taken += length as usize;
        } else {
            self.buffer.clear();
            self.taken = 0;
        }
        Ok(())
    }

    pub(super) fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        self.require(out.len() as u64)?;
        let mut done = 0;
        while done < out.len() {
            if self.taken == self.buffer.len() {
                self.buffer.resize(self.left().min(BUFFER as u64) as usize, 0);
                self.taken = 0;
                read_at(self.path, self.file, self.at, &mut self.buffer, None)?;
            }
            let count = (out.len() - done).min(self.buffer.len() - self.taken);
            out[done..done + count].copy_from_slice(&self.buffer[self.taken..self.taken + count]);
            self.taken += count;
            self.at += count as u64;
            done += count;
        }
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// The next `length` bytes, at most `limit`.
    pub(super) fn bytes(&mut self, length: u64, limit: u64) -> Result<Vec<u8>> {
        self.require(length)?;
        if length > limit {
            let reason = format!("a value of {length} bytes, more than the {limit} that any real file has there");
            return Err(self.refused(self.offset(), reason));
        }
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn text(&mut self, length: u64, limit: u64) -> Result<String> {
        let offset = self.offset();
        String::from_utf8(self.bytes(length, limit)?).map_err(|_| self.damaged(offset, "text that is not UTF-8"))
    }

    /// The text up to the next line feed, which is passed over.
    pub(super) fn line(&mut self, limit: usize) -> Result<String> {
        let offset = self.offset();
        let mut bytes = Vec::new();
        loop {
            match self.byte()? {
                b'\n' => break,
                byte if bytes.len() < limit => bytes.push(byte),
                _ => {
                    let begin = printable(&String::from_utf8_lossy(&bytes), 40);
                    return Err(self.damaged(offset, format!("a name of more than {limit} bytes, {begin}")));
                }
            }
        }
        String::from_utf8(bytes).map_err(|_| self.damaged(offset, "a name that is not UTF-8"))
    }
}
