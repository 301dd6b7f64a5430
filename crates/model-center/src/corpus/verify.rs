//! Everything that a token file claims, compared with what it holds.
//!
//! Defines [`verify`]. The program `corpus` is the caller.

use std::path::Path;

use super::token_file::TokenFile;
use crate::Result;

/// Entries and ids are read in pieces of this many.
const PIECE: u64 = 1 << 16;

/// What a token file was found to hold.
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

/// Reads a token file whole: every entry of its index and every id.
///
/// # Errors
/// As [`TokenFile::open`]; [`crate::Error::Data`] for sequences that overlap or leave ids out, boundaries out of order,
/// and an id that is not below `vocabulary`.
pub fn verify(prefix: &Path, vocabulary: Option<u64>) -> Result<FileReport> {
    let file = TokenFile::open(prefix)?;
    let mut report = FileReport {
        sequences: file.sequences(),
        documents: file.documents(),
        tokens: file.tokens(),
        ..Default::default()
    };
    check_sequences(&file, &mut report)?;
    check_documents(&file)?;
    check_ids(&file, vocabulary, &mut report)?;
    Ok(report)
}

fn check_sequences(file: &TokenFile, report: &mut FileReport) -> Result<()> {
    let mut end = 0;
    for number in 0..file.sequences() {
        let range = file.sequence(number)?;
        if range.start != end {
            let reason = format!("sequence {number} starts with id {}, and the one before ends at {end}", range.start);
            return Err(file.corrupt(reason));
        }
        end = range.end;
        report.empty += u64::from(range.is_empty());
        report.longest = report.longest.max(range.end - range.start);
    }
    Ok(())
}

fn check_documents(file: &TokenFile) -> Result<()> {
    if file.documents() == 0 && file.sequences() > 0 {
        return Err(file.corrupt("the sequences are in no document"));
    }
    let mut before = 0;
    for number in 0..file.documents() {
        let next = file.boundary(number + 1)?;
        if next < before || next > file.sequences() {
            return Err(file.corrupt(format!("document {number} is sequences {before} to {next}")));
        }
        before = next;
    }
    Ok(())
}

fn check_ids(file: &TokenFile, vocabulary: Option<u64>, report: &mut FileReport) -> Result<()> {
    let mut ids = vec![0; PIECE.min(file.tokens()) as usize];
    let mut first = 0;
    while first < file.tokens() {
        let piece = &mut ids[..PIECE.min(file.tokens() - first) as usize];
        file.read_ids(first, piece)?;
        let above = |id: &u32| vocabulary.is_some_and(|vocabulary| u64::from(*id) >= vocabulary);
        if let Some(at) = piece.iter().position(above) {
            let reason = format!(
                "id {} of the file is {}, and the vocabulary has {} tokens",
                first + at as u64,
                piece[at],
                vocabulary.unwrap_or_default()
            );
            return Err(crate::Error::data(
                super::token_path(file.prefix()).display().to_string(),
                reason,
                "use the tokenizer that the corpus was built with",
            ));
        }
        report.largest_id = report.largest_id.max(piece.iter().copied().max());
        first += piece.len() as u64;
    }
    Ok(())
}
