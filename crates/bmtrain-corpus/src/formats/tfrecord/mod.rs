//! Files of TensorFlow's records.
//!
//! | bytes | content |
//! |---|---|
//! | 8 | length of the record, least significant byte first |
//! | 4 | checksum of the length |
//! | length | the record |
//! | 4 | checksum of the record |
//!
//! A checksum is CRC-32C, rotated right by 15 bits and increased by 0xA282EAD8. gzip may have compressed the file, and
//! compresses what is written to a name that ends in `.gz`. Defines [`TfRecordReader`] and [`TfRecordWriter`];
//! `example` has what records hold, `bert` the records of BERT's pretraining, `documents` records as documents.

mod bert;
mod documents;
mod example;

use std::fs::File;
use std::io::{BufRead, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::Result;
use model_center_base::file::{AtomicFile, crc32c::masked, write_framed};
use model_center_data::corpus::positioned::corrupt;
use model_center_formats::io::input::{file_error, open_decompressed};

pub use bert::BertRecord;
pub(super) use documents::{DocumentRecords, RecordDocuments};
pub use example::{Example, Feature};

/// Bytes before a record.
const HEADER: usize = 12;
/// No record is longer.
const MAX_RECORD_BYTES: u64 = 1 << 30;

/// Whether a file begins with the length of a record and its checksum.
pub(super) fn is_record_file(path: &Path) -> bool {
    let start = || {
        let mut header = [0; HEADER];
        open_decompressed(path, &Arc::default()).ok()?.read_exact(&mut header).ok()?;
        length_of(header)
    };
    start().is_some()
}

/// The length of the record after a header, `None` if its checksum is another.
fn length_of(header: [u8; HEADER]) -> Option<u64> {
    let [a, b, c, d, e, f, g, h, sum @ ..] = header;
    let length = [a, b, c, d, e, f, g, h];
    (masked(&length) == u32::from_le_bytes(sum)).then(|| u64::from_le_bytes(length))
}

/// Reads the records of a file, one in memory at a time.
pub struct TfRecordReader {
    path: PathBuf,
    input: Box<dyn BufRead + Send>,
    read: Arc<AtomicU64>,
    record: Vec<u8>,
    number: u64,
}

impl std::fmt::Debug for TfRecordReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TfRecordReader").field("path", &self.path).field("number", &self.number).finish()
    }
}

impl TfRecordReader {
    /// Opens a file, which gzip may have compressed.
    ///
    /// # Errors
    /// [`crate::Error::Data`] if it is not a regular file, [`crate::Error::File`] if reading fails.
    pub fn open(path: &Path) -> Result<TfRecordReader> {
        let read = Arc::default();
        let input = open_decompressed(path, &read)?;
        Ok(TfRecordReader { path: path.to_owned(), input, read, record: Vec::new(), number: 0 })
    }

    /// Bytes of the file that were read, as they are stored.
    pub fn read_bytes(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next record; `None` at the end of the file.
    ///
    /// # Errors
    /// [`crate::Error::Data`] for a checksum that does not fit and a file that is cut off, with the number of the
    /// record; [`crate::Error::File`] if reading fails.
    pub fn advance(&mut self) -> Result<Option<&[u8]>> {
        let mut header = [0; HEADER];
        match self.fill(&mut header)? {
            0 => return Ok(None),
            HEADER => {}
            _ => return Err(self.wrong("the file is cut off in its length")),
        }
        let length = length_of(header).ok_or_else(|| self.wrong("the checksum of its length does not fit"))?;
        if length > MAX_RECORD_BYTES {
            return Err(self.wrong(&format!("{length} bytes, and the most is {MAX_RECORD_BYTES}")));
        }
        // Grows with what is read: the file may be shorter than the length.
        self.record.clear();
        let taken = (&mut self.input).take(length + 4).read_to_end(&mut self.record);
        taken.map_err(|error| file_error(&self.path, error))?;
        let Some((record, sum)) = self.record.split_last_chunk::<4>() else {
            return Err(self.wrong("the file is cut off"));
        };
        if record.len() as u64 != length {
            return Err(self.wrong(&format!("the file is cut off: {} of {length} bytes", record.len())));
        }
        if masked(record) != u32::from_le_bytes(*sum) {
            return Err(self.wrong("its checksum does not fit"));
        }
        self.number += 1;
        Ok(Some(&self.record[..length as usize]))
    }

    /// Fills the buffer as far as the file has bytes.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.input.read(&mut buffer[filled..]).map_err(|error| file_error(&self.path, error))? {
                0 => break,
                read => filled += read,
            }
        }
        Ok(filled)
    }

    /// The error for the present record.
    pub(crate) fn wrong(&self, reason: &str) -> crate::Error {
        corrupt(&self.path, format!("record {}: {reason}", self.number))
    }
}

/// Writes records to a file, which gets its name when it is whole.
#[derive(Debug)]
pub struct TfRecordWriter {
    file: AtomicFile,
    out: RecordOutput,
}

#[derive(Debug)]
enum RecordOutput {
    Plain(BufWriter<File>),
    Gzip(BufWriter<GzEncoder<File>>),
}

impl TfRecordWriter {
    /// Begins a file; gzip compresses it if its name ends in `.gz`.
    ///
    /// # Errors
    /// [`crate::Error::File`] if it cannot be made.
    pub fn create(path: &Path) -> Result<TfRecordWriter> {
        let file = AtomicFile::create(path)?;
        let out = file.file().try_clone().map_err(|error| file.refused(error))?;
        let out = match path.extension().is_some_and(|ending| ending == "gz") {
            true => RecordOutput::Gzip(BufWriter::with_capacity(1 << 18, GzEncoder::new(out, Compression::default()))),
            false => RecordOutput::Plain(BufWriter::with_capacity(1 << 18, out)),
        };
        Ok(TfRecordWriter { file, out })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for one of more than 1 GiB, [`crate::Error::File`] if writing fails.
    pub fn add(&mut self, record: &[u8]) -> Result<()> {
        if record.len() as u64 > MAX_RECORD_BYTES {
            let reason = format!("a record of {} bytes, and the most is {MAX_RECORD_BYTES}", record.len());
            return Err(crate::Error::argument("record", reason, "split the document"));
        }
        let out: &mut dyn Write = match &mut self.out {
            RecordOutput::Plain(out) => out,
            RecordOutput::Gzip(out) => out,
        };
        write_framed(out, record).map_err(|error| self.file.refused(error))
    }

    /// Completes the file.
    ///
    /// # Errors
    /// [`crate::Error::File`] if writing fails.
    pub fn finish(self) -> Result<()> {
        let flushed = match self.out {
            RecordOutput::Plain(mut out) => out.flush(),
            RecordOutput::Gzip(out) => {
                out.into_inner().map_err(std::io::IntoInnerError::into_error).and_then(|gzip| gzip.finish().map(drop))
            }
        };
        flushed.map_err(|error| self.file.refused(error))?;
        self.file.commit()
    }
}
