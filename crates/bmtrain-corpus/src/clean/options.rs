//! Options of cleaning.

use std::path::PathBuf;

use super::Similarity;
use crate::{Error, Result};
use model_center_data::corpus::text::TextSource;
use model_center_formats::io::flaws::OnBadRecord;

/// The stages, and where the result is written.
#[derive(Debug, Clone, PartialEq)]
pub struct CleanOptions {
    /// The directory of the result, which is made; the name in it is `documents.jsonl`, with the ending of
    /// [`CleanOptions::compression`].
    pub out: PathBuf,
    /// Compression of the result.
    pub compression: Compression,
    /// The key or column of a document's URL, which is its name in reports of near-duplicates, too.
    pub url_key: String,
    /// Rules of URLs; documents without one pass.
    pub urls: Option<UrlOptions>,
    /// Whether texts that were decoded by the wrong table are repaired.
    pub repair: bool,
    /// The languages that are kept, as codes of ISO 639-3; empty for all.
    pub languages: Vec<String>,
    /// The least number of tokens; 0 for any. A text of eight times as many characters is not tokenised.
    pub min_tokens: usize,
    /// The least number of characters; 0 for any.
    pub min_characters: usize,
    /// Near-duplicates are sought.
    pub near: Option<NearOptions>,
    /// Texts of tasks that are taken out.
    pub tasks: Option<TextSource>,
    /// Removal of task texts.
    pub ngrams: NgramOptions,
    /// The order is a random one of this seed.
    pub shuffle: Option<u64>,
    /// Treatment of records that cannot be used.
    pub on_bad_record: OnBadRecord,
    /// Threads; 0 for one per processor.
    pub threads: usize,
    /// Bytes of memory for sorting.
    pub memory: usize,
}

impl CleanOptions {
    /// No stage, for a directory.
    pub fn new(out: PathBuf) -> CleanOptions {
        CleanOptions {
            out,
            compression: Compression::None,
            url_key: "url".into(),
            urls: None,
            repair: false,
            languages: Vec::new(),
            min_tokens: 0,
            min_characters: 0,
            near: None,
            tasks: None,
            ngrams: NgramOptions::default(),
            shuffle: None,
            on_bad_record: OnBadRecord::Error,
            threads: 0,
            memory: 256 << 20,
        }
    }
}

/// Compression of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "cli", derive(clap::ValueEnum))]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// zstd.
    Zstd,
}

impl Compression {
    pub(super) fn ending(self) -> &'static str {
        match self {
            Compression::None => "",
            Compression::Gzip => ".gz",
            Compression::Zstd => ".zst",
        }
    }
}

/// Rules of URLs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UrlOptions {
    /// Blocked sites, names between white space, in the place of the list of openwebtext.
    pub sites: Option<String>,
}

/// Search for near-duplicates.
#[derive(Debug, Clone, PartialEq)]
pub struct NearOptions {
    /// Hash functions of a signature, a multiple of the bands.
    pub hashes: usize,
    /// Bands of a signature.
    pub bands: usize,
    /// Decides the hash functions.
    pub seed: u64,
    /// Measure of similarity.
    pub similarity: Similarity,
    /// Pairs above this similarity are reported.
    pub report: f64,
    /// Pairs of this similarity or more are one group; its first document is kept.
    pub group: f64,
    /// The most documents of a bucket that are compared with all others of it.
    pub leaders: usize,
}

impl Default for NearOptions {
    /// 100 hash functions in 10 bands, reports above 0.5, groups from 0.9 on, as openwebtext is cleaned.
    fn default() -> Self {
        NearOptions {
            hashes: 100,
            bands: 10,
            seed: 1234,
            similarity: Similarity::Union,
            report: 0.5,
            group: 0.9,
            leaders: 32,
        }
    }
}

impl NearOptions {
    pub(super) fn check(&self) -> Result<()> {
        let NearOptions { hashes, bands, report, group, .. } = *self;
        if bands == 0 || hashes == 0 || hashes > 1 << 12 || hashes % bands != 0 {
            let reason = format!("{hashes} hash functions in {bands} bands");
            return Err(Error::argument(
                "bands",
                reason,
                "choose at most 4096, a multiple of the bands, such as 100 in 10",
            ));
        }
        for (name, value) in [("report", report), ("group", group)] {
            if !(0.0..=1.0).contains(&value) {
                let reason = format!("{value} is not a similarity");
                return Err(Error::argument(name, reason, "choose a number from 0 to 1"));
            }
        }
        if report > group {
            let reason = format!("groups from {group} on are below the reports above {report}");
            return Err(Error::argument("report", reason, "report at most what is grouped"));
        }
        Ok(())
    }
}

/// Removal of texts of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NgramOptions {
    /// Words of an n-gram.
    pub max_words: usize,
    /// A task text of fewer words is not sought.
    pub min_words: usize,
    /// Characters that go on each side of an n-gram.
    pub margin: usize,
    /// Pieces of this number of characters or fewer are dropped.
    pub min_characters: usize,
    /// Documents that split into more pieces are dropped.
    pub max_pieces: usize,
    /// N-grams that documents have as often as this stay; 0 for none.
    pub common: u64,
}

impl Default for NgramOptions {
    /// 13 words, 8 at least, 200 characters on each side, pieces above 200 characters, at most ten, common from 10 on.
    fn default() -> Self {
        NgramOptions { max_words: 13, min_words: 8, margin: 200, min_characters: 200, max_pieces: 10, common: 10 }
    }
}
