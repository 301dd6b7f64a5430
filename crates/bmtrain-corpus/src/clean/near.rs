//! Near-duplicates: candidates that share a band of their signatures, compared shingle by shingle.
//!
//! Defines [`NearStage`]. Bands are sorted one after the other on the disk; the documents of a bucket, which share a
//! band, are compared with its first document, then those that are left with the next one. Pairs go to a file;
//! [`NearStage::group`] keeps of each group of connected documents the first.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::fates::{Fate, Fates};
use super::minhash::shingles;
use super::screen::name_of;
use super::sort::ExternalSort;
use super::store::Store;
use super::{NearOptions, TextKeys};
use crate::Result;
use crate::output::LineWriter;
use model_center_base::stop_flag::StopFlag;
use model_center_data::corpus::{positioned::PositionedFile, spool::Spool, threads::in_parallel};

/// Bytes of a pair: two places in the store, the similarity.
pub(super) const PAIR: u64 = 24;
/// Documents of buckets that are compared in one go.
const BATCH: usize = 1 << 12;
/// Shingles that are kept while a bucket is compared; 32 MiB.
const KEPT_SHINGLES: usize = 1 << 22;

/// Two documents by their places in the store, the earlier first.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Pair {
    a: u64,
    b: u64,
    similarity: f64,
}

/// Input of the stage.
pub(super) struct NearStage<'a> {
    pub(super) options: &'a NearOptions,
    pub(super) keys: TextKeys<'a>,
    pub(super) store: &'a Store,
    pub(super) bands: &'a PositionedFile,
    pub(super) threads: usize,
    pub(super) stop: &'a StopFlag,
}

