//! The linear layers and parameters of a model under Hugging Face's names of modules.

use crate::Result;
use crate::formats::{NameTable, TensorPart};
use bmtrain_dist::Parameters;
use bmtrain_dist::nn::{LinearLayer, TensorSplit};
use bmtrain_dist::param::NamePatterns;

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
