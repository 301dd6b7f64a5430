//! Reading a token file from its beginning to its end, by pieces.
//!
//! Adds to [`TokenFile`] what checks and copies whole files. Called by `verify` and `writer`.

use std::ops::Range;

use super::{IndexFormat, TokenFile};
use crate::Result;

/// Entries of the index are read in pieces of this many.
const ENTRIES: u64 = 1 << 14;
/// Ids are copied in pieces of this many bytes.
const COPIED: u64 = 1 << 20;

impl TokenFile {
    /// Where consecutive sequences from `first` on are among the ids of the file, as [`TokenFile::sequence`].
    ///
    /// # Errors
    /// As [`TokenFile::sequence`].
    pub fn ranges(&self, first: u64, ranges: &mut [Range<u64>]) -> Result<()> {
        let Some(last) = (ranges.len() as u64).checked_sub(1) else { return Ok(()) };
        self.require("sequence", first.saturating_add(last), self.layout.sequences)?;
        let starts = self.u64s(self.layout.starts + 8 * first, ranges.len() + usize::from(self.is_legacy()))?;
        let mut lengths = vec![0; if self.is_legacy() { 0 } else { ranges.len() }];
        self.lengths(first, &mut lengths)?;
        for (at, range) in ranges.iter_mut().enumerate() {
            let sequence = first + at as u64;
            *range = match lengths.get(at) {
                Some(length) => {
                    let start = self.start_of(sequence, starts[at])?;
                    start..start.saturating_add(u64::from(*length))
                }
                None => starts[at]..starts[at + 1],
            };
            self.require_inside(sequence, range)?;
        }
        Ok(())
    }

    fn u64s(&self, offset: u64, count: usize) -> Result<Vec<u64>> {
        let mut bytes = vec![0; 8 * count];
        self.index.read_at(offset, &mut bytes)?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|stored| u64::from_le_bytes(*stored)).collect())
    }

    fn is_legacy(&self) -> bool {
        self.layout.format == IndexFormat::Legacy
    }

    /// Calls `each` with the stored ids of the whole file, by pieces.
    pub(in super::super) fn copy_data(&self, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut buffer = vec![0; self.data.length().min(COPIED) as usize];
        let mut at = 0;
        while at < self.data.length() {
            let part = &mut buffer[..(self.data.length() - at).min(COPIED) as usize];
            self.data.read_at(at, part)?;
            each(part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Calls `each` with where all sequences are, in their order, by pieces.
    ///
    /// # Errors
    /// The errors of `each`; [`crate::Error::Data`] for sequences that overlap or leave ids out.
    pub fn contiguous(&self, mut each: impl FnMut(&[Range<u64>]) -> Result<()>) -> Result<()> {
        let (mut first, mut end) = (0, 0);
        let mut ranges = Vec::new();
        while first < self.sequences() {
            ranges.resize((self.sequences() - first).min(ENTRIES) as usize, 0..0);
            self.ranges(first, &mut ranges)?;
            for (at, range) in ranges.iter().enumerate() {
                if range.start != end {
                    let (number, start) = (first + at as u64, range.start);
                    let reason = format!("sequence {number} starts with id {start}, and the one before ends at {end}");
                    return Err(self.corrupt(reason));
                }
                end = range.end;
            }
            each(&ranges)?;
            first += ranges.len() as u64;
        }
        Ok(())
    }

    /// Calls `each` with the end of each document, a number of sequences, by pieces.
    ///
    /// # Errors
    /// The errors of `each`; [`crate::Error::Data`] for boundaries out of order.
    pub fn ordered(&self, mut each: impl FnMut(&[u64]) -> Result<()>) -> Result<()> {
        let (mut first, mut before) = (0, 0);
        while first < self.documents() {
            let count = (self.documents() - first).min(ENTRIES) as usize;
            let ends = self.u64s(self.layout.documents + 8 * (first + 1), count)?;
            for (at, end) in ends.iter().enumerate() {
                if *end < before || *end > self.sequences() {
                    let number = first + at as u64;
                    return Err(self.corrupt(format!("document {number} is sequences {before} to {end}")));
                }
                before = *end;
            }
            each(&ends)?;
            first += count as u64;
        }
        Ok(())
    }
}
