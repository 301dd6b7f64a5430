//! Samples of a fixed number of tokens from the documents of a token file.
//!
//! Defines [`Samples`]. A loader of pretraining batches is the caller; a [`CorpusMixture`](super::CorpusMixture)
//! chooses among several.

use std::path::PathBuf;
use std::sync::Arc;

use super::maps::{MapFiles, MapRequest, SampleOrder, open};
use super::split::DocumentSet;
use super::token_file::TokenFile;
use crate::{Error, Result};

/// Entries of the document map are read in pieces of this many.
const ENTRIES: u64 = 64;

/// How documents are cut into samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleOptions {
    /// Inputs of a sample; it has one token more, as targets are one further.
    pub sequence_length: u64,
    /// Samples that are needed; as many epochs are used.
    pub samples: u64,
    /// Decides the orders of documents and samples.
    pub seed: u64,
    /// The rule of both orders.
    pub order: SampleOrder,
    /// The part's name in the names of map files, such as `train`.
    pub part: String,
    /// The directory of the map files; `None` for beside the corpus.
    pub cache: Option<PathBuf>,
    /// Threads that compute maps; 0 for one per processor. The maps do not depend on it.
    pub threads: usize,
}

/// The samples of a set of documents.
///
/// Sample i is a pure function of token file, documents, options and i. Memory does not depend on their number, and
/// all methods may be called from several threads.
#[derive(Debug)]
pub struct Samples {
    file: Arc<TokenFile>,
    maps: MapFiles,
    seed: u64,
}

impl Samples {
    /// Opens the index maps, or computes them and keeps them in files. Each sequence of the file is a document of its
    /// own here, as in Megatron-LM.
    ///
    /// # Errors
    /// [`Error::Argument`] for a length of 0, documents that the file does not have or without tokens;
    /// [`Error::Data`] for a token file that contradicts itself; [`Error::File`] if reading or writing maps fails.
    pub fn open(file: Arc<TokenFile>, documents: &DocumentSet, options: &SampleOptions) -> Result<Samples> {
        if options.sequence_length == 0 {
            let fix = "use the number of positions that the model trains with";
            return Err(Error::argument("sequence length", "samples of 0 tokens", fix));
        }
        let request = MapRequest {
            file: &file,
            set: documents,
            name: &options.part,
            samples: options.samples,
            length: options.sequence_length,
            seed: options.seed,
            order: options.order,
            directory: options.cache.as_deref(),
            threads: options.threads,
        };
        let maps = open(&request)?;
        Ok(Samples { file, maps, seed: options.seed })
    }

    /// Number of samples, at least those asked for: all that the epochs have.
    pub fn len(&self) -> u64 {
        self.maps.extent.samples()
    }

    /// Whether there are no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Times that the documents are used.
    pub fn epochs(&self) -> u64 {
        self.maps.extent.epochs
    }

    /// Tokens of one epoch.
    pub fn tokens_per_epoch(&self) -> u64 {
        self.maps.extent.tokens
    }

    /// Tokens of a sample: the sequence length and one more.
    pub fn sample_tokens(&self) -> u64 {
        self.maps.extent.length + 1
    }

    /// Replaces `ids` by the tokens of sample `index`.
    ///
    /// # Errors
    /// [`Error::Argument`] beyond the last sample; [`Error::Data`] if maps and token file contradict each other;
    /// [`Error::File`] if reading fails.
    pub fn read(&self, index: u64, ids: &mut Vec<u32>) -> Result<()> {
        if index >= self.len() {
            let reason = format!("there are {} samples, numbered from 0", self.len());
            return Err(Error::argument(
                format!("sample {index}"),
                reason,
                "ask for more samples when they are opened",
            ));
        }
        ids.clear();
        let sample = self.sample_at(index)?;
        let mut ends = [0; 4];
        self.maps.samples.read(sample, &mut ends)?;
        let [first, from, last, to] = ends;
        let wanted = usize::try_from(self.sample_tokens()).unwrap_or(usize::MAX);
        let mut entries = [0; ENTRIES as usize];
        let mut entry = first;
        while entry <= last && ids.len() < wanted {
            let count = ENTRIES.min((last - entry).saturating_add(1));
            let entries = &mut entries[..count as usize];
            self.maps.documents.read(entry, entries)?;
            for document in entries {
                let begin = if entry == first { from } else { 0 };
                let end = (entry == last).then(|| to.saturating_add(1));
                self.append(*document, begin, end, wanted, ids)?;
                entry += 1;
            }
        }
        if ids.len() == wanted { Ok(()) } else { Err(self.mismatch(index, ids.len())) }
    }

    fn sample_at(&self, index: u64) -> Result<u64> {
        let Some(shuffle) = &self.maps.shuffle else { return Ok(self.maps.extent.addressed(self.seed, index)) };
        let mut sample = [0];
        shuffle.read(index, &mut sample)?;
        if sample[0] < self.len() { Ok(sample[0]) } else { Err(self.mismatch(index, 0)) }
    }

    /// Appends the tokens `begin` to `end` of a document, at most up to `wanted` in all.
    fn append(&self, document: u64, begin: u64, end: Option<u64>, wanted: usize, ids: &mut Vec<u32>) -> Result<()> {
        let range = self.file.sequence(document)?;
        let end = end.map_or(range.end, |end| range.start.saturating_add(end).min(range.end));
        let start = range.start.saturating_add(begin).min(end);
        let count = usize::try_from(end - start).unwrap_or(usize::MAX).min(wanted.saturating_sub(ids.len()));
        let before = ids.len();
        ids.resize(before + count, 0);
        self.file.read_ids(start, &mut ids[before..])
    }

    fn mismatch(&self, index: u64, tokens: usize) -> Error {
        let reason = format!(
            "the index maps give sample {index} {tokens} tokens instead of {}: they do not fit the file",
            self.sample_tokens()
        );
        Error::data(self.file.prefix().display().to_string(), reason, "remove the index maps: they are computed again")
    }
}
