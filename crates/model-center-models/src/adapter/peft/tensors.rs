//! The tensors of a PEFT directory, by what they are for.

use super::{MAGNITUDE, SAVE_AGAIN};
use crate::adapter::PROMPT_EMBEDDINGS;
use crate::adapter::bottleneck;
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_formats::safetensors::{TensorEntry, TensorSource};
use std::collections::BTreeMap;

/// Suffix of an embedding's path in the name of its replaced rows.
const ROWS: &str = ".token_adapter.trainable_tokens_delta";
/// Parts of a path that PEFT's layers add to the path of the base model's module.
const WRAPPERS: [&str; 2] = [".token_adapter.base_layer.", ".base_layer."];

/// The tensors of one low-rank update.
#[derive(Debug, Default, Clone)]
pub(super) struct UpdateTensors {
    pub(super) a: Option<TensorEntry>,
    pub(super) b: Option<TensorEntry>,
    /// Bias of `lora_B`.
    pub(super) bias: Option<TensorEntry>,
    pub(super) magnitude: Option<TensorEntry>,
}

impl UpdateTensors {
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let all = [&self.a, &self.b, &self.bias, &self.magnitude];
        all.into_iter().flatten().map(|entry| entry.name.as_str())
    }
}

/// A tensor of the base model.
#[derive(Debug, Clone)]
pub(super) struct BaseTensor {
    pub(super) entry: TensorEntry,
    /// Whether PEFT has put a layer around its module, by its name.
    pub(super) is_wrapped: bool,
}

/// All tensors of a directory, most by the path of their module in the base model.
#[derive(Debug, Default)]
pub(super) struct PeftTensors {
    pub(super) updates: BTreeMap<String, UpdateTensors>,
    /// Updates of embeddings: `[R, V]` and `[D, R]`.
    pub(super) embeddings: BTreeMap<String, UpdateTensors>,
    /// `ia3_l`.
    pub(super) factors: BTreeMap<String, TensorEntry>,
    /// The tensors of the bottleneck after a module.
    pub(super) bottlenecks: BTreeMap<String, Vec<String>>,
    /// Rows that replace rows of an embedding.
    pub(super) rows: BTreeMap<String, TensorEntry>,
    /// Tensors of the base model by their names there.
    pub(super) base: BTreeMap<String, BaseTensor>,
    pub(super) virtual_tokens: Option<TensorEntry>,
    /// Their names in the file.
    pub(super) names: Vec<String>,
}

impl PeftTensors {
    /// # Errors
    /// A tensor whose name does not begin with `prefix`; two tensors for one place.
    pub(super) fn of(weights: &dyn TensorSource, prefix: &str) -> Result<Self> {
        let mut tensors = PeftTensors::default();
        for entry in weights.entries() {
            tensors.names.push(entry.name.clone());
            let refused = |reason: String| {
                let place = format!("{}, tensor {}", weights.place(), printable(&entry.name, 200));
                Error::model(place, reason, SAVE_AGAIN)
            };
            if entry.name == PROMPT_EMBEDDINGS {
                tensors.virtual_tokens = Some(entry.clone());
                continue;
            }
            let Some(name) = entry.name.strip_prefix(prefix) else {
                return Err(refused(format!("its name does not begin with \"{prefix}\"")));
            };
            if !entry.is_float() {
                return Err(refused(format!("its values are {:?}, not floats", entry.dtype)));
            }
            if tensors.place(name, entry).is_some() {
                return Err(refused("another tensor of the file is for the same place".to_owned()));
            }
        }
        Ok(tensors)
    }

    /// Put a tensor to its place; returns what was there.
    fn place(&mut self, name: &str, entry: &TensorEntry) -> Option<()> {
        let of = |end: &str| name.strip_suffix(end).map(str::to_owned);
        let new = Some(entry.clone());
        let old = if let Some(module) = of(".lora_A.weight") {
            std::mem::replace(&mut self.updates.entry(module).or_default().a, new)
        } else if let Some(module) = of(".lora_B.weight") {
            std::mem::replace(&mut self.updates.entry(module).or_default().b, new)
        } else if let Some(module) = of(".lora_B.bias") {
            std::mem::replace(&mut self.updates.entry(module).or_default().bias, new)
        } else if let Some(module) = of(MAGNITUDE) {
            std::mem::replace(&mut self.updates.entry(module).or_default().magnitude, new)
        } else if let Some(module) = of(".lora_embedding_A") {
            std::mem::replace(&mut self.embeddings.entry(module).or_default().a, new)
        } else if let Some(module) = of(".lora_embedding_B") {
            std::mem::replace(&mut self.embeddings.entry(module).or_default().b, new)
        } else if let Some(module) = of(".ia3_l") {
            self.factors.insert(module, entry.clone())
        } else if let Some(module) = of(ROWS) {
            self.rows.insert(module, entry.clone())
        } else if let Some(module) = bottleneck::TENSORS.iter().find_map(|end| of(end)) {
            self.bottlenecks.entry(module).or_default().push(entry.name.clone());
            None
        } else {
            let wrapper = WRAPPERS.iter().find(|wrapper| name.contains(*wrapper));
            let base = wrapper.map_or(name.to_owned(), |wrapper| name.replace(wrapper, "."));
            let tensor = BaseTensor { entry: entry.clone(), is_wrapped: wrapper.is_some() };
            self.base.insert(base, tensor).map(|old| old.entry)
        };
        old.map(drop)
    }
}

/// A directory's tensors of a module, under its path with the base model's prefix or without.
pub(super) fn of_module<'t, T>(
    all: &'t BTreeMap<String, T>,
    path: &str,
    base_prefix: &str,
) -> Option<(&'t String, &'t T)> {
    let bare = path.strip_prefix(base_prefix);
    [Some(path), bare].into_iter().flatten().find_map(|path| all.get_key_value(path))
}
