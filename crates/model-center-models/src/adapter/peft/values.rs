//! The values of PEFT directories under our names.

use super::{PREFIX, PeftDirectory, SAVE_AGAIN};
use crate::adapter::PROMPT_EMBEDDINGS;
use crate::adapter::plan::AdapterPlan;
use crate::adapter::virtual_tokens::TokenTables;
use crate::{Error, Result};
use bmtrain_dist::Parameters;
use bmtrain_dist::param::Param;
use model_center_base::file::printable;
use model_center_formats::Weights;
use model_center_formats::safetensors::{TensorEntry, TensorSource};
use std::collections::HashMap;

/// The tensors of a directory, to be read by name.
pub(super) struct AdapterTensors {
    weights: Weights,
    entries: HashMap<String, TensorEntry>,
}

impl AdapterTensors {
    fn of(weights: Weights) -> Self {
        let entries = weights.entries().into_iter().map(|entry| (entry.name.clone(), entry.clone())).collect();
        AdapterTensors { weights, entries }
    }

    fn wrong(&self, name: &str, reason: String) -> Error {
        let place = format!("{}, tensor {}", self.weights.place(), printable(name, 200));
        Error::model(place, reason, SAVE_AGAIN)
    }

    fn entry(&self, name: &str) -> Result<&TensorEntry> {
        self.entries.get(name).ok_or_else(|| self.wrong(name, "it is missing".to_owned()))
    }

    /// All values of a tensor, which have to be finite.
    pub(super) fn read(&self, name: &str) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.entry(name)?.elements().unwrap_or(0)];
        self.weights.read_f32(name, &mut values)?;
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok(values),
            Some(at) => {
                let reason = format!("its value {at} is {}, and adapters are of finite numbers", values[at]);
                Err(self.wrong(name, reason))
            }
        }
    }

    /// As [`AdapterTensors::read`] of a tensor that has to have this shape.
    fn read_shaped(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        if self.entry(name)?.shape != shape {
            return Err(self.wrong(name, format!("it is not of shape {shape:?}, as the model has it")));
        }
        self.read(name)
    }
}

/// The values of PEFT directories, opened.
pub struct SavedValues<'p> {
    plan: &'p AdapterPlan,
    /// Directories with their tensors.
    sources: Vec<(&'p PeftDirectory, AdapterTensors)>,
}

impl std::fmt::Debug for SavedValues<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SavedValues").field("plan", self.plan).finish_non_exhaustive()
    }
}

impl SavedValues<'_> {
    /// The full values of a parameter that a directory has as a whole, with its changes; `None` of any other.
    ///
    /// # Errors
    /// A tensor of another shape than the parameter's; values that are not finite; what the disk refuses.
    pub fn get(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some((saved, tensors)) = self.sources.get(self.plan.source_of(name)) else { return Ok(None) };
        if let Some(tables) =
            self.plan.virtual_tokens.as_ref().filter(|tables| tables.names.iter().any(|own| own == name))
        {
            return table(tables, name, tensors).map(Some);
        }
        if let Some((_, count)) = self.plan.stored.iter().find(|(stored, _)| stored == name) {
            let mut values = vec![0.0; *count];
            self.change(name, &mut values)?;
            return Ok(Some(values));
        }
        let parts = self.plan.parts(name);
        let found = parts.iter().map(|part| saved.find(&part.name, self.plan.base_prefix));
        let Some(found) = found.collect::<Option<Vec<String>>>().filter(|found| !found.is_empty()) else {
            return Ok(None);
        };
        let mut values = vec![0.0; parts.iter().map(|part| part.elements().len()).sum()];
        for (part, theirs) in parts.iter().zip(&found) {
            part.arrange(&tensors.read_shaped(theirs, &part.shape)?, &mut values[part.elements()]);
        }
        self.change(name, &mut values)?;
        Ok(Some(values))
    }

    /// Change the values of a parameter of the base model as the directories change it when they are opened. Returns
    /// whether one does.
    ///
    /// # Errors
    /// As [`SavedValues::get`].
    pub fn change(&self, name: &str, values: &mut [f32]) -> Result<bool> {
        let mut is_changed = false;
        for change in self.plan.changes.iter().filter(|change| change.param == name) {
            let Some((_, tensors)) = self.sources.get(change.source) else { continue };
            change.change.apply(tensors, values)?;
            is_changed = true;
        }
        Ok(is_changed)
    }

    /// Tensors that the base model has once, and the directory under two names, have to be equal.
    fn check_tied(&self) -> Result<()> {
        for (source, first, second) in &self.plan.equal {
            let Some((_, tensors)) = self.sources.get(*source) else { continue };
            if tensors.read(first)? != tensors.read(second)? {
                let reason = format!("the model has one matrix for it and for {}, and their values differ", second);
                return Err(tensors.wrong(first, reason));
            }
        }
        Ok(())
    }
}

