//! Reading a token file.
//!
//! Defines [`TokenFile`], which reads sequences of token ids by number, from either format of index; `scan` reads files
//! whole. Called by [`super::samples`], the check of token files and programs.

mod scan;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::index::Layout;
use super::positioned::PositionedFile;
use super::token_type::TokenType;
use super::writer::{index_path, prefix_of, token_path};
use crate::{Error, Result};

/// Ids are decoded by way of a buffer of this many bytes.
const BUFFER: usize = 1 << 16;

/// Which format of index a token file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexFormat {
    /// Megatron-LM's `MMIDIDX`, which is written, too.
    Mmap,
    /// `TNTIDX`, its format before that.
    Legacy,
}

impl IndexFormat {
    /// First bytes of the index file.
    pub const fn name(self) -> &'static str {
        match self {
            IndexFormat::Mmap => "MMIDIDX",
            IndexFormat::Legacy => "TNTIDX",
        }
    }
}

/// The token ids of a corpus: `PREFIX.bin` with its index `PREFIX.idx`.
///
/// Sequences are numbered from 0; a document is one or more of them, as where sentences are sequences. Memory does not
/// depend on the size of the file, and all methods may be called from several threads.
#[derive(Debug)]
pub struct TokenFile {
    prefix: PathBuf,
    index: PositionedFile,
    data: PositionedFile,
    layout: Layout,
}

impl TokenFile {
    /// Opens both files by their common prefix, or by the name of either.
    ///
    /// Header, counts and both lengths are compared here, and each entry when it is used; `bmtrain_corpus::verify`
    /// compares all of them.
    ///
    /// # Errors
    /// [`Error::Data`] for a file that is missing, cut off, of another kind, or not the other's; [`Error::File`] if
    /// reading fails.
    pub fn open(prefix: impl AsRef<Path>) -> Result<TokenFile> {
        let prefix = prefix_of(prefix.as_ref());
        let index = PositionedFile::open(&index_path(&prefix))?;
        let layout = Layout::read(&index)?;
        let data = PositionedFile::open(&token_path(&prefix))?;
        let file = TokenFile { prefix, index, data, layout };
        file.check_ends()?;
        Ok(file)
    }

    /// The last sequence ends where the data end, and the documents begin and end with the sequences.
    fn check_ends(&self) -> Result<()> {
        let (length, bytes) = (self.data.length(), self.layout.token.bytes());
        let end = match self.layout.sequences.checked_sub(1) {
            Some(last) => self.described(last)?.end.checked_mul(bytes),
            None => Some(0),
        };
        if end != Some(length) {
            let end = end.map_or("more".into(), |end| end.to_string());
            let reason = format!("the file has {length} bytes, and its index describes {end}");
            return Err(self.data.corrupt(reason));
        }
        let Some(last) = self.layout.boundaries.checked_sub(1) else { return Ok(()) };
        let (first, end) = (self.boundary(0)?, self.boundary(last)?);
        if (first, end) != (0, self.layout.sequences) {
            let sequences = self.layout.sequences;
            let reason = format!("the documents are sequences {first} to {end}, and the file has 0 to {sequences}");
            return Err(self.index.corrupt(reason));
        }
        Ok(())
    }

    /// The path without `.bin` and `.idx`.
    pub fn prefix(&self) -> &Path {
        &self.prefix
    }

    /// The path of the index.
    pub fn index_path(&self) -> &Path {
        self.index.path()
    }

    /// The format of the index.
    pub fn format(&self) -> IndexFormat {
        self.layout.format
    }

    /// How ids are stored.
    pub fn token_type(&self) -> TokenType {
        self.layout.token
    }

    /// Number of sequences.
    pub fn sequences(&self) -> u64 {
        self.layout.sequences
    }

    /// Number of documents.
    pub fn documents(&self) -> u64 {
        self.layout.boundaries.saturating_sub(1)
    }

