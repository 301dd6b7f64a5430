//! Documents chosen in proportion to their length.
//!
//! Defines [`WeightedDocuments`]. Called by the objectives of [`crate::pretraining`] that sample documents at random.

use super::split::DocumentSet;
use super::token_file::TokenFile;
use crate::{Error, Result};

/// Unit that counts as a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentUnit {
    /// Each sequence of the file, as in [`super::Samples`].
    Sequences,
    /// Each document of the file, with all its sequences.
    Documents,
}

/// The documents of a set with the sum of their lengths: 8 bytes of memory for each.
#[derive(Debug)]
pub struct WeightedDocuments {
    set: DocumentSet,
    /// Tokens up to the end of each document of the set.
    ends: Vec<u64>,
}

impl WeightedDocuments {
    /// Reads the lengths of the documents of a set.
    ///
    /// # Errors
    /// [`Error::Argument`] for documents that the file does not have, without tokens, or too many for the memory;
    /// [`Error::Data`] for an index that contradicts itself; [`Error::File`] if reading fails.
    pub fn open(file: &TokenFile, set: &DocumentSet, unit: DocumentUnit) -> Result<WeightedDocuments> {
        let mut ends: Vec<u64> = Vec::new();
        let count = usize::try_from(set.len()).unwrap_or(usize::MAX);
        ends.try_reserve_exact(count).map_err(|_| {
            let reason = format!("no memory for the lengths of {count} documents");
            Error::argument("documents", reason, "split the corpus, or choose the sampler with index maps")
        })?;
        let mut tokens = 0_u64;
        for at in 0..set.len() {
            tokens = tokens.saturating_add(match unit {
                DocumentUnit::Sequences => {
                    let range = file.sequence(set.at(at))?;
                    range.end - range.start
                }
                DocumentUnit::Documents => file.document_tokens(set.at(at))?,
            });
            ends.push(tokens);
        }
        if tokens == 0 {
            return Err(Error::argument("documents", "they have no tokens", "give the part documents with tokens"));
        }
        Ok(WeightedDocuments { set: set.clone(), ends })
    }

    /// Tokens of all documents.
    pub fn tokens(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Number of documents.
    pub fn len(&self) -> u64 {
        self.ends.len() as u64
    }

    /// Whether there are no documents.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The document that has this token of all; the last one for a token beyond them.
    pub fn with_token(&self, token: u64) -> u64 {
        let at = self.ends.partition_point(|end| *end <= token).min(self.ends.len().saturating_sub(1));
        self.set.at(at as u64)
    }

    /// The number in the file of document `at` of the set.
    pub fn document(&self, at: u64) -> u64 {
        self.set.at(at)
    }
}
