//! Groups of consecutive sentences: the samples of objectives over sentences.
//!
//! Defines [`SentenceGroups`]. The documents of a token file are made of sentences there, one in each of its sequences.
//! The map of the groups is computed once and kept beside the corpus. Called by [`crate::pretraining`].

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::maps::{GroupMap, GroupRequest};
use super::split::DocumentSet;
use super::token_file::TokenFile;
use crate::Result;

/// How sentences are grouped.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupOptions {
    /// Sentences are added until they have this number of tokens.
    pub target_tokens: u64,
    /// The fewest sentences of a group: 2 for objectives over pairs.
    pub fewest: u64,
    /// Share of groups with a random target between 2 and `target_tokens`.
    pub short: f64,
    /// Documents with a longer sentence are left out, in tokens; Megatron-LM's bound is 512.
    pub longest_sentence: u32,
    /// Decides the short targets and the order of groups.
    pub seed: u64,
    /// The part's name in the names of map files, such as `train`.
    pub part: String,
    /// The directory of the map files; `None` for beside the corpus.
    pub cache: Option<PathBuf>,
    /// Threads that compute the map; 0 for one per processor. The map does not depend on it.
    pub threads: usize,
}

/// Consecutive sentences of one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentenceGroup {
    /// The document.
    pub document: u64,
    /// Its sentences, as sequences of the file.
    pub sentences: Range<u64>,
    /// Tokens that were aimed at: the sentences may have more, and the last group of a document may have fewer.
    pub target_tokens: u64,
}

/// The groups of the documents of a set, numbered over any number of epochs. Every sentence of every document that is
/// used is in one group of an epoch. Every epoch has the same groups, in an order of its own.
#[derive(Debug)]
pub struct SentenceGroups {
    file: Arc<TokenFile>,
    map: GroupMap,
}

impl SentenceGroups {
    /// Opens the map, or computes it in parallel and keeps it in a file. Sentences without tokens do not count;
    /// documents with fewer sentences than a group needs are left out.
    ///
    /// # Errors
    /// [`crate::Error::Argument`] for a target below 2, documents that the file does not have, and if no document has
    /// a group; [`crate::Error::Data`] for a token file that contradicts itself; [`crate::Error::File`] if reading or
    /// writing fails.
    pub fn open(file: Arc<TokenFile>, documents: &DocumentSet, options: &GroupOptions) -> Result<SentenceGroups> {
        let map = GroupMap::open(&GroupRequest { file: &file, set: documents, options })?;
        Ok(SentenceGroups { file, map })
    }

    /// The token file.
    pub fn file(&self) -> &Arc<TokenFile> {
        &self.file
    }

    /// Groups of one epoch.
    pub fn groups_per_epoch(&self) -> u64 {
        self.map.groups()
    }

    /// Group `index`, counted over all epochs.
    ///
    /// # Errors
    /// [`crate::Error::Data`] if map and token file contradict each other, [`crate::Error::File`] if reading fails.
    pub fn at(&self, index: u64) -> Result<SentenceGroup> {
        self.map.at(index)
    }
}
