//! One hash of the contents of a checkpoint, however they are divided into files: equal digests mean equal bits of all
//! tensors.
//!
//! The recipe is frozen: for every tensor, sorted by name and kind, the lengths and texts of name, kind and dtype, the
//! shape, and the elements, all numbers as little-endian 64-bit words.

use super::coverage::LogicalTensor;
use super::hash::ContentHash;
use super::opened::Checkpoint;
use crate::error::Result;
use serde_json::Value;
use std::fmt;

/// The hashes of a checkpoint's contents. Displays as the hash of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    /// All tensors.
    pub tensors: ContentHash,
    /// The free state: scaler, schedules, position in the data, counters.
    pub state: ContentHash,
    /// The step, the tensors and the state, without layout, number of files and recipe.
    pub all: ContentHash,
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all.fmt(f)
    }
}

impl Checkpoint {
    /// The digest. Reads everything once, a fraction of a megabyte at a time, and checks it on the way.
    pub fn digest(&self) -> Result<Digest> {
        let mut hash = blake3::Hasher::new();
        number(&mut hash, self.tensors().len() as u64);
        for tensor in self.tensors() {
            title(&mut hash, tensor);
            self.stream(tensor, &mut |bytes| {
                hash.update(bytes);
                Ok(())
            })?;
        }
        let tensors: ContentHash = hash.finalize().into();
        let mut state = Value::Object(self.manifest().facts.state.clone());
        state.sort_all_objects();
        let state = ContentHash::of(state.to_string().as_bytes());
        let mut all = blake3::Hasher::new();
        number(&mut all, self.manifest().step);
        all.update(tensors.as_bytes()).update(state.as_bytes());
        Ok(Digest { tensors, state, all: all.finalize().into() })
    }
}

fn title(hash: &mut blake3::Hasher, tensor: &LogicalTensor) {
    for text in [tensor.name.as_str(), &tensor.kind.to_string(), tensor.dtype.name()] {
        number(hash, text.len() as u64);
        hash.update(text.as_bytes());
    }
    number(hash, tensor.shape.len() as u64);
    tensor.shape.iter().for_each(|&dimension| number(hash, dimension));
}

fn number(hash: &mut blake3::Hasher, number: u64) {
    hash.update(&number.to_le_bytes());
}
