//! Which parameters are not trained: by patterns of names, for the birth of a model and for a change of mind, and as a
//! mask of full names, which a checkpoint keeps.
//!
//! Freezing moves nothing. A frozen parameter keeps its place and its optimizer state; no gradient is made for it, the
//! norm and the optimizer pass it by, and once it is trained again its moments go on where they stood. Defines
//! [`NamePatterns`] and [`FreezeMask`]; called by whoever builds, opens or resumes a model.

use super::Parameters;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Patterns of parameter names; `*` stands for any run of characters, dots included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamePatterns(Vec<String>);

impl NamePatterns {
    /// A name belongs to the set if any pattern fits the whole of it.
    pub fn new(patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        NamePatterns(patterns.into_iter().map(Into::into).collect())
    }

    /// Whether a name belongs to the set.
    pub fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| fits(pattern, name))
    }

    /// Patterns that fit no name of the model: most likely a slip of the pen.
    pub fn idle(&self, parameters: &Parameters) -> Vec<&str> {
        let fits_none = |pattern: &&String| !parameters.iter().any(|param| fits(pattern, param.name()));
        self.0.iter().filter(fits_none).map(String::as_str).collect()
    }
}

/// Whether a pattern fits the whole of a name.
fn fits(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(head) else { return false };
    // Each piece is taken where it first occurs; only the last one has to reach the end.
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some(at) = left.find(piece) else { return false };
        left = &left[at + piece.len()..];
    }
    left.ends_with(last)
}

/// The parameters that are frozen, by full name; all others are trained.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FreezeMask {
    /// Full names, in alphabetical order.
    pub frozen: BTreeSet<String>,
}

impl Parameters {
    /// Which parameters are frozen now.
    pub fn freeze_mask(&self) -> FreezeMask {
        let frozen = self.iter().filter(|param| !param.is_trainable());
        FreezeMask { frozen: frozen.map(|param| param.name().to_owned()).collect() }
    }

    /// Freeze exactly what the mask names, and train all else. Every rank has to do the same.
    ///
    /// # Errors
    /// A name that is no parameter of the model; nothing is changed then.
    pub fn set_freeze_mask(&self, mask: &FreezeMask) -> Result<()> {
        let known: BTreeSet<&str> = self.iter().map(|param| param.name()).collect();
        if let Some(stranger) = mask.frozen.iter().find(|name| !known.contains(name.as_str())) {
            let reason = "is to be frozen, but the model has no parameter of this name: use the mask of this model";
            return Err(Error::parameter(stranger.clone(), reason));
        }
        self.iter().for_each(|param| param.set_trainable(!mask.frozen.contains(param.name())));
        Ok(())
    }

    /// Freeze every parameter of the set, beside what is frozen already; the number of those it fits. Every rank has to
    /// do the same.
    pub fn freeze(&self, patterns: &NamePatterns) -> usize {
        let fitting = self.iter().filter(|param| patterns.matches(param.name()));
        fitting.map(|param| param.set_trainable(false)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_run_of_characters() {
        for (pattern, name, expected) in [
            ("head.weight", "head.weight", true),
            ("head.weight", "head.weight2", false),
            ("head.*", "head.weight", true),
            ("head.*", "ahead.weight", false),
            ("*.bias", "blocks.0.up.bias", true),
            ("*.bias", "blocks.0.bias.scale", false),
            ("blocks.*.up.*", "blocks.11.up.weight", true),
            ("blocks.*.up.*", "blocks.11.down.weight", false),
            ("a*ab", "aab", true),
            // The head and the last piece may not share characters.
            ("ab*b", "ab", false),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("*a*a*", "banana", true),
            ("*a*x*", "banana", false),
        ] {
            assert_eq!(NamePatterns::new([pattern]).matches(name), expected, "{pattern} and {name}");
        }
        assert!(!NamePatterns::default().matches("head.weight"));
    }
}
