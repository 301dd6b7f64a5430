//! CPM-2's masked documents: three token files with a common prefix.
//!
//! `PREFIX_context` has each document with its masked spans replaced by placeholders, the ids from the size of the
//! vocabulary on; `PREFIX_target` has the spans, each after its placeholder; `PREFIX_target_offset` has for span k of a
//! document where it begins in the target, as number 2k, and its length with the placeholder, as number 2k + 1. In
//! `uint16` the places of long documents wrap at 65,536, so spans are found by their lengths, and the places compared.
//! Defines [`SpanDocuments`], which puts the spans back.

use std::path::Path;

use super::token_documents::read_whole;
use super::{DocumentPart, StatedCounts, TokenDocuments};
use crate::{Error, Result};
use model_center_data::corpus::token_file::TokenFile;
use model_center_data::corpus::writer::with_suffix;

/// Suffix of the documents with placeholders.
pub(super) const CONTEXT: &str = "_context";

/// The documents as they were before spans were masked; a sequence of the files is a document.
#[derive(Debug)]
pub(super) struct SpanDocuments {
    context: TokenFile,
    target: TokenFile,
    offsets: TokenFile,
    first_placeholder: u32,
    next: u64,
    in_document: bool,
    buffers: [Vec<u32>; 3],
}

impl SpanDocuments {
    pub(super) fn open(prefix: &Path, first_placeholder: u32) -> Result<SpanDocuments> {
        let open = |suffix: &str| TokenFile::open(with_suffix(prefix, suffix));
        let (context, target, offsets) = (open(CONTEXT)?, open("_target")?, open("_target_offset")?);
        for other in [&target, &offsets] {
            if other.sequences() != context.sequences() {
                let (has, needed) = (other.sequences(), context.sequences());
                return Err(other.corrupt(format!("{has} sequences, and the context has {needed}")));
            }
        }
        let (next, in_document, buffers) = (0, false, Default::default());
        Ok(SpanDocuments { context, target, offsets, first_placeholder, next, in_document, buffers })
    }

    /// Puts the spans of document `next` back.
    fn restore(&mut self, ids: &mut Vec<u32>) -> Result<()> {
        let [context, target, offsets] = &mut self.buffers;
        read_whole(&self.context, self.next, context)?;
        read_whole(&self.target, self.next, target)?;
        read_whole(&self.offsets, self.next, offsets)?;
        let wrong = |file: &TokenFile, reason: String| {
            let place = format!("{}, sequence {}", file.prefix().display(), self.next);
            Error::data(place, reason, "check --first-placeholder, and that the three files were written together")
        };
        let (pairs, rest) = offsets.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(wrong(&self.offsets, format!("{} numbers, no pairs of place and length", offsets.len())));
        }
        let wraps = self.offsets.token_type().bytes() == 2;
        let mut starts = Vec::with_capacity(pairs.len());
        let mut end = 0_usize;
        for [start, length] in pairs {
            let stored = if wraps { end & 0xFFFF } else { end };
            let next = end.saturating_add(*length as usize);
            if *start as usize != stored || *length == 0 || next > target.len() {
                let reason = format!("a span of {length} ids at {start} after {end} of {}", target.len());
                return Err(wrong(&self.offsets, reason));
            }
            starts.push(end..next);
            end = next;
        }
        if end != target.len() {
            return Err(wrong(&self.target, format!("{} ids, and the spans have {end}", target.len())));
        }
        ids.clear();
        for id in &*context {
            let Some(span) = id.checked_sub(self.first_placeholder) else {
                ids.push(*id);
                continue;
            };
            let range = starts.get(span as usize).cloned().ok_or_else(|| {
                wrong(&self.context, format!("placeholder {id} of span {span}, and there are {}", starts.len()))
            })?;
            if target[range.start] != *id {
                let reason = format!("span {span} begins with {}, not its placeholder {id}", target[range.start]);
                return Err(wrong(&self.target, reason));
            }
            ids.extend_from_slice(&target[range.start + 1..range.end]);
        }
        Ok(())
    }
}

impl TokenDocuments for SpanDocuments {
    fn advance(&mut self, ids: &mut Vec<u32>) -> Result<Option<DocumentPart>> {
        if std::mem::take(&mut self.in_document) {
            return Ok(Some(DocumentPart::End));
        }
        if self.next == self.context.sequences() {
            return Ok(None);
        }
        self.restore(ids)?;
        self.next += 1;
        self.in_document = true;
        Ok(Some(DocumentPart::Sequence))
    }

    fn total_bytes(&self) -> u64 {
        [&self.context, &self.target, &self.offsets].map(TokenFile::bytes).iter().sum()
    }

    fn stated(&self) -> StatedCounts {
        StatedCounts { documents: Some(self.context.sequences()), tokens: None }
    }

    fn read_bytes(&self) -> u64 {
        (self.total_bytes() as f64 * self.next as f64 / self.context.sequences().max(1) as f64) as u64
    }
}
