//! Token files as documents.

use std::path::Path;

use super::{DocumentPart, DocumentWriter, StatedCounts, TokenDocuments};
use crate::{Error, Result};
use model_center_data::corpus::token_file::TokenFile;
use model_center_data::corpus::writer::TokenFileWriter;

/// The documents of a token file.
#[derive(Debug)]
pub(super) struct FileDocuments {
    file: TokenFile,
    document: u64,
    sequence: u64,
    /// The end of the present document, `None` before it is begun.
    end: Option<u64>,
}

impl FileDocuments {
    pub(super) fn open(path: &Path) -> Result<FileDocuments> {
        Ok(FileDocuments { file: TokenFile::open(path)?, document: 0, sequence: 0, end: None })
    }
}

impl TokenDocuments for FileDocuments {
    fn advance(&mut self, ids: &mut Vec<u32>) -> Result<Option<DocumentPart>> {
        let end = match self.end {
            Some(end) => end,
            None if self.document == self.file.documents() => return Ok(None),
            None => {
                let range = self.file.document(self.document)?;
                self.sequence = range.start;
                range.end
            }
        };
        self.end = Some(end);
        if self.sequence == end {
            self.end = None;
            self.document += 1;
            return Ok(Some(DocumentPart::End));
        }
        read_whole(&self.file, self.sequence, ids)?;
        self.sequence += 1;
        Ok(Some(DocumentPart::Sequence))
    }

    fn total_bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn stated(&self) -> StatedCounts {
        StatedCounts { documents: Some(self.file.documents()), tokens: Some(self.file.tokens()) }
    }

    fn read_bytes(&self) -> u64 {
        // Sequences have about the same length.
        let share = self.sequence as f64 / self.file.sequences().max(1) as f64;
        (self.file.bytes() as f64 * share) as u64
    }
}

/// Puts a whole sequence into `ids`.
pub(super) fn read_whole(file: &TokenFile, sequence: u64, ids: &mut Vec<u32>) -> Result<()> {
    let range = file.sequence(sequence)?;
    let count = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    ids.clear();
    ids.try_reserve(count).map_err(|_| {
        let reason = format!("no memory for the {count} ids of sequence {sequence}");
        Error::data(file.prefix().display().to_string(), reason, "split the document")
    })?;
    ids.resize(count, 0);
    file.read_ids(range.start, ids)
}

impl DocumentWriter for TokenFileWriter {
    fn add_sequence(&mut self, ids: &[u32]) -> Result<()> {
        TokenFileWriter::add_sequence(self, ids)
    }

    fn end_document(&mut self) -> Result<()> {
        TokenFileWriter::end_document(self)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        TokenFileWriter::finish(*self).map(drop)
    }
}
