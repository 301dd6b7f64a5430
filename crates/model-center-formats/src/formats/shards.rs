//! Write a model's weights into a directory: one file, or shards and their index.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::safetensors::{SafetensorsWriter, TensorEntry};
use super::weights::{INDEX_FILE, is_weights_file, shard_path};
use crate::{Error, Result};
use model_center_base::file::{sync_directory, unreadable, write_atomic};
use model_center_base::json::to_text;

/// The largest shard by default, in bytes of tensors: what `transformers` writes and hubs accept.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// All shards are open while they are written: this stays below the usual limit of 1,024 open files.
const MAX_SHARDS: usize = 512;

/// Weights being written into a directory.
///
/// Tensors may come in any order; nothing shows under its name before [`ShardedWriter::finish`].
#[derive(Debug)]
pub struct ShardedWriter {
    directory: PathBuf,
    shards: Vec<SafetensorsWriter>,
    position: HashMap<String, usize>,
    bytes: u64,
    elements: u64,
}

impl ShardedWriter {
    /// Start writing the given tensors into `directory`, which exists. Names are dealt to shards in sorted order, each
    /// shard of at most `shard_bytes`, unless a single tensor is larger; more than 512 shards are an error.
    pub fn create(directory: &Path, tensors: &[TensorEntry], shard_bytes: u64) -> Result<Self> {
        let bad = |reason: String, fix: &str| Error::model(directory.display().to_string(), reason, fix.to_string());
        let mut sorted: Vec<&TensorEntry> = tensors.iter().collect();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        let (mut shards, mut room): (Vec<Vec<TensorEntry>>, u64) = (Vec::new(), 0);
        let (mut position, mut total, mut elements) = (HashMap::new(), 0u64, 0u64);
        for entry in sorted {
            let bytes =
                entry.bytes().ok_or_else(|| bad(format!("the size of {} overflows", entry.name), "shrink it"))? as u64;
            if shards.is_empty() || bytes > room {
                shards.push(Vec::new());
                room = shard_bytes;
            }
            room = room.saturating_sub(bytes);
            total += bytes;
            elements += entry.elements().unwrap_or(0) as u64;
            let last = shards.len() - 1;
            shards[last].push(entry.clone());
            if position.insert(entry.name.clone(), last).is_some() {
                return Err(bad(format!("two tensors are named {}", entry.name), "give each its own name"));
            }
        }
        if shards.is_empty() || shards.len() > MAX_SHARDS {
            let fix = format!("write at least one tensor, and at most {MAX_SHARDS} shards: raise the shard size");
            return Err(bad(format!("the weights would be {} files", shards.len()), &fix));
        }
        let writers = shards
            .iter()
            .enumerate()
            .map(|(i, entries)| SafetensorsWriter::create(&shard_path(directory, i + 1, shards.len()), entries))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { directory: directory.to_path_buf(), shards: writers, position, bytes: total, elements })
    }

    /// Write one tensor from single precision, see [`SafetensorsWriter::write_f32`].
    pub fn write_f32(&mut self, name: &str, values: &[f32]) -> Result<()> {
        match self.position.get(name) {
            Some(&shard) => self.shards[shard].write_f32(name, values),
            None => Err(Error::model(
                format!("{}, tensor {name}", self.directory.display()),
                "the tensor was not announced",
                "announce every tensor before writing",
            )),
        }
    }

    /// Flushes everything to the disk, renames it into place, and removes the directory's previous weights.
    ///
    /// Between the first and the last rename a directory of shards has no index, so that a crash leaves weights that
    /// are refused rather than a mixture that is read.
    pub fn finish(self) -> Result<()> {
        let count = self.shards.len();
        let mut names: Vec<String> = Vec::new();
        let mut complete = Vec::new();
        for (i, shard) in self.shards.into_iter().enumerate() {
            complete.push(shard.complete()?);
            names.push(
                shard_path(&self.directory, i + 1, count)
                    .file_name()
                    .map_or_else(String::new, |n| n.to_string_lossy().into()),
            );
        }
        if count > 1 {
            remove(&self.directory.join(INDEX_FILE))?;
            sync_directory(Some(&self.directory))?;
        }
        for file in complete {
            file.commit()?;
        }
        let mut kept = names.clone();
        if count > 1 {
            let map: Map<String, Value> =
                self.position.iter().map(|(name, &i)| (name.clone(), json!(names[i]))).collect();
            let mut map = Value::Object(map);
            map.sort_all_objects();
            let metadata = json!({ "total_parameters": self.elements, "total_size": self.bytes });
            let index = [("metadata".to_string(), metadata), ("weight_map".to_string(), map)].into_iter().collect();
            write_atomic(&self.directory.join(INDEX_FILE), to_text(&index).as_bytes())?;
            kept.push(INDEX_FILE.to_string());
        }
        remove_stale(&self.directory, &kept)
    }
}

/// Remove weights under the names that this module writes and that were not written now: beside the new ones they
/// would make the directory ambiguous.
fn remove_stale(directory: &Path, kept: &[String]) -> Result<()> {
    let list = fs::read_dir(directory).map_err(|e| unreadable(directory, e))?;
    for entry in list.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_weights_file(&name) && !kept.contains(&name) {
            remove(&entry.path())?;
        }
    }
    sync_directory(Some(directory))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::file("replace", path, e, "remove the file by hand, or write into another directory"))
        }
        _ => Ok(()),
    }
}
