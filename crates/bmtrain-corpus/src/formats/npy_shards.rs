//! Shards of documents as NumPy arrays: a directory of `.npy` files and `sizes.txt`, a JSON object with the number of
//! tokens of each.
//!
//! A shard is an array of objects, each the ids of a document as an array or list; an array of integers alone is one
//! document, and one of two axes a document for each row, as NumPy makes of documents of one length. Defines
//! [`NpyDocuments`]; `npy_writer` writes shards.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use super::numpy::{Array, ArrayData, Pickled, StoredInteger, read_integers, read_pickle};
use super::{DocumentPart, StatedCounts, TokenDocuments, sized};
use crate::{Error, Result};
use model_center_base::file::read_text;
use model_center_data::corpus::{npy::NpyHeader, positioned::PositionedFile};
use model_center_formats::pickle::{Id, PlainPickle};

/// The file with the numbers of tokens.
pub(super) const SIZES: &str = "sizes.txt";
const MAX_SIZES_BYTES: u64 = 64 << 20;

/// The documents of shards.
#[derive(Debug)]
pub(super) struct NpyDocuments {
    key: String,
    shards: VecDeque<Shard>,
    open: Option<OpenShard>,
    total: u64,
    read: u64,
    in_document: bool,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    bytes: u64,
    /// Tokens by `sizes.txt`.
    tokens: Option<u64>,
}

#[derive(Debug)]
struct OpenShard {
    shard: Shard,
    file: PositionedFile,
    contents: Contents,
    next: u64,
    documents: u64,
    tokens: u64,
}

#[derive(Debug)]
enum Contents {
    /// Rows of integers.
    Rows { at: u64, columns: u64, integer: StoredInteger },
    /// A pickled array of documents, with them as its objects or, where all have one length, as its rows.
    Objects { pickle: PlainPickle, documents: Vec<Id> },
}

impl NpyDocuments {
    /// Opens a directory with `sizes.txt`, or a single array.
    pub(super) fn open(path: &Path, key: &str) -> Result<NpyDocuments> {
        let shards = if path.is_dir() { listed(path)? } else { vec![(path.to_owned(), None)] };
        let (paths, tokens): (Vec<PathBuf>, Vec<Option<u64>>) = shards.into_iter().unzip();
        let shards: VecDeque<Shard> = sized(paths)?
            .into_iter()
            .zip(tokens)
            .map(|((path, bytes), tokens)| Shard { path, bytes, tokens })
            .collect();
        let total = shards.iter().map(|shard| shard.bytes).sum();
        Ok(NpyDocuments { key: key.to_owned(), shards, open: None, total, read: 0, in_document: false })
    }

    fn open_next(&mut self) -> Result<bool> {
        let Some(shard) = self.shards.pop_front() else { return Ok(false) };
        let file = PositionedFile::open(&shard.path)?;
        let NpyHeader { descr, fortran_order, shape, data } = NpyHeader::read(&file)?;
        let wrong =
            || file.corrupt(format!("an array of type {descr} and shape {shape:?} has no documents of token ids"));
        let (contents, documents) = if descr == "|O" {
            let (pickle, _) = read_pickle(&file, data, file.length())?;
            let (root, pickled) = (pickle.root(), Pickled { file: &file, pickle: &pickle });
            let list = match pickled.array(root) {
                Some(Array { shape, data: ArrayData::Objects(list) }) if shape.len() == 1 => list,
                _ => root,
            };
            let documents = pickle.members(list).ok_or_else(wrong)?.to_vec();
            let count = documents.len() as u64;
            if shape[..] != [count] {
                return Err(file.corrupt(format!("{count} documents in an array of shape {shape:?}")));
            }
            (Contents::Objects { pickle, documents }, count)
        } else {
            let integer = StoredInteger::of(&descr).ok_or_else(wrong)?;
            let (rows, columns) = match shape[..] {
                [ids] => (1, ids),
                [rows, columns] if !fortran_order => (rows, columns),
                _ => return Err(wrong()),
            };
            let bytes = rows.checked_mul(columns).and_then(|ids| ids.checked_mul(integer.bytes)?.checked_add(data));
            if bytes != Some(file.length()) {
                return Err(
                    file.corrupt(format!("the shape {shape:?} does not fit the file's {} bytes", file.length()))
                );
            }
            (Contents::Rows { at: data, columns, integer }, rows)
        };
        self.open = Some(OpenShard { shard, file, contents, next: 0, documents, tokens: 0 });
        Ok(true)
    }
}

impl TokenDocuments for NpyDocuments {
    fn advance(&mut self, ids: &mut Vec<u32>) -> Result<Option<DocumentPart>> {
        if std::mem::take(&mut self.in_document) {
            return Ok(Some(DocumentPart::End));
        }
        loop {
            let Some(open) = &mut self.open else {
                if self.open_next()? {
                    continue;
                }
                return Ok(None);
            };
            if open.next < open.documents {
                open.document(&self.key, ids)?;
                self.in_document = true;
                return Ok(Some(DocumentPart::Sequence));
            }
            open.check_tokens()?;
            self.read += open.shard.bytes;
            self.open = None;
        }
    }

    fn total_bytes(&self) -> u64 {
        self.total
    }

    fn stated(&self) -> StatedCounts {
        StatedCounts { documents: None, tokens: self.shards.iter().map(|shard| shard.tokens).sum() }
    }

    fn read_bytes(&self) -> u64 {
        let part =
            |open: &OpenShard| (open.shard.bytes as f64 * open.next as f64 / open.documents.max(1) as f64) as u64;
        self.read + self.open.as_ref().map_or(0, part)
    }
}

impl OpenShard {
    fn document(&mut self, key: &str, ids: &mut Vec<u32>) -> Result<()> {
        ids.clear();
        match &mut self.contents {
            Contents::Rows { at, columns, integer } => {
                let at = *at + self.next * *columns * integer.bytes;
                read_integers(&self.file, at, *columns, *integer, ids)?;
            }
            Contents::Objects { pickle, documents } => {
                let document = documents[self.next as usize];
                Pickled { file: &self.file, pickle }.ids(document, key, ids)?;
            }
        }
        self.next += 1;
        self.tokens += ids.len() as u64;
        Ok(())
    }

    fn check_tokens(&self) -> Result<()> {
        match self.shard.tokens {
            Some(stated) if stated != self.tokens => {
                let reason = format!("the file has {} tokens, and {SIZES} states {stated}", self.tokens);
                Err(self.file.corrupt(reason))
            }
            _ => Ok(()),
        }
    }
}

/// The shards of a directory, in the order of `sizes.txt`.
fn listed(directory: &Path) -> Result<Vec<(PathBuf, Option<u64>)>> {
    let path = directory.join(SIZES);
    let text = read_text(&path, MAX_SIZES_BYTES).map_err(model_center_formats::io::input::of_data)?;
    let wrong = |reason: String| {
        let fix = "write a JSON object with the number of tokens of each .npy file in it, or name the files alone";
        Error::data(path.display().to_string(), reason, fix)
    };
    let sizes: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    let shard = |(name, tokens): (&String, &serde_json::Value)| {
        // Paths of another machine, as some writers leave them, are taken by their last part.
        let name = name.rsplit('/').next().unwrap_or_default();
        model_center_base::file::check_name(directory, name).map_err(model_center_formats::io::input::of_data)?;
        let tokens = tokens.as_u64().ok_or_else(|| wrong(format!("{name} has {tokens}, no number of tokens")))?;
        Ok((directory.join(name), Some(tokens)))
    };
    sizes.iter().map(shard).collect()
}