    /// Number of token ids.
    pub fn tokens(&self) -> u64 {
        self.data.length() / self.layout.token.bytes()
    }

    /// Bytes of both files.
    pub fn bytes(&self) -> u64 {
        self.data.length() + self.index.length()
    }

    /// The sequences of a document.
    ///
    /// # Errors
    /// [`Error::Argument`] beyond the last document, [`Error::Data`] for boundaries out of order.
    pub fn document(&self, document: u64) -> Result<Range<u64>> {
        self.require("document", document, self.documents())?;
        let range = self.boundary(document)?..self.boundary(document + 1)?;
        if range.start > range.end || range.end > self.layout.sequences {
            let reason = format!("document {document} is sequences {} to {}", range.start, range.end);
            return Err(self.index.corrupt(reason));
        }
        Ok(range)
    }

    /// Tokens of a document, in all its sequences.
    ///
    /// # Errors
    /// As [`TokenFile::document`] and [`TokenFile::sequence`].
    pub fn document_tokens(&self, document: u64) -> Result<u64> {
        self.document(document)?.try_fold(0_u64, |tokens, sequence| {
            let range = self.sequence(sequence)?;
            Ok(tokens.saturating_add(range.end - range.start))
        })
    }

    /// Where a sequence is among the ids of the file.
    ///
    /// # Errors
    /// [`Error::Argument`] beyond the last sequence, [`Error::Data`] if the index places it outside the file.
    pub fn sequence(&self, sequence: u64) -> Result<Range<u64>> {
        self.require("sequence", sequence, self.layout.sequences)?;
        let range = self.described(sequence)?;
        self.require_inside(sequence, &range)?;
        Ok(range)
    }

    fn require_inside(&self, sequence: u64, range: &Range<u64>) -> Result<()> {
        if range.start > range.end || range.end > self.tokens() {
            let reason = format!(
                "sequence {sequence} is ids {} to {}, and {} has {}",
                range.start,
                range.end,
                self.data.path().display(),
                self.tokens()
            );
            return Err(self.index.corrupt(reason));
        }
        Ok(())
    }

    /// Where the index places a sequence that it has.
    fn described(&self, sequence: u64) -> Result<Range<u64>> {
        Ok(match self.layout.format {
            IndexFormat::Mmap => {
                let mut length = [0; 4];
                self.index.read_at(self.layout.lengths + 4 * sequence, &mut length)?;
                let length = self.length_of(sequence, i32::from_le_bytes(length))?;
                let start = self.start_of(sequence, self.index.u64_at(self.layout.starts + 8 * sequence)?)?;
                start..start.saturating_add(u64::from(length))
            }
            IndexFormat::Legacy => {
                let at = self.layout.starts + 8 * sequence;
                self.index.u64_at(at)?..self.index.u64_at(at + 8)?
            }
        })
    }

    /// The lengths of consecutive sequences from `first` on, in ids.
    ///
    /// # Errors
    /// [`Error::Argument`] beyond the last sequence, [`Error::Data`] for a length that is negative, above 2^31 - 1 or
    /// above the number of ids of the file.
    pub fn lengths(&self, first: u64, lengths: &mut [u32]) -> Result<()> {
        let Some(last) = (lengths.len() as u64).checked_sub(1) else { return Ok(()) };
        self.require("sequence", first.saturating_add(last), self.layout.sequences)?;
        match self.layout.format {
            IndexFormat::Mmap => {
                let mut bytes = vec![0; 4 * lengths.len()];
                self.index.read_at(self.layout.lengths + 4 * first, &mut bytes)?;
                for (at, (stored, length)) in bytes.as_chunks::<4>().0.iter().zip(lengths).enumerate() {
                    *length = self.length_of(first + at as u64, i32::from_le_bytes(*stored))?;
                    self.require_tokens(format_args!("sequence {} has", first + at as u64), u64::from(*length))?;
                }
            }
            IndexFormat::Legacy => {
                let mut ranges = vec![0..0; lengths.len()];
                self.ranges(first, &mut ranges)?;
                for ((at, range), length) in ranges.iter().enumerate().zip(lengths) {
                    let count = i32::try_from(range.end - range.start);
                    *length = count.map(i32::cast_unsigned).map_err(|_| {
                        self.index.corrupt(format!("sequence {} has more than 2^31 - 1 ids", first + at as u64))
                    })?;
                }
            }
        }
        Ok(())
    }

