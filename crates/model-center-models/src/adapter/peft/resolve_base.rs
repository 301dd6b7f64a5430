//! The base model's own tensors in a PEFT directory: modules that are saved as a whole, biases, embeddings of another
//! vocabulary.

use super::changes::{BaseChange, Change};
use super::pattern::is_saved_module;
use super::resolve::{MERGE_IN_PEFT, Resolver, module_of};
use super::settings::Bias;
use super::tensors::{BaseTensor, PeftTensors, of_module};
use super::{PeftDirectory, SAVE_AGAIN};
use crate::adapter::plan::TrainedParam;
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_formats::{NameTable, TensorPart};
use std::collections::BTreeMap;

impl Resolver<'_> {
    /// Tensors of the base model: of modules that are saved as a whole, biases, and embeddings of another vocabulary.
    pub(super) fn base(&mut self) -> Result<()> {
        let settings = &self.saved.settings;
        self.refuse_partly_tied()?;
        let mut found: BTreeMap<&str, Vec<(TensorPart, &BaseTensor)>> = BTreeMap::new();
        for (name, tensor) in &self.saved.tensors.base {
            let module = module_of(name);
            if let Some(of) = self.model.alias_of(name) {
                self.tied(name, of, tensor)?;
                continue;
            }
            let Some((param, part)) = self.model.find(name) else { continue };
            // PEFT reads it under the name that it has beside the layers which it puts around modules.
            if tensor.is_wrapped != self.saved.is_wrapped(module) {
                continue;
            }
            if tensor.entry.shape != part.shape {
                let place = format!("{}, tensor {}", self.saved.place(), printable(&tensor.entry.name, 200));
                let reason = format!("its shape is {:?}, and the model has {:?}", tensor.entry.shape, part.shape);
                return Err(Error::model(place, reason, SAVE_AGAIN));
            }
            self.account.settle(&tensor.entry.name);
            found.entry(param).or_default().push((part.clone(), tensor));
        }
        for (param, shape, parts) in &self.model.params {
            let tensors = found.remove(param.as_str()).unwrap_or_default();
            let of_part = |part: &TensorPart| tensors.iter().find(|(own, _)| own.name == part.name);
            let is_saved = |part: &TensorPart| is_saved_module(&settings.saved_modules, module_of(&part.name));
            if let Some(part) = parts.iter().find(|part| is_saved(part) && of_part(part).is_none()) {
                return Err(
                    self.lacks(&format!("{} in it, which modules_to_save names, and", printable(&part.name, 120)))
                );
            }
            if tensors.is_empty() {
                continue;
            }
            let is_bias = |part: &TensorPart| settings.bias != Bias::None && part.name.ends_with(".bias");
            if parts.iter().all(|part| of_part(part).is_some() && (is_saved(part) || is_bias(part))) {
                let named = |part: &TensorPart| match of_part(part).is_some_and(|(_, tensor)| tensor.is_wrapped) {
                    true => TensorPart { name: wrapped(&part.name), ..part.clone() },
                    false => part.clone(),
                };
                let parts = parts.iter().map(named).collect();
                let (name, shape) = (param.clone(), shape.clone());
                self.plan.trained.push(TrainedParam { name, shape, parts, source: 0 });
                continue;
            }
            if parts.iter().all(|part| of_part(part).is_some()) {
                self.plan.stored.push((param.clone(), shape.iter().product()));
            }
            for (part, tensor) in &tensors {
                let (part, tensor) = (part.clone(), tensor.entry.name.clone());
                // Before what is added to it.
                let change = BaseChange { param: param.clone(), source: 0, change: Change::Part { part, tensor } };
                self.plan.changes.insert(0, change);
            }
        }
        // PEFT lists the names of all heads, such as `classifier` and `score`; a model has one of them.
        self.plan.modules_to_save.clone_from(&settings.saved_modules);
        Ok(())
    }

    /// A tensor that the model has under another name, `of`: the directory has to have the same values there.
    fn tied(&mut self, name: &str, of: &str, tensor: &BaseTensor) -> Result<()> {
        let bare = of.strip_prefix(self.model.names.base_prefix);
        let base = &self.saved.tensors.base;
        let Some(first) = [Some(of), bare].into_iter().flatten().find_map(|name| base.get(name)) else {
            let reason =
                format!("the model has one matrix for {} and {of}, and the file has no {of}", printable(name, 120));
            return Err(Error::model(self.saved.place(), reason, MERGE_IN_PEFT));
        };
        self.account.settle(&tensor.entry.name);
        self.plan.equal.push((0, tensor.entry.name.clone(), first.entry.name.clone()));
        Ok(())
    }

    /// A matrix that the model has once, where PEFT changes one of its copies and leaves the others.
    fn refuse_partly_tied(&self) -> Result<()> {
        let settings = &self.saved.settings;
        for alias in self.model.names.aliases.iter().filter(|alias| self.model.has_module_around(alias.name())) {
            if self.saved.keeps_tied(alias.name(), self.model.names) {
                continue;
            }
            let saved =
                [alias.name(), alias.of()].map(|name| is_saved_module(&settings.saved_modules, module_of(name)));
            if saved.contains(&true) {
                let reason = format!(
                    "modules_to_save names one of {} and {}, which are one matrix here; PEFT trains a copy",
                    module_of(alias.name()),
                    module_of(alias.of())
                );
                return Err(Error::model(self.saved.place(), reason, "train an adapter without it in modules_to_save"));
            }
        }
        Ok(())
    }
}

/// The name that PEFT has for a tensor of a module that it has put a layer around.
fn wrapped(name: &str) -> String {
    name.rsplit_once('.').map_or_else(|| name.to_owned(), |(module, end)| format!("{module}.base_layer.{end}"))
}

impl PeftDirectory {
    /// Whether a tied matrix stays one: PEFT was asked for it, and wrote it under this second name too. For embeddings
    /// other than `embed_tokens` PEFT 0.21 takes no notice of `ensure_weight_tying`, and writes one.
    pub(super) fn keeps_tied(&self, second: &str, names: &NameTable) -> bool {
        self.settings.ensures_tying && of_module(&self.tensors.base, second, names.base_prefix).is_some()
    }

    /// Whether PEFT puts a layer around this module of the base model.
    fn is_wrapped(&self, module: &str) -> bool {
        let PeftTensors { updates, embeddings, factors, rows, .. } = &self.tensors;
        updates.contains_key(module)
            || embeddings.contains_key(module)
            || factors.contains_key(module)
            || rows.contains_key(module)
    }
}