impl NearStage<'_> {
    /// Compares the documents that share band `band` and no earlier one; pairs are added to `pairs` and `groups`, which
    /// have those found in earlier bands. False if a stop was requested before it was done.
    pub(super) fn band(
        &self,
        band: usize,
        mut sort: ExternalSort<2>,
        fates: &Fates,
        groups: &mut Groups,
        pairs: &mut Spool,
    ) -> Result<bool> {
        for place in 0..self.store.len() {
            let hash = self.hashes(place, band)?;
            if hash != 0 && fates.is_kept(self.store.number(place)?)? {
                sort.push([hash, place])?;
            }
            if place % BATCH as u64 == 0 && self.stop.is_requested() {
                return Ok(false);
            }
        }
        let mut sorted = sort.finish()?;
        let (mut bucket, mut of, mut buckets, mut documents) = (Vec::new(), 0, Vec::new(), 0);
        loop {
            let record = sorted.advance()?;
            let hash = record.map(|[hash, _]| hash);
            if hash != Some(of) {
                if bucket.len() > 1 {
                    documents += bucket.len();
                    buckets.push(std::mem::take(&mut bucket));
                }
                bucket.clear();
            }
            if documents >= BATCH || record.is_none() {
                let compare = |at: usize| self.bucket(&buckets[at], band, groups);
                let found = in_parallel(self.threads, buckets.len(), compare);
                for pair in found.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten() {
                    groups.join(self.options, pair);
                    for bytes in [pair.a.to_le_bytes(), pair.b.to_le_bytes(), pair.similarity.to_le_bytes()] {
                        pairs.write(&bytes)?;
                    }
                }
                (buckets, documents) = (Vec::new(), 0);
                if self.stop.is_requested() {
                    return Ok(false);
                }
            }
            let Some([hash, place]) = record else { return Ok(true) };
            of = hash;
            bucket.push(place);
        }
    }

    /// The hash of a band of a document.
    fn hashes(&self, place: u64, band: usize) -> Result<u64> {
        self.bands.u64_at(8 * (place * self.options.bands as u64 + band as u64))
    }

    /// The similar pairs of documents in a bucket.
    fn bucket(&self, places: &[u64], band: usize, groups: &Groups) -> Result<Vec<Pair>> {
        let mut sets: HashMap<u64, Arc<Vec<u64>>> = HashMap::new();
        let mut kept = 0;
        let mut set_of = |place: u64| -> Result<Arc<Vec<u64>>> {
            if let Some(set) = sets.get(&place) {
                return Ok(Arc::clone(set));
            }
            let set = Arc::new(shingles(&self.store.text(place, self.keys.text)?));
            if kept + set.len() <= KEPT_SHINGLES {
                kept += set.len();
                sets.insert(place, Arc::clone(&set));
            }
            Ok(set)
        };
        let (mut pairs, mut left, mut leaders) = (Vec::new(), places.to_vec(), 0);
        while left.len() > 1 && leaders < self.options.leaders.max(1) {
            leaders += 1;
            let leader = left.remove(0);
            let of_leader = set_of(leader)?;
            let mut others = Vec::with_capacity(left.len());
            for place in left {
                if groups.are_joined(leader, place) {
                    continue;
                }
                let mut similarity = 0.0;
                if !self.share_earlier(leader, place, band)? {
                    similarity = self.options.similarity.of(&of_leader, &set_of(place)?);
                }
                if similarity > self.options.report || similarity >= self.options.group {
                    pairs.push(Pair { a: leader, b: place, similarity });
                }
                // What is kept of a group stands for it; its members are not compared with each other.
                if similarity < self.options.group {
                    others.push(place);
                }
            }
            left = others;
        }
        Ok(pairs)
    }

    /// Whether two documents met in an earlier band, where they were compared.
    fn share_earlier(&self, a: u64, b: u64, band: usize) -> Result<bool> {
        for earlier in 0..band {
            if self.hashes(a, earlier)? == self.hashes(b, earlier)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Marks all but the first document of each group, and writes `pairs.jsonl` and `groups.jsonl`.
    pub(super) fn group(&self, pairs: &Path, count: u64, out: &Path, fates: &mut Fates) -> Result<()> {
        let file = PositionedFile::open(pairs)?;
        let mut groups = Groups::default();
        let mut lines = LineWriter::create(&out.join("pairs.jsonl"))?;
        for at in 0..count {
            let pair = read_pair(&file, at)?;
            groups.join(self.options, pair);
            let (a, b) = (self.name(pair.a)?, self.name(pair.b)?);
            lines.add(&json!({"a": a, "b": b, "similarity": pair.similarity}).to_string())?;
        }
        lines.commit()?;
        let mut lines = LineWriter::create(&out.join("groups.jsonl"))?;
        for members in groups.members() {
            let (kept, removed) = (members[0], &members[1..]);
            let names = removed.iter().map(|place| self.name(*place)).collect::<Result<Vec<_>>>()?;
            lines.add(&json!({"kept": self.name(kept)?, "removed": names}).to_string())?;
            for place in removed {
                fates.change(self.store.number(*place)?, Fate::Near, 0)?;
            }
        }
        lines.commit()
    }

    fn name(&self, place: u64) -> Result<serde_json::Value> {
        Ok(name_of(&self.store.fields(place)?, self.keys.url, self.store.number(place)?))
    }
}

fn read_pair(file: &PositionedFile, at: u64) -> Result<Pair> {
    let number = |field: u64| file.u64_at(PAIR * at + 8 * field);
    Ok(Pair { a: number(0)?, b: number(1)?, similarity: f64::from_bits(number(2)?) })
}

/// Documents that are connected by pairs: a forest whose roots are the first documents of their groups. Memory is for
/// documents with a near-duplicate alone.
#[derive(Debug, Default)]
pub(super) struct Groups {
    parents: HashMap<u64, u64>,
}

impl Groups {
    /// The groups of pairs that were found before.
    pub(super) fn read(options: &NearOptions, pairs: &Path, count: u64) -> Result<Groups> {
        let mut groups = Groups::default();
        if count > 0 {
            let file = PositionedFile::open(pairs)?;
            for at in 0..count {
                groups.join(options, read_pair(&file, at)?);
            }
        }
        Ok(groups)
    }

    fn root(&self, place: u64) -> u64 {
        let mut at = place;
        while let Some(parent) = self.parents.get(&at) {
            at = *parent;
        }
        at
    }

    fn are_joined(&self, a: u64, b: u64) -> bool {
        !self.parents.is_empty() && self.root(a) == self.root(b)
    }

    fn join(&mut self, options: &NearOptions, pair: Pair) {
        let (a, b) = (self.root(pair.a), self.root(pair.b));
        if pair.similarity < options.group || a == b {
            return;
        }
        let (first, last) = (a.min(b), a.max(b));
        self.parents.insert(last, first);
        // Paths stay short: the documents of the pair point to the root.
        for place in [pair.a, pair.b] {
            if place != first {
                self.parents.insert(place, first);
            }
        }
    }

    /// The members of each group in their order, the groups in the order of their first members.
    fn members(&self) -> Vec<Vec<u64>> {
        let mut members: std::collections::BTreeMap<u64, Vec<u64>> = std::collections::BTreeMap::new();
        for place in self.parents.keys() {
            members.entry(self.root(*place)).or_default().push(*place);
        }
        let whole = |(root, mut others): (u64, Vec<u64>)| {
            others.sort_unstable();
            others.insert(0, root);
            others
        };
        members.into_iter().map(whole).collect()
    }
}
