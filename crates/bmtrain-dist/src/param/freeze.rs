//! Frozen parameters: by patterns of names, when a model is built or later, and as a mask of full names, which a
//! checkpoint stores.
//!
//! Freezing moves no memory. A frozen parameter keeps its storage and its optimizer state; it gets no gradient, the
//! norm and the optimizer skip it, and once it is trained again its moments continue. Defines [`NamePatterns`] and
//! [`FreezeMask`]; called where a model is built, opened or resumed.

use super::Parameters;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Patterns of parameter names; `*` stands for any run of characters, dots included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NamePatterns(Vec<String>);

impl NamePatterns {
    /// A name belongs to the set if any pattern matches all of it.
    pub fn new(patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        NamePatterns(patterns.into_iter().map(Into::into).collect())
    }

    /// Whether a name belongs to the set.
    pub fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| matches_whole(pattern, name, None))
    }

    /// Patterns that match no name of the model: most likely a typing error.
    pub fn idle(&self, parameters: &Parameters) -> Vec<&str> {
        let matches_none =
            |pattern: &&String| !parameters.declared().iter().any(|param| matches_whole(pattern, param.name(), None));
        self.0.iter().filter(matches_none).map(String::as_str).collect()
    }
}

/// Whether `pattern` matches all of `name`; `*` stands for any run of characters, and `any`, if given, for one.
pub(crate) fn matches_whole(pattern: &str, name: &str, any: Option<char>) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    // Where to continue after a mismatch: after the last star, one letter further in the name.
    let (mut p, mut n, mut again) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                again = Some((p + 1, n));
                p += 1;
            }
            Some(letter) if Some(*letter) == any || *letter == name[n] => (p, n) = (p + 1, n + 1),
            _ => match again {
                Some((behind, from)) => {
                    again = Some((behind, from + 1));
                    (p, n) = (behind, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|letter| *letter == '*')
}

/// The parameters that are frozen, by full name; all others are trained.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FreezeMask {
    /// Full names, in alphabetical order.
    pub frozen: BTreeSet<String>,
}

impl Parameters {
    /// Mask of the parameters that are frozen now.
    pub fn freeze_mask(&self) -> FreezeMask {
        let frozen = self.declared().iter().filter(|param| !param.is_trainable());
        FreezeMask { frozen: frozen.map(|param| param.name().to_owned()).collect() }
    }

    /// Freeze exactly the parameters in the mask, and train all others. Every rank has to do the same. A name that the
    /// model has no parameter of is refused, and nothing is changed.
    pub fn set_freeze_mask(&self, mask: &FreezeMask) -> Result<()> {
        let known: BTreeSet<&str> = self.declared().iter().map(|param| param.name()).collect();
        if let Some(unknown) = mask.frozen.iter().find(|name| !known.contains(name.as_str())) {
            let reason = "is to be frozen, but the model has no parameter of this name: use the mask of this model";
            return Err(Error::parameter(unknown.clone(), reason));
        }
        self.declared().iter().for_each(|param| param.set_trainable(!mask.frozen.contains(param.name())));
        Ok(())
    }

    /// Freeze every parameter that a pattern matches, in addition to those frozen already. Returns the number of
    /// matches. Every rank has to do the same.
    pub fn freeze(&self, patterns: &NamePatterns) -> usize {
        let fitting = self.declared().iter().filter(|param| patterns.matches(param.name()));
        fitting.map(|param| param.set_trainable(false)).count()
    }
}