    /// The ids of a sequence from `offset` in it on.
    ///
    /// # Errors
    /// As [`TokenFile::sequence`]; [`Error::Argument`] beyond the end of the sequence; [`Error::Data`] for a stored
    /// value that is negative or above 2^32 - 1.
    pub fn read(&self, sequence: u64, offset: u64, ids: &mut [u32]) -> Result<()> {
        let range = self.sequence(sequence)?;
        if offset.saturating_add(ids.len() as u64) > range.end - range.start {
            let reason = format!(
                "ids {offset} to {} of sequence {sequence}, which has {}",
                offset.saturating_add(ids.len() as u64),
                range.end - range.start
            );
            return Err(Error::argument("offset", reason, "ask for ids that the sequence has"));
        }
        self.read_ids(range.start + offset, ids)
    }

    /// The ids of the file from `first` on, whatever their sequence.
    ///
    /// # Errors
    /// As [`TokenFile::read`].
    pub fn read_ids(&self, first: u64, ids: &mut [u32]) -> Result<()> {
        let token = self.layout.token;
        let size = token.bytes() as usize;
        let mut buffer = vec![0; (ids.len() * size).min(BUFFER)];
        let mut at = first;
        for part in ids.chunks_mut(BUFFER / size) {
            let bytes = &mut buffer[..part.len() * size];
            let offset = at.checked_mul(size as u64).ok_or_else(|| self.data.corrupt("offsets beyond 64 bits"))?;
            self.data.read_at(offset, bytes)?;
            token.decode(bytes, part).map_err(|(index, value)| {
                self.data.corrupt(format!("id {} of the file is {value}, no token id", at + index as u64))
            })?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Entry `at` of the document boundaries.
    pub(super) fn boundary(&self, at: u64) -> Result<u64> {
        self.index.u64_at(self.layout.documents + 8 * at)
    }

    /// The first id of a sequence that starts at byte `start`.
    fn start_of(&self, sequence: u64, start: u64) -> Result<u64> {
        let bytes = self.layout.token.bytes();
        if !start.is_multiple_of(bytes) {
            let reason = format!("sequence {sequence} starts at byte {start}, between ids of {bytes} bytes");
            return Err(self.index.corrupt(reason));
        }
        Ok(start / bytes)
    }

    /// That the file has as many ids as the index describes by `what`.
    pub(super) fn require_tokens(&self, what: fmt::Arguments<'_>, ids: u64) -> Result<()> {
        if ids <= self.tokens() {
            return Ok(());
        }
        let (data, tokens) = (self.data.path().display(), self.tokens());
        Err(self.index.corrupt(format!("{what} {ids} ids, and {data} has {tokens}")))
    }

    fn length_of(&self, sequence: u64, stored: i32) -> Result<u32> {
        u32::try_from(stored).map_err(|_| self.index.corrupt(format!("sequence {sequence} has {stored} ids")))
    }

    fn require(&self, what: &str, number: u64, count: u64) -> Result<()> {
        if number < count {
            return Ok(());
        }
        let reason = format!("{} has {count} {what}s, numbered from 0", self.prefix.display());
        Err(Error::argument(format!("{what} {number}"), reason, format!("ask for a {what} that is there")))
    }

    /// The error for an index that contradicts itself.
    pub fn corrupt(&self, reason: impl Into<String>) -> Error {
        self.index.corrupt(reason)
    }
}
