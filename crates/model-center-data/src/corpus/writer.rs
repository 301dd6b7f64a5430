//! Writing a token file.
//!
//! Defines [`TokenFileWriter`]. Data, lengths and document boundaries are written as they come, under hidden names
//! beside the target, so that memory stays constant; the index is completed at the end and is the last to get its name.
//! A writer that ended early goes on from a [`WriterPosition`]. Called by the builder of token files and by programs.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::index::{HEADER, MAGIC};
use super::spool::{BUFFER, Spool, refused};
use super::token_file::TokenFile;
use super::token_type::TokenType;
use crate::{Error, Result};
use model_center_base::file::OpenDirectory;

/// The file of token ids that belongs to a prefix: `PREFIX.bin`.
pub fn token_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".bin")
}

/// The index that belongs to a prefix: `PREFIX.idx`.
pub fn index_path(prefix: &Path) -> PathBuf {
    with_suffix(prefix, ".idx")
}

/// A path with more at its end.
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// The prefix of a prefix or of a file of the pair.
pub fn prefix_of(path: &Path) -> PathBuf {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("bin" | "idx") => path.with_extension(""),
        _ => path.to_owned(),
    }
}

/// A hidden neighbour of the files of a prefix.
pub fn hidden(prefix: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(prefix.file_name().unwrap_or_default());
    name.push(suffix);
    prefix.with_file_name(name)
}

/// How much is written: all that a writer needs to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriterPosition {
    /// Sequences.
    pub sequences: u64,
    /// Token ids.
    pub tokens: u64,
    /// Documents.
    pub documents: u64,
}

/// Writes `PREFIX.bin` and `PREFIX.idx`, byte for byte as Megatron-LM's builder does.
///
/// Neither is there before [`TokenFileWriter::finish`]. A writer that is dropped leaves its hidden files for
/// [`TokenFileWriter::resume`]; the next one of the prefix replaces them.
#[derive(Debug)]
pub struct TokenFileWriter {
    prefix: PathBuf,
    token: TokenType,
    data: Spool,
    /// The index, whose lengths follow room for the header.
    index: Spool,
    boundaries: Spool,
    position: WriterPosition,
    bytes: Vec<u8>,
}

impl TokenFileWriter {
    /// Begins a token file.
    ///
    /// # Errors
    /// [`Error::Argument`] if the prefix has no file name or an index is there; [`Error::File`] if the files cannot be
    /// made or another process is writing them.
    pub fn create(prefix: &Path, token: TokenType) -> Result<TokenFileWriter> {
        let begun = Self::open(prefix, token, WriterPosition::default())?;
        let mut begun = begun.ok_or_else(|| Error::argument("prefix", "an empty file is too short", "report this"))?;
        begun.index.write(&[0; HEADER as usize])?;
        begun.boundaries.write(&0_u64.to_le_bytes())?;
        Ok(begun)
    }

    /// Goes on after `position`, which [`TokenFileWriter::sync`] returned to an earlier writer of this prefix and type.
    /// `None` if its files are not there any more, or it had written nothing.
    ///
    /// # Errors
    /// As [`TokenFileWriter::create`].
    pub fn resume(prefix: &Path, token: TokenType, position: WriterPosition) -> Result<Option<TokenFileWriter>> {
        if position == WriterPosition::default() || !hidden(prefix, ".bin.partial").exists() {
            return Ok(None);
        }
        Self::open(prefix, token, position)
    }

    fn open(prefix: &Path, token: TokenType, position: WriterPosition) -> Result<Option<TokenFileWriter>> {
        let index = index_path(prefix);
        if prefix.file_name().is_none() {
            let reason = format!("\"{}\" has no file name", prefix.display());
            return Err(Error::argument("prefix", reason, "give a directory and the first part of a file name"));
        }
        if index.symlink_metadata().is_ok() {
            let reason = format!("{} is there already", index.display());
            return Err(Error::argument("prefix", reason, "choose another prefix, or remove the file"));
        }
        let is_new = position == WriterPosition::default();
        let (lengths, ends) =
            if is_new { (0, 0) } else { (HEADER + 4 * position.sequences, 8 * (position.documents + 1)) };
        let mut data = Spool::open(hidden(prefix, ".bin.partial"))?;
        // Before anything is cut: the files may be another process's.
        lock(&data, prefix)?;
        let mut index = Spool::open(hidden(prefix, ".idx.partial"))?;
        let mut boundaries = Spool::open(hidden(prefix, ".documents.partial"))?;
        if !(data.cut(token.bytes() * position.tokens)? && index.cut(lengths)? && boundaries.cut(ends)?) {
            return Ok(None);
        }
        let prefix = prefix.to_owned();
        Ok(Some(TokenFileWriter { prefix, token, data, index, boundaries, position, bytes: Vec::new() }))
    }

    /// Appends a sequence to the document that is being written.
    ///
    /// # Errors
    /// [`Error::Argument`] for an id that the type cannot hold and for more than 2^31 - 1 ids; [`Error::File`] if
    /// writing fails.
    pub fn add_sequence(&mut self, ids: &[u32]) -> Result<()> {
        let length = sequence_length(ids.len() as u64)?;
        self.bytes.clear();
        self.token.encode(ids, &mut self.bytes)?;
        self.data.write(&self.bytes)?;
        self.index.write(&length.to_le_bytes())?;
        self.position.sequences += 1;
        self.position.tokens += ids.len() as u64;
        Ok(())
    }

