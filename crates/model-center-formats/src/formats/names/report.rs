//! Difference of a model and a file, so that a person can see it on one screen.
//!
//! Defines [`Difference`]; filled by [`super::LoadPlan`].

use std::fmt;

use super::ignored;

/// Lines of each kind that are printed; the rest is counted.
const SHOWN: usize = 8;

/// A tensor that the model needs and the file has not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing {
    /// Our parameter.
    pub ours: String,
    /// The names it could have in the file, the usual one first.
    pub theirs: Vec<String>,
}

/// A tensor that is there and is not what the model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MisShaped {
    /// Our parameter.
    pub ours: String,
    /// Its name in the file.
    pub theirs: String,
    /// Requirement of the model, e.g. `[768, 3072]`.
    pub expected: String,
    /// Value in the file.
    pub got: String,
}

/// All differences between a model's parameters and a file's tensors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Difference {
    /// Needed, absent and not allowed to be.
    pub missing: Vec<Missing>,
    /// Present, needed by nothing and not allowed to be unused.
    pub unexpected: Vec<String>,
    /// Present with another shape or a type that is not a float.
    pub mis_shaped: Vec<MisShaped>,
    /// Present under two names for one thing, e.g. with and without prefix.
    pub ambiguous: Vec<(String, String)>,
    /// Patterns that name the unexpected tensors, as far as they are few, and no other: for
    /// [`Allow::ignored`](super::Allow).
    pub ignorable: Vec<String>,
}

impl Difference {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.mis_shaped.is_empty() && self.ambiguous.is_empty()
    }

    /// Fix.
    pub fn fix(&self) -> String {
        let mut fixes = Vec::new();
        if !self.mis_shaped.is_empty() {
            fixes.push("the sizes in config.json differ from the weights': use the config.json that belongs to them");
        }
        if !self.missing.is_empty() {
            fixes.push(
                "tensors that the model needs are missing: fetch the complete weights, with their own config.json",
            );
        }
        // Where tensors are missing too, leaving others out does not make a model.
        let options = match self.missing.is_empty() && self.mis_shaped.is_empty() {
            true => ignored::as_options(&self.ignorable),
            false => None,
        };
        let ignored = options.map(|options| format!(", or leave the tensors out with {options}")).unwrap_or_default();
        let extra = format!("the weights hold more than the model: use the config.json that belongs to them{ignored}");
        if !self.unexpected.is_empty() {
            fixes.push(&extra);
        }
        if !self.ambiguous.is_empty() {
            fixes.push("remove one of the two tensors from the file");
        }
        fixes.join("; ")
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the weights do not fit the model: {} missing, {} unexpected, {} of another shape or type",
            self.missing.len(),
            self.unexpected.len(),
            self.mis_shaped.len()
        )?;
        list(f, "of another shape or type", &self.mis_shaped, |m| {
            format!("{} (our {}): expected {}, got {}", m.theirs, m.ours, m.expected, m.got)
        })?;
        list(f, "missing from the file", &self.missing, |m| format!("{} (our {})", m.theirs.join(" or "), m.ours))?;
        list(f, "unexpected in the file", &self.unexpected, Clone::clone)?;
        list(f, "two names for one tensor", &self.ambiguous, |(a, b)| format!("{a} and {b}"))
    }
}

fn list<T>(f: &mut fmt::Formatter<'_>, title: &str, items: &[T], line: impl Fn(&T) -> String) -> fmt::Result {
    if items.is_empty() {
        return Ok(());
    }
    write!(f, "\n  {title}:")?;
    for item in items.iter().take(SHOWN) {
        write!(f, "\n    {}", line(item))?;
    }
    match items.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => write!(f, "\n    and {more} more"),
    }
}
