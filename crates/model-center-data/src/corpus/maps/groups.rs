//! The map of sentence groups: document, first sentence, end and target of each group of one epoch.
//!
//! Built in two passes over the lengths of sentences, window by window and in parallel: the first counts the groups,
//! the second writes them. One window is in memory. Later epochs are permutations of the same map.
//! Called by [`super::super::groups`].

use bmtrain_core::philox::{Key, block};
use serde::{Deserialize, Serialize};

use super::super::fingerprint::hash_file;
use super::super::groups::{GroupOptions, SentenceGroup};
use super::super::npy::{NpyFile, NpyInteger, NpyWriter};
use super::super::split::DocumentSet;
use super::super::threads::{in_parallel, thread_count};
use super::super::token_file::TokenFile;
use super::epoch_order;
use super::files::{MapPlace, check_part, stem};
use crate::{Error, Result};

/// Documents of a piece of work.
const PIECE: u64 = 1 << 10;
/// Lengths of sentences are read in pieces of this many.
const LENGTHS: usize = 1 << 14;
/// Document, first sentence, end of the sentences, target.
const COLUMNS: u64 = 4;
const NO_GROUPS: &str = "build the corpus with --split-lines from documents of one sentence a line; one that \
     was converted from BERT's records has no sentences, and is built anew from the text";

/// Which map is asked for.
#[derive(Debug)]
pub(in super::super) struct GroupRequest<'a> {
    pub(in super::super) file: &'a TokenFile,
    pub(in super::super) set: &'a DocumentSet,
    pub(in super::super) options: &'a GroupOptions,
}

/// Inputs of the map, and its hash.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupRecord {
    version: u32,
    /// Hash of the index of the token file.
    index: String,
    documents: String,
    seed: u64,
    target_tokens: u64,
    fewest: u64,
    /// Bits of the share of short targets.
    short: u64,
    longest_sentence: u32,
    groups: u64,
    maps: Vec<String>,
}

/// The map, read by position.
#[derive(Debug)]
pub(in super::super) struct GroupMap {
    file: NpyFile,
    seed: u64,
    groups: u64,
}

impl GroupMap {
    /// Opens the map, or computes it where it is missing or stale.
    pub(in super::super) fn open(request: &GroupRequest<'_>) -> Result<GroupMap> {
        let GroupRequest { file, set, options } = request;
        check_part(&options.part)?;
        if options.target_tokens < 2 {
            let reason = format!("groups of {} tokens", options.target_tokens);
            return Err(Error::argument("sequence length", reason, "use the number of positions of the model"));
        }
        if !(0.0..=1.0).contains(&options.short) {
            return Err(Error::argument("short sequences", format!("a share of {}", options.short), "use 0 to 1"));
        }
        if !set.is_empty() && set.span().end > file.documents() {
            let reason = format!("documents up to {}, and the file has {}", set.span().end, file.documents());
            return Err(Error::argument("documents", reason, "take the parts from the number of documents"));
        }
        let GroupOptions { target_tokens, fewest, short, longest_sentence, seed, .. } = **options;
        let base =
            format!("{}_{}_sentencemap_{target_tokens}tokens_{fewest}sentences_{seed}s", stem(file), options.part);
        let place = MapPlace::new(file, options.cache.as_deref(), &base, &[format!("{base}.npy")]);
        let asked = GroupRecord {
            version: 1,
            index: hash_file(file.index_path())?,
            documents: set.describe(),
            seed,
            target_tokens,
            fewest,
            short: short.to_bits(),
            longest_sentence,
            groups: 0,
            maps: Vec::new(),
        };
        if let Some(found) = place.record::<GroupRecord>() {
            let (groups, maps) = (found.groups, found.maps.clone());
            if found == (GroupRecord { groups, maps, ..asked.clone_settings() }) && place.have(&found.maps) {
                return GroupMap::read(&place, seed, groups);
            }
        }
        let builder = Builder { file, set, options, threads: thread_count(options.threads) };
        let groups = builder.count()?;
        let most = file.sequences().max(file.documents()).max(target_tokens);
        let integer = if most <= i32::MAX as u64 { NpyInteger::I32 } else { NpyInteger::I64 };
        let mut writer = NpyWriter::create(&place.maps[0], integer, groups, COLUMNS)?;
        builder.walk(|rows| writer.write(rows))?;
        place.finish(&GroupRecord { groups, maps: vec![writer.commit()?], ..asked })?;
        GroupMap::read(&place, seed, groups)
    }

    fn read(place: &MapPlace, seed: u64, groups: u64) -> Result<GroupMap> {
        let file = NpyFile::open(&place.maps[0], COLUMNS)?;
        if file.rows() != groups || groups == 0 {
            return Err(place.mismatch());
        }
        Ok(GroupMap { file, seed, groups })
    }

