//! The extents of attention: whole sequences, or the documents that are packed into them.
//!
//! An extent is computed as if it were a sequence of its own, with tiles that begin at its first query and key. So a
//! document costs what a sequence of its length costs, and has its bits.

use crate::cpu::access;
use crate::error::{Error, Result};
use crate::kernel::{AttentionInputs, AttentionShape};
use std::ops::Range;

/// Queries of a sequence and the keys that they may see. No other query sees these keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extent {
    /// Sequence.
    pub(super) b: usize,
    pub(super) queries: Range<usize>,
    pub(super) keys: Range<usize>,
}

/// All extents of a call, by sequence and position.
#[derive(Debug)]
pub(super) enum Extents {
    /// One for each sequence.
    Sequences(AttentionShape),
    Documents {
        all: Vec<Extent>,
        /// Longest document.
        longest: usize,
    },
}

impl Extents {
    /// # Errors
    /// Bounds that do not divide every sequence into documents.
    pub(super) fn new(op: &'static str, inputs: &AttentionInputs<'_>) -> Result<Self> {
        let shape = inputs.shape;
        let Some(documents) = inputs.documents else { return Ok(Extents::Sequences(shape)) };
        let (bounds, length) = (access::read::<i32>(op, documents)?, shape.queries);
        let (mut all, mut longest) = (Vec::new(), 0);
        for (b, bounds) in bounds.chunks_exact(2 * length.max(1)).enumerate() {
            let (starts, ends) = bounds.split_at(length);
            let mut start = 0;
            while start < length {
                let end = usize::try_from(ends[start]).ok().filter(|end| (start + 1..=length).contains(end));
                let divided = |end: &usize| {
                    let has = |bounds: &[i32], bound: usize| bounds[start..*end].iter().all(|x| *x as usize == bound);
                    has(starts, start) && has(ends, *end)
                };
                let end = end.filter(divided).ok_or_else(|| {
                    let reason = format!("no document has its bounds at token {start} of sequence {b}");
                    Error::argument(op, format!("{reason}: every token takes the first token and the end of its own"))
                })?;
                all.push(Extent { b, queries: start..end, keys: start..end });
                longest = longest.max(end - start);
                start = end;
            }
        }
        Ok(Extents::Documents { all, longest })
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Extents::Sequences(shape) => shape.batch,
            Extents::Documents { all, .. } => all.len(),
        }
    }

    pub(super) fn get(&self, index: usize) -> Option<Extent> {
        match self {
            Extents::Sequences(AttentionShape { queries, keys, .. }) => {
                Some(Extent { b: index, queries: 0..*queries, keys: 0..*keys })
            }
            Extents::Documents { all, .. } => all.get(index).cloned(),
        }
    }

    pub(super) fn are_documents(&self) -> bool {
        matches!(self, Extents::Documents { .. })
    }

    /// Most queries and most keys of an extent.
    pub(super) fn longest(&self) -> (usize, usize) {
        match self {
            Extents::Sequences(shape) => (shape.queries, shape.keys),
            Extents::Documents { longest, .. } => (*longest, *longest),
        }
    }
}
