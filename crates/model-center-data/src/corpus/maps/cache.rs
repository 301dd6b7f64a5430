//! Index maps in files beside a corpus, computed once.
//!
//! The names are Megatron-LM's: `PREFIX_train_indexmap_1000ns_2048sl_1234s_doc_idx.npy` and so on; maps of the
//! addressed order have `addressed` in them, and no shuffle map. A file `.json` of the same name records what they were
//! computed from, with hashes: maps without it, of other settings, or with another content are computed again.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::fingerprint::hash_file;
use super::super::npy::{NpyFile, NpyWriter};
use super::super::split::DocumentSet;
use super::super::threads::thread_count;
use super::super::token_file::TokenFile;
use super::build::{Lengths, MapBuilder, MapWriters};
use super::files::{MapPlace, check_part, stem};
use super::{Extent, SampleOrder};
use crate::{Error, Result};

/// Which maps are asked for.
#[derive(Debug)]
pub(in super::super) struct MapRequest<'a> {
    pub(in super::super) file: &'a TokenFile,
    pub(in super::super) set: &'a DocumentSet,
    /// The part's name in the names of the files.
    pub(in super::super) name: &'a str,
    pub(in super::super) samples: u64,
    pub(in super::super) length: u64,
    pub(in super::super) seed: u64,
    pub(in super::super) order: SampleOrder,
    /// Where the maps are kept; beside the corpus by default.
    pub(in super::super) directory: Option<&'a Path>,
    pub(in super::super) threads: usize,
}

/// The maps, read by position.
#[derive(Debug)]
pub(in super::super) struct MapFiles {
    pub(in super::super) extent: Extent,
    pub(in super::super) documents: NpyFile,
    pub(in super::super) samples: NpyFile,
    pub(in super::super) shuffle: Option<NpyFile>,
}

/// Inputs of the maps, and their hashes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MapRecord {
    version: u32,
    /// Hash of the index of the token file.
    index: String,
    documents: String,
    order: SampleOrder,
    seed: u64,
    sequence_length: u64,
    samples: u64,
    tokens_per_epoch: u64,
    epochs: u64,
    /// Hashes of the maps, in the order of [`map_names`].
    maps: Vec<String>,
}

/// The names of the maps of a part: of documents, of samples and, in Megatron-LM's orders, of the shuffle.
pub fn map_names(stem: &str, part: &str, samples: u64, length: u64, seed: u64, order: SampleOrder) -> Vec<String> {
    let base = base_name(stem, part, samples, length, seed, order);
    let kinds: &[&str] =
        if order == SampleOrder::Addressed { &["doc", "sample"] } else { &["doc", "sample", "shuffle"] };
    kinds.iter().map(|kind| format!("{base}_{kind}_idx.npy")).collect()
}

fn base_name(stem: &str, part: &str, samples: u64, length: u64, seed: u64, order: SampleOrder) -> String {
    let kind = if order == SampleOrder::Addressed { "_addressed" } else { "" };
    format!("{stem}_{part}_indexmap_{samples}ns_{length}sl_{seed}s{kind}")
}

/// Opens the maps, and computes them where they are missing or stale.
///
/// # Errors
/// [`Error::Argument`] for a request that cannot be satisfied, [`Error::Data`] for a token file that contradicts
/// itself, [`Error::File`] if reading or writing fails.
pub(in super::super) fn open(request: &MapRequest<'_>) -> Result<MapFiles> {
    let place = place_of(request)?;
    let index = hash_file(request.file.index_path())?;
    if let Some(files) = open_whole(&place, request, &index) {
        return Ok(files);
    }
    let record = build(&place, request, index)?;
    read(&place, &record)
}

fn place_of(request: &MapRequest<'_>) -> Result<MapPlace> {
    let MapRequest { file, name, samples, length, seed, order, directory, .. } = *request;
    check_part(name)?;
    let stem = stem(file);
    let names = map_names(&stem, name, samples, length, seed, order);
    Ok(MapPlace::new(file, directory, &base_name(&stem, name, samples, length, seed, order), &names))
}

/// The maps, if they are there, were computed from this request and have not changed since.
fn open_whole(place: &MapPlace, request: &MapRequest<'_>, index: &str) -> Option<MapFiles> {
    let record: MapRecord = place.record()?;
    let asked = (index, &*request.set.describe(), request.order, request.seed, request.length, request.samples);
    let MapRecord { documents, order, seed, sequence_length, samples, .. } = &record;
    let had = (&*record.index, &**documents, *order, *seed, *sequence_length, *samples);
    (record.version == 1 && had == asked && place.have(&record.maps)).then(|| read(place, &record).ok())?
}

fn build(place: &MapPlace, request: &MapRequest<'_>, index: String) -> Result<MapRecord> {
    let MapRequest { file, set, samples, length, seed, order, .. } = *request;
    let threads = thread_count(request.threads);
    let lengths = Lengths::read(file, set, threads)?;
    let extent = Extent::new(lengths.tokens, length, samples)?;
    let entries = set.len().checked_mul(extent.epochs).ok_or_else(|| {
        let reason = format!("{} documents in {} epochs are beyond 64 bits", set.len(), extent.epochs);
        Error::argument("samples", reason, "ask for fewer samples")
    })?;
    let builder = MapBuilder { set, lengths: &lengths, extent, samples, order, seed, threads };
    let [documents, starts, shuffle] = builder.integers();
    let mut writers = MapWriters {
        documents: NpyWriter::create(&place.maps[0], documents, entries, 1)?,
        samples: NpyWriter::create(&place.maps[1], starts, extent.samples() + 1, 2)?,
        shuffle: match place.maps.get(2) {
            Some(path) => Some(NpyWriter::create(path, shuffle, extent.samples(), 1)?),
            None => None,
        },
    };
    builder.write(&mut writers)?;
    let mut maps = vec![writers.documents.commit()?, writers.samples.commit()?];
    if let Some(shuffle) = writers.shuffle {
        maps.push(shuffle.commit()?);
    }
    let record = MapRecord {
        version: 1,
        index,
        documents: set.describe(),
        order,
        seed,
        sequence_length: length,
        samples,
        tokens_per_epoch: extent.tokens,
        epochs: extent.epochs,
        maps,
    };
    place.finish(&record)?;
    Ok(record)
}

fn read(place: &MapPlace, record: &MapRecord) -> Result<MapFiles> {
    let MapRecord { tokens_per_epoch: tokens, epochs, sequence_length: length, .. } = *record;
    let extent = Extent::new(tokens, length, record.samples)?;
    let files = MapFiles {
        extent,
        documents: NpyFile::open(&place.maps[0], 1)?,
        samples: NpyFile::open(&place.maps[1], 2)?,
        shuffle: place.maps.get(2).map(|path| NpyFile::open(path, 1)).transpose()?,
    };
    let shuffled = files.shuffle.as_ref().is_none_or(|shuffle| shuffle.rows() == extent.samples());
    if extent.epochs != epochs || files.samples.rows() != extent.samples() + 1 || !shuffled {
        return Err(place.mismatch());
    }
    Ok(files)
}