/// The values of one of the tables of virtual tokens.
fn table(tables: &TokenTables, name: &str, tensors: &AdapterTensors) -> Result<Vec<f32>> {
    let TokenTables { names, tokens, size, kv_heads } = tables;
    let shape = tables.shape();
    let number = names.iter().position(|other| other == name).unwrap_or(0);
    // PEFT keeps rows for a decoder that it does not read.
    let fits = |entry: &TensorEntry| entry.shape == shape || (kv_heads.is_none() && entry.shape == [2 * tokens, *size]);
    if !tensors.entry(PROMPT_EMBEDDINGS).is_ok_and(fits) {
        let reason = format!("it is missing, or not of shape {shape:?}, as the model has it");
        return Err(tensors.wrong(PROMPT_EMBEDDINGS, reason));
    }
    let whole = tensors.read(PROMPT_EMBEDDINGS)?;
    Ok(tables.ranges(number).flat_map(|range| whole.get(range).unwrap_or_default().iter().copied()).collect())
}

impl PeftDirectory {
    /// The name that the file has for this tensor: with the base model's prefix or without.
    fn find(&self, name: &str, base_prefix: &str) -> Option<String> {
        let prefix = if name.starts_with(PREFIX) { PREFIX } else { super::VIRTUAL_PREFIX };
        let bare = name.strip_prefix(prefix)?.strip_prefix(base_prefix).map(|bare| format!("{prefix}{bare}"));
        let names = &self.tensors.names;
        [Some(name.to_owned()), bare].into_iter().flatten().find(|name| names.binary_search(name).is_ok())
    }
}

impl AdapterPlan {
    /// The values of the PEFT directories; `None` of new updates.
    ///
    /// # Errors
    /// A file that cannot be read; two tensors that have to be equal and are not.
    pub fn saved_values(&self) -> Result<Option<SavedValues<'_>>> {
        if self.saved.is_empty() {
            return Ok(None);
        }
        let sources = self
            .saved
            .iter()
            .map(|saved| Ok((&**saved, AdapterTensors::of(saved.weights()?))))
            .collect::<Result<_>>()?;
        let values = SavedValues { plan: self, sources };
        values.check_tied()?;
        Ok(Some(values))
    }

    /// Which of the directories has this parameter.
    fn source_of(&self, name: &str) -> usize {
        let of_update = self.updates.iter().find(|update| update.parameters().any(|other| other == name));
        let of_trained = || self.trained.iter().find(|param| param.name == name).map(|param| param.source);
        of_update.map(|update| update.source).or_else(of_trained).unwrap_or(0)
    }

    /// Load the values of the PEFT directories, if there are any, into the model's parameters that this rank holds, and
    /// change the base model's as they do; `base` reads the full values of one of these. New updates and modules that
    /// the directories do not have are left as they are.
    ///
    /// # Errors
    /// As [`SavedValues::get`] and `base`.
    pub fn load(&self, parameters: &Parameters, base: &mut dyn FnMut(&str, &mut Vec<f32>) -> Result<()>) -> Result<()> {
        let Some(saved) = self.saved_values()? else { return Ok(()) };
        for param in self.written().filter_map(|name| parameters.get(name)) {
            if let Some(values) = saved.get(param.name())? {
                load(param, &values)?;
            }
        }
        for name in self.changed().filter(|name| !self.trained().any(|trained| trained == *name)) {
            let Some(param) = parameters.get(name) else { continue };
            let values = match saved.get(name)? {
                Some(values) => values,
                None => {
                    let mut values = Vec::new();
                    base(name, &mut values)?;
                    saved.change(name, &mut values)?;
                    values
                }
            };
            load(param, &values)?;
        }
        Ok(())
    }

    /// Our names of the base model's parameters that the directories have as a whole.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = &str> {
        let stored = self.stored.iter().map(|(name, _)| name.as_str());
        self.trained().filter(|_| !self.saved.is_empty()).chain(stored)
    }

    /// Our names of the base model's parameters that the directories change when they are opened, each once.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &str> {
        let is_first = |number: usize, name: &str| self.changes[..number].iter().all(|other| other.param != name);
        let names = self.changes.iter().enumerate().map(|(number, change)| (number, change.param.as_str()));
        names.filter(move |(number, name)| is_first(*number, name)).map(|(_, name)| name)
    }

    /// Set virtual tokens to the embeddings of these tokens, repeated or truncated to their number. `table` is the full
    /// token embedding.
    ///
    /// # Errors
    /// A text without tokens; a token that the table has no row for.
    pub(crate) fn begin_with(&self, ids: &[u32], table: &[f32], parameters: &Parameters) -> Result<()> {
        let Some(TokenTables { names, tokens, size, .. }) = &self.virtual_tokens else { return Ok(()) };
        let wrong = |reason: &str| Error::argument("adapter.prompt_text", reason, "give another text");
        if ids.is_empty() {
            return Err(wrong("it has no tokens"));
        }
        let rows = ids.iter().cycle().take(names.len() * tokens);
        let mut values = Vec::with_capacity(names.len() * tokens * size);
        for id in rows {
            let start = *id as usize * size;
            let row = table.get(start..start + size);
            values.extend_from_slice(row.ok_or_else(|| wrong("the model has no embedding of one of its tokens"))?);
        }
        for (name, values) in names.iter().zip(values.chunks(tokens * size)) {
            if let Some(param) = parameters.get(name) {
                load(param, values)?;
            }
        }
        Ok(())
    }
}

/// Set the values of a parameter from the full ones.
pub(in crate::adapter) fn load(param: &Param, values: &[f32]) -> Result<()> {
    param.load_part(&mut |first, out: &mut [f32]| {
        out.copy_from_slice(&values[first..first + out.len()]);
        Ok::<_, Error>(())
    })
}
