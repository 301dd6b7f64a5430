//! How PEFT finds modules by names: lists of names, ends of names, and Python's regular expressions.
//!
//! Source: PEFT 0.21.2, `get_pattern_key`, `check_target_module_exists`, `_set_trainable`.

use crate::{Error, Result};
use model_center_base::file::printable;
use tokenizers::utils::SysRegex;

/// A regular expression that has to match a whole path.
pub(super) struct Whole(SysRegex);

impl std::fmt::Debug for Whole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Whole")
    }
}

impl Whole {
    /// # Errors
    /// A text that is not a regular expression, or one with parts that Python alone has.
    pub(super) fn new(pattern: &str, place: &str) -> Result<Self> {
        let compiled = SysRegex::new(&format!(r"\A(?:{pattern})\z"));
        compiled.map(Whole).map_err(|error| {
            let reason = format!("\"{}\" is not read as a regular expression: {error}", printable(pattern, 120));
            Error::model(place, printable(&reason, 300), "name the modules")
        })
    }

    pub(super) fn matches(&self, path: &str) -> bool {
        self.0.find_iter(path).next().is_some()
    }
}

/// Values of modules by patterns, as `rank_pattern` and `alpha_pattern` have them: a regular expression from the start
/// of the path or from any dot on, the first one that matches.
#[derive(Debug, Default)]
pub(super) struct Patterns<T>(Vec<(Whole, T)>);

impl<T: Copy> Patterns<T> {
    pub(super) fn add(&mut self, pattern: &str, value: T, place: &str) -> Result<()> {
        self.0.push((Whole::new(&format!(r"(?:.*\.)?(?:{pattern})"), place)?, value));
        Ok(())
    }

    pub(super) fn of(&self, path: &str) -> Option<T> {
        self.0.iter().find(|(pattern, _)| pattern.matches(path)).map(|(_, value)| *value)
    }
}

/// Value of `target_modules`.
#[derive(Debug, Default)]
pub(super) enum Targets {
    /// Nothing: PEFT took the model family's default and then wrote it down.
    #[default]
    Unstated,
    /// The linear layers of all blocks.
    AllLinear,
    /// Whole paths, or their ends from a dot on.
    Names(Vec<String>),
    /// A regular expression of whole paths.
    Pattern(Whole),
}

impl Targets {
    /// Whether PEFT makes an update for this module.
    pub(super) fn names(&self, path: &str) -> bool {
        match self {
            Targets::Unstated | Targets::AllLinear => true,
            Targets::Names(names) => names.iter().any(|name| ends_at_a_dot(path, name)),
            Targets::Pattern(pattern) => pattern.matches(path),
        }
    }
}

/// Whether a name is a whole path, or its end from a dot on.
pub(super) fn ends_at_a_dot(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Whether `modules_to_save` names this module or one that contains it: by any end of a path, without a dot before it.
pub(super) fn is_saved_module(names: &[String], path: &str) -> bool {
    let ends = path.match_indices('.').map(|(end, _)| end).chain([path.len()]);
    ends.into_iter().any(|end| names.iter().any(|name| !name.is_empty() && path[..end].ends_with(name.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_regular_expressions_from_any_dot_on_and_the_first_counts() {
        let mut patterns = Patterns::default();
        for (number, pattern) in
            ["self.attn.q_proj", r"layers\.[01]\.mlp\..*", "q_proj", "k_proj|v_proj"].iter().enumerate()
        {
            patterns.add(pattern, number, "p").unwrap();
        }
        for (path, number) in [
            ("model.layers.0.self_attn.q_proj", Some(0)),
            ("model.layers.0.mlp.q_proj", Some(1)),
            ("model.layers.2.mlp.q_proj", Some(2)),
            ("q_proj", Some(2)),
            ("model.my_q_proj", None),
            ("model.layers.0.self_attn.v_proj", Some(3)),
            ("model.layers.0.self_attn.v_proj.x", None),
        ] {
            assert_eq!(patterns.of(path), number, "{path}");
        }
        assert!(Whole::new("(", "p").is_err());
    }

    #[test]
    fn saved_modules_are_named_by_any_end_of_a_path() {
        let names = |name: &str| [name.to_owned()];
        let path = "model.layers.0.post_attention_layernorm";
        assert!(is_saved_module(&names("norm"), path) && is_saved_module(&names("layers.0"), path));
        assert!(!is_saved_module(&names("layer"), path) && !is_saved_module(&names(""), path));
        assert!(ends_at_a_dot(path, "post_attention_layernorm") && !ends_at_a_dot(path, "norm"));
    }
}