    /// Ends a document.
    ///
    /// # Errors
    /// [`Error::File`] if writing fails.
    pub fn end_document(&mut self) -> Result<()> {
        self.boundaries.write(&self.position.sequences.to_le_bytes())?;
        self.position.documents += 1;
        Ok(())
    }

    /// Appends a whole token file with ids of the writer's type; `read` is called with the bytes of each piece.
    pub fn append(&mut self, file: &TokenFile, read: &mut dyn FnMut(u64)) -> Result<()> {
        file.copy_data(|bytes| {
            read(bytes.len() as u64);
            self.data.write(bytes)
        })?;
        let mut lengths = Vec::new();
        file.contiguous(|ranges| {
            lengths.clear();
            for range in ranges {
                lengths.extend(sequence_length(range.end - range.start)?.to_le_bytes());
            }
            read(12 * ranges.len() as u64);
            self.index.write(&lengths)
        })?;
        let first = self.position.sequences;
        file.ordered(|ends| {
            read(8 * ends.len() as u64);
            let ends: Vec<u8> = ends.iter().flat_map(|end| (first + end).to_le_bytes()).collect();
            self.boundaries.write(&ends)
        })?;
        self.position.sequences += file.sequences();
        self.position.tokens += file.tokens();
        self.position.documents += file.documents();
        Ok(())
    }

    /// How much is written.
    pub fn position(&self) -> WriterPosition {
        self.position
    }

    /// Flushes to the disk; what [`TokenFileWriter::resume`] goes on from after the process ended.
    ///
    /// # Errors
    /// [`Error::File`] if writing fails.
    pub fn sync(&mut self) -> Result<WriterPosition> {
        for spool in [&mut self.data, &mut self.index, &mut self.boundaries] {
            spool.sync()?;
        }
        Ok(self.position)
    }

    /// Completes the index and gives both files their names.
    ///
    /// # Errors
    /// [`Error::File`] if writing fails.
    pub fn finish(mut self) -> Result<WriterPosition> {
        self.sync()?;
        self.append_starts()?;
        self.append_boundaries()?;
        self.write_header()?;
        self.index.sync()?;
        let (data, index) = (token_path(&self.prefix), index_path(&self.prefix));
        let directory = OpenDirectory::of(&index)?;
        fs::rename(&self.data.path, &data).map_err(|e| refused(&data, e))?;
        // The index is what makes a token file whole, so it gets its name last.
        fs::rename(&self.index.path, &index).map_err(|e| refused(&index, e))?;
        fs::remove_file(&self.boundaries.path).map_err(|e| refused(&self.boundaries.path, e))?;
        directory.sync()?;
        Ok(self.position)
    }

    /// Where each sequence starts follows from the lengths.
    fn append_starts(&mut self) -> Result<()> {
        let path = self.index.path.clone();
        let failed = |e| refused(&path, e);
        let mut lengths = File::open(&path).map_err(failed)?;
        lengths.seek(SeekFrom::Start(HEADER)).map_err(failed)?;
        let mut lengths = lengths.take(4 * self.position.sequences);
        let (mut start, mut buffer) = (0_u64, vec![0; BUFFER]);
        loop {
            let read = read_full(&mut lengths, &mut buffer).map_err(failed)?;
            if read == 0 {
                return Ok(());
            }
            for length in buffer[..read].as_chunks::<4>().0 {
                self.index.write(&start.to_le_bytes())?;
                start += u64::from(u32::from_le_bytes(*length)) * self.token.bytes();
            }
        }
    }

    fn append_boundaries(&mut self) -> Result<()> {
        let path = &self.boundaries.path;
        let mut boundaries = File::open(path).map_err(|e| refused(path, e))?;
        std::io::copy(&mut boundaries, &mut self.index.file).map_err(|e| refused(&self.index.path, e))?;
        Ok(())
    }

    fn write_header(&mut self) -> Result<()> {
        let mut header = MAGIC.to_vec();
        header.extend(1_u64.to_le_bytes());
        header.push(self.token.code());
        header.extend(self.position.sequences.to_le_bytes());
        header.extend((self.position.documents + 1).to_le_bytes());
        let file = &mut self.index.file;
        let written = file.flush().and_then(|()| file.seek(SeekFrom::Start(0))).and_then(|_| file.write_all(&header));
        written.map_err(|e| refused(&self.index.path, e))
    }
}

/// The stored length of a sequence.
fn sequence_length(ids: u64) -> Result<i32> {
    i32::try_from(ids).map_err(|_| {
        let reason = format!("a sequence of {ids} ids; the format has at most 2^31 - 1");
        Error::argument("sequence", reason, "split the document")
    })
}

/// One writer of a prefix at a time.
fn lock(data: &Spool, prefix: &Path) -> Result<()> {
    if data.lock() {
        return Ok(());
    }
    let reason = format!("another process is writing {}", prefix.display());
    Err(Error::argument("prefix", reason, "wait for it, or choose another prefix"))
}

/// Fills the buffer as far as the reader has bytes.
fn read_full(reader: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match reader.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