    /// Groups of an epoch.
    pub(in super::super) fn groups(&self) -> u64 {
        self.groups
    }

    /// Group `index` over all epochs.
    pub(in super::super) fn at(&self, index: u64) -> Result<SentenceGroup> {
        let order = epoch_order(self.seed, "corpus sentence groups", index / self.groups, self.groups);
        let place = index % self.groups;
        let mut row = [0; COLUMNS as usize];
        self.file.read(order.at(place).unwrap_or(place), &mut row)?;
        let [document, first, end, target_tokens] = row;
        Ok(SentenceGroup { document, sentences: first..end, target_tokens })
    }
}

impl GroupRecord {
    /// The same request, without what was computed.
    fn clone_settings(&self) -> GroupRecord {
        GroupRecord { index: self.index.clone(), documents: self.documents.clone(), maps: Vec::new(), ..*self }
    }
}

struct Builder<'a> {
    file: &'a TokenFile,
    set: &'a DocumentSet,
    options: &'a GroupOptions,
    threads: usize,
}

impl Builder<'_> {
    /// Groups of all documents.
    fn count(&self) -> Result<u64> {
        let mut groups = 0;
        self.walk(|rows| {
            groups += rows.len() as u64 / COLUMNS;
            Ok(())
        })?;
        if groups == 0 {
            let GroupOptions { fewest, longest_sentence, .. } = self.options;
            let reason = format!(
                "none of {} documents has {fewest} sentences or more, each of at most {longest_sentence} tokens",
                self.set.len()
            );
            return Err(Error::argument("documents", reason, NO_GROUPS));
        }
        Ok(groups)
    }

    /// Hands over the rows of the map, document by document.
    fn walk(&self, mut write: impl FnMut(Vec<u64>) -> Result<()>) -> Result<()> {
        let window = PIECE * 4 * self.threads as u64;
        for start in (0..self.set.len()).step_by(window as usize) {
            let end = (start + window).min(self.set.len());
            let pieces = (end - start).div_ceil(PIECE) as usize;
            let rows = in_parallel(self.threads, pieces, |piece| {
                let from = start + piece as u64 * PIECE;
                let mut rows = Vec::new();
                (from..(from + PIECE).min(end)).try_for_each(|at| self.groups_of(self.set.at(at), &mut rows))?;
                Ok::<_, Error>(rows)
            });
            for rows in rows {
                write(rows?)?;
            }
        }
        Ok(())
    }

    /// Appends the rows of a document.
    fn groups_of(&self, document: u64, rows: &mut Vec<u64>) -> Result<()> {
        let GroupOptions { fewest, longest_sentence, .. } = *self.options;
        let sentences = self.file.document(document)?;
        let (mut left, mut longest) = (0_u64, 0);
        self.each_length(sentences.clone(), |_, length| {
            left += u64::from(length > 0);
            longest = longest.max(length);
        })?;
        if left < fewest.max(1) || longest > longest_sentence {
            return Ok(());
        }
        let (mut first, mut count, mut tokens, mut number) = (sentences.start, 0, 0_u64, 0);
        let mut target = self.target(document, number);
        self.each_length(sentences, |sentence, length| {
            if length == 0 {
                return;
            }
            (count, left, tokens) = (count + 1, left - 1, tokens + u64::from(length));
            // What is left must make a group of its own, or belong to this one.
            let is_full = tokens >= target && count >= fewest && left >= fewest.max(1);
            if is_full || left == 0 {
                rows.extend([document, first, sentence + 1, target]);
                (first, count, tokens, number) = (sentence + 1, 0, 0, number + 1);
                target = self.target(document, number);
            }
        })
    }

    /// The target of a document's group, a function of seed, document and its number there.
    fn target(&self, document: u64, number: u32) -> u64 {
        let GroupOptions { target_tokens, short, seed, .. } = *self.options;
        let key = Key::new(seed, "corpus sentence targets");
        let [chance, low, high, _] = block(key, [document as u32, (document >> 32) as u32, number, 0]);
        if f64::from(chance) >= short * (1_u64 << 32) as f64 {
            return target_tokens;
        }
        let random = u64::from(high) << 32 | u64::from(low);
        2 + ((u128::from(random) * u128::from(target_tokens - 1)) >> 64) as u64
    }

    fn each_length(&self, sentences: std::ops::Range<u64>, mut see: impl FnMut(u64, u32)) -> Result<()> {
        let mut lengths = vec![0; LENGTHS.min(usize::try_from(sentences.end - sentences.start).unwrap_or(LENGTHS))];
        let mut first = sentences.start;
        while first < sentences.end {
            let count = (sentences.end - first).min(lengths.len() as u64) as usize;
            self.file.lengths(first, &mut lengths[..count])?;
            lengths[..count].iter().zip(first..).for_each(|(length, sentence)| see(sentence, *length));
            first += count as u64;
        }
        Ok(())
    }
}
