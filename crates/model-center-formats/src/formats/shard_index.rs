//! The list of a model's shards, `model.safetensors.index.json` or the like: which file holds which tensor.
//!
//! Defines `Index` and [`shard_names`]; called by [`super::weights`], [`super::pretrained`] and the program that
//! fetches models.

use std::collections::HashMap;
use std::path::Path;

use serde::de::{Error as _, IgnoredAny, MapAccess};

use super::entries::{Entries, FromEntries};
use super::safetensors::TensorEntry;
use super::stored::tensor_place;
use crate::{Error, Result};
use model_center_base::file::{printable, read_text, resolve_inside};

/// The longest index that is read. A model of 100,000 tensors has one of about 10 MB.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Shards are kept open: this stays below the usual limit of 1,024 open files.
const MAX_SHARDS: usize = 512;
/// Tensors in all shards together.
const MAX_TENSORS: usize = 1 << 20;

/// The shards that the index `name` of a directory lists, each once. Names are as the file has them: anything.
pub fn shard_names(directory: &Path, name: &str) -> Result<Vec<String>> {
    Ok(Index::read(directory, name)?.shards)
}

/// A list of shards, such as `model.safetensors.index.json`: which shard holds which tensor.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) shards: Vec<String>,
    /// Tensor name to position in `shards`.
    map: HashMap<String, usize>,
}

impl Index {
    /// Read the index `name` of a directory.
    pub(super) fn read(directory: &Path, name: &str) -> Result<Self> {
        let text = read_text(&resolve_inside(directory, name)?, MAX_INDEX_BYTES)?;
        serde_json::from_str(&text).map(|Entries(IndexFile(index))| index).map_err(|e| {
            let place = format!("{}:{}:{}", directory.join(name).display(), e.line(), e.column());
            let reason = format!("invalid index: {}", printable(&e.to_string(), 300));
            Error::model(place, reason, "correct the file, or download it again")
        })
    }

    /// That the index lists exactly the tensors that the shards, in the order of [`Index::shards`], hold; `path` is its
    /// own.
    pub(super) fn compare(&self, path: &Path, held: &[Vec<&TensorEntry>]) -> Result<()> {
        let differ = |tensor: &str, reason: String| {
            let fix = "index and shards are from different models, or one is damaged: download all again";
            Err(Error::model(tensor_place(path.display(), tensor), reason, fix))
        };
        let shard = |position: usize| self.shards.get(position).map_or_else(String::new, |name| printable(name, 120));
        for (position, tensors) in held.iter().enumerate() {
            if let Some(entry) = tensors.iter().find(|entry| self.map.get(&entry.name) != Some(&position)) {
                return differ(&entry.name, format!("{} holds it, the index does not list it there", shard(position)));
            }
        }
        if held.iter().map(|tensors| tensors.len()).sum::<usize>() == self.map.len() {
            return Ok(());
        }
        let has = |tensors: &[&TensorEntry], name: &str| {
            tensors.binary_search_by(|entry| entry.name.as_str().cmp(name)).is_ok()
        };
        let absent =
            |(name, position): &(&String, &usize)| !held.get(**position).is_some_and(|tensors| has(tensors, name));
        match self.map.iter().filter(absent).min() {
            Some((name, &position)) => {
                differ(name, format!("the index puts it in {}, which does not hold it", shard(position)))
            }
            None => Ok(()),
        }
    }
}

/// The index itself, an object whose `weight_map` counts.
struct IndexFile(Index);

impl FromEntries for IndexFile {
    const EXPECTED: &'static str = "an object with a weight_map";

    fn from_entries<'de, A: MapAccess<'de>>(mut access: A) -> Result<Self, A::Error> {
        let mut index = None;
        while let Some(key) = access.next_key::<String>()? {
            if key != "weight_map" {
                access.next_value::<IgnoredAny>()?;
            } else if index.replace(access.next_value::<Entries<Index>>()?.0).is_some() {
                return Err(A::Error::custom("weight_map appears twice"));
            }
        }
        index.map(IndexFile).ok_or_else(|| A::Error::custom("there is no weight_map"))
    }
}

impl FromEntries for Index {
    const EXPECTED: &'static str = "an object from tensor name to file name";

    fn from_entries<'de, A: MapAccess<'de>>(mut access: A) -> Result<Self, A::Error> {
        let mut index = Index { shards: Vec::new(), map: HashMap::new() };
        let mut positions: HashMap<String, usize> = HashMap::new();
        while let Some((tensor, shard)) = access.next_entry::<String, String>()? {
            if index.map.len() == MAX_TENSORS {
                return Err(A::Error::custom(format_args!("more than {MAX_TENSORS} tensors")));
            }
            let position = match positions.get(&shard) {
                Some(&position) => position,
                None if index.shards.len() == MAX_SHARDS => {
                    return Err(A::Error::custom(format_args!("more than {MAX_SHARDS} shards")));
                }
                None => {
                    index.shards.push(shard.clone());
                    positions.insert(shard, index.shards.len() - 1);
                    index.shards.len() - 1
                }
            };
            if index.map.insert(tensor.clone(), position).is_some() {
                return Err(A::Error::custom(format_args!("tensor {} appears twice", printable(&tensor, 80))));
            }
        }
        if index.map.is_empty() {
            return Err(A::Error::custom("the weight_map is empty"));
        }
        Ok(index)
    }
}
