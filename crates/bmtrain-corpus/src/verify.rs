//! Everything that a token file claims, compared with what it holds.
//!
//! Defines [`verify`]. The program `corpus` is the caller.

use std::path::Path;

use crate::{Error, Result};
use model_center_data::corpus::token_file::TokenFile;

/// Entries and ids are read in pieces of this many.
const PIECE: u64 = 1 << 16;

/// Contents of a token file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileReport {
    /// Sequences.
    pub sequences: u64,
    /// Documents.
    pub documents: u64,
    /// Token ids.
    pub tokens: u64,
    /// Sequences without ids.
    pub empty: u64,
    /// Ids of the longest sequence.
    pub longest: u64,
    /// The largest id, `None` without ids.
    pub largest_id: Option<u32>,
}

/// Progress of a check: bytes read, and bytes in all.
pub type ShowChecked<'a> = dyn FnMut(u64, u64) + 'a;

/// Reads a token file whole: every entry of its index and every id.
///
/// # Errors
/// As [`TokenFile::open`]; [`crate::Error::Data`] for sequences that overlap or leave ids out, boundaries out of order,
/// and an id that is not below `vocabulary`.
pub fn verify(prefix: &Path, vocabulary: Option<u64>) -> Result<FileReport> {
    verify_showing(prefix, vocabulary, &mut |_, _| {})
}

/// [`verify`], which calls `show` after each piece that it has read.
///
/// # Errors
/// As [`verify`].
pub fn verify_showing(prefix: &Path, vocabulary: Option<u64>, show: &mut ShowChecked<'_>) -> Result<FileReport> {
    let file = TokenFile::open(prefix)?;
    let mut report = FileReport {
        sequences: file.sequences(),
        documents: file.documents(),
        tokens: file.tokens(),
        ..Default::default()
    };
    let (mut read, all) = (0, file.bytes());
    let mut show = |bytes: u64| {
        read += bytes;
        show(read.min(all), all);
    };
    check_sequences(&file, &mut report, &mut show)?;
    check_documents(&file, &mut show)?;
    check_ids(&file, vocabulary, &mut report, &mut show)?;
    Ok(report)
}

fn check_sequences(file: &TokenFile, report: &mut FileReport, show: &mut dyn FnMut(u64)) -> Result<()> {
    file.contiguous(|ranges| {
        for range in ranges {
            report.empty += u64::from(range.is_empty());
            report.longest = report.longest.max(range.end - range.start);
        }
        show(12 * ranges.len() as u64);
        Ok(())
    })
}

fn check_documents(file: &TokenFile, show: &mut dyn FnMut(u64)) -> Result<()> {
    if file.documents() == 0 && file.sequences() > 0 {
        return Err(file.corrupt("the sequences are in no document"));
    }
    file.ordered(|boundaries| {
        show(8 * boundaries.len() as u64);
        Ok(())
    })
}

fn check_ids(
    file: &TokenFile,
    vocabulary: Option<u64>,
    report: &mut FileReport,
    show: &mut dyn FnMut(u64),
) -> Result<()> {
    let mut ids = vec![0; PIECE.min(file.tokens()) as usize];
    let mut first = 0;
    while first < file.tokens() {
        let piece = &mut ids[..PIECE.min(file.tokens() - first) as usize];
        file.read_ids(first, piece)?;
        if let Some(reason) = beyond(piece, first, vocabulary) {
            return Err(foreign_id(&model_center_data::corpus::token_path(file.prefix()), reason));
        }
        report.largest_id = report.largest_id.max(piece.iter().copied().max());
        first += piece.len() as u64;
        show(piece.len() as u64 * file.token_type().bytes());
    }
    Ok(())
}

/// Why consecutive ids of a file, from number `first` on, are not of a vocabulary.
pub(super) fn beyond(ids: &[u32], first: u64, vocabulary: Option<u64>) -> Option<String> {
    let vocabulary = vocabulary?;
    let at = ids.iter().position(|id| u64::from(*id) >= vocabulary)?;
    Some(format!("id {} of the file is {}, and the vocabulary has {vocabulary} tokens", first + at as u64, ids[at]))
}

/// The error for ids that are not of a vocabulary.
pub(super) fn foreign_id(path: &Path, reason: String) -> Error {
    Error::data(path.display().to_string(), reason, "use the tokenizer that the corpus was built with")
}
