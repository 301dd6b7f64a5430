//! The linear layers and parameters of a model under Hugging Face's names of modules.

use super::config::ALL_LINEAR;
use crate::{Error, Result};
use bmtrain_dist::Parameters;
use bmtrain_dist::nn::{LinearLayer, TensorSplit};
use bmtrain_dist::param::NamePatterns;
use model_center_base::suggest::closest;
use model_center_formats::{NameTable, TensorPart};

/// A module of Hugging Face's model that is a linear layer of ours, or a part of a fused one.
#[derive(Debug, Clone)]
pub(super) struct LinearModule {
    /// Its path, such as `model.layers.0.self_attn.q_proj`.
    pub(super) path: String,
    /// Ours.
    pub(super) layer: LinearLayer,
    /// Its weight as a part of ours.
    pub(super) part: TensorPart,
}

impl LinearModule {
    /// The last name of its path.
    pub(super) fn last_name(&self) -> &str {
        last_name(&self.path)
    }

    /// Whether it multiplies by the vocabulary.
    pub(super) fn is_vocabulary(&self) -> bool {
        self.layer.split == TensorSplit::Vocabulary
    }

    /// Whether targets name it: in a block by [`ALL_LINEAR`], anywhere but as the output projection by its name.
    pub(super) fn is_target(&self, targets: &[String]) -> bool {
        let all = targets.iter().any(|target| target == ALL_LINEAR);
        (all && self.layer.is_in_block) || (!self.is_vocabulary() && names_module(targets, &self.path))
    }
}

/// The last name of a path.
pub(super) fn last_name(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

/// All of a model, in the order of its layers.
pub(super) fn linear_modules(parameters: &Parameters, names: &NameTable) -> Result<Vec<LinearModule>> {
    let mut modules = Vec::new();
    for layer in parameters.linear_layers() {
        for part in names.pieces(&layer.weight(), &[layer.rows(), layer.inputs], true)? {
            let path = part.name.strip_suffix(".weight").unwrap_or(&part.name).to_owned();
            modules.push(LinearModule { path, layer: layer.clone(), part });
        }
    }
    Ok(modules)
}

/// Whether one of these names is a module's: its whole path, or the path from any dot on. `*` stands for any text.
pub(super) fn names_module(targets: &[String], path: &str) -> bool {
    let patterns = targets.iter().flat_map(|target| [target.clone(), format!("*.{target}")]);
    NamePatterns::new(patterns).matches(path)
}

/// As [`names_module`] of the module or of any that contains it.
pub(super) fn names_ancestor(targets: &[String], path: &str) -> bool {
    let ends = path.match_indices('.').map(|(end, _)| end).chain([path.len()]);
    ends.into_iter().any(|end| names_module(targets, &path[..end]))
}

/// Refuse targets that are names of no layer, or of the output projection.
pub(super) fn check_targets(targets: &[String], modules: &[LinearModule]) -> Result<()> {
    let wrong = |reason: String, fix: String| Error::argument("adapter.targets", reason, fix);
    let known = || {
        let mut names: Vec<&str> =
            modules.iter().filter(|module| !module.is_vocabulary()).map(LinearModule::last_name).collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    for target in targets.iter().filter(|target| *target != ALL_LINEAR) {
        let named = || modules.iter().filter(|module| names_module(std::slice::from_ref(target), &module.path));
        if let Some(module) = named().find(|module| module.is_vocabulary()) {
            let reason = format!("\"{target}\" is {}, the output projection, which has no update", module.path);
            return Err(wrong(reason, "remove it, or train it as a whole with adapter.trained".to_owned()));
        }
        if named().next().is_none() {
            let names = known();
            let meant = closest(target, names.iter().copied())
                .map(|name| format!("did you mean \"{name}\"? "))
                .unwrap_or_default();
            let reason = format!("no linear layer of the model is named \"{target}\"");
            return Err(wrong(
                reason,
                format!("{meant}its layers are {}; \"all-linear\" is all of them", names.join(", ")),
            ));
        }
    }
    Ok(())
}

/// PEFT's names for the chosen modules: the last name where all modules that have it are chosen, else whole paths.
pub(super) fn target_modules<'m>(chosen: impl Iterator<Item = &'m LinearModule>, all: &[LinearModule]) -> Vec<String> {
    let chosen: Vec<&LinearModule> = chosen.collect();
    let is_chosen = |path: &str| chosen.iter().any(|module| module.path == path);
    let name_of = |module: &&LinearModule| {
        let name = module.last_name();
        let is_whole = all.iter().filter(|other| other.last_name() == name).all(|other| is_chosen(&other.path));
        if is_whole { name.to_owned() } else { module.path.clone() }
    };
    let mut names: Vec<String> = chosen.iter().map(name_of).collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_whole_paths_or_their_ends() {
        let path = "model.layers.11.self_attn.q_proj";
        for (target, is_named) in [
            ("q_proj", true),
            ("self_attn.q_proj", true),
            ("model.layers.11.self_attn.q_proj", true),
            ("model.layers.1*.self_attn.q_proj", true),
            ("*", true),
            ("proj", false),
            ("self_attn", false),
            ("layers.1.self_attn.q_proj", false),
        ] {
            assert_eq!(names_module(&[target.to_owned()], path), is_named, "{target}");
        }
        assert!(names_ancestor(&["self_attn".to_owned()], path));
        assert!(!names_ancestor(&["attn".to_owned()], path));
        assert_eq!(last_name(path), "q_proj");
    }
}
