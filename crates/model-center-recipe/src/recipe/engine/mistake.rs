//! A mistake in a recipe: place, reason and fix, before it becomes an error.
//!
//! Defines [`Mistake`], the list that a dry run prints and the conversion to [`crate::Error`]. Used by all of this
//! module and by the programs.

use crate::Error;
use std::fmt;

/// Kind of a mistake; decides the error variant and so the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// The recipe itself.
    Recipe,
    /// A data file the recipe names.
    Data,
    /// The model directory the recipe names.
    Model,
}

impl Group {
    fn name(self) -> &'static str {
        match self {
            Group::Recipe => "recipe",
            Group::Data => "data",
            Group::Model => "model",
        }
    }
}

/// One mistake, ready to be printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Group of the mistake.
    pub group: Group,
    /// `file:line:column`, or the command line argument.
    pub place: String,
    /// Reason, in one sentence.
    pub reason: String,
    /// Fix.
    pub fix: String,
}

impl Mistake {
    pub(crate) fn recipe(place: impl Into<String>, reason: impl Into<String>, fix: impl Into<String>) -> Self {
        Mistake { group: Group::Recipe, place: place.into(), reason: reason.into(), fix: fix.into() }
    }
}

impl fmt::Display for Mistake {
    /// Writes the three lines that a terminal shows of an error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error[{}]: {}\n  --> {}\n  fix: {}", self.group.name(), self.reason, self.place, self.fix)
    }
}

impl From<Mistake> for Error {
    fn from(m: Mistake) -> Error {
        match m.group {
            Group::Recipe => Error::recipe(m.place, m.reason, m.fix),
            Group::Data => Error::data(m.place, m.reason, m.fix),
            Group::Model => Error::model(m.place, m.reason, m.fix),
        }
    }
}

/// The first mistake as an error, with the number of further ones; [`list`] shows all.
pub fn as_error(mistakes: Vec<Mistake>) -> Error {
    as_error_with(mistakes, "")
}

/// [`as_error`] for a program that can list the further mistakes: `advice` names how, such as `--dry-run lists all`.
pub fn as_error_with(mistakes: Vec<Mistake>, advice: &str) -> Error {
    let more = mistakes.len().saturating_sub(1);
    let Some(mut first) = mistakes.into_iter().next() else {
        return Error::recipe("recipe", "it was refused without a reason", "report this");
    };
    if more > 0 {
        let plural = if more == 1 { "mistake" } else { "mistakes" };
        let colon = if advice.is_empty() { "" } else { ": " };
        first.fix.push_str(&format!("\n  and {more} more {plural}{colon}{advice}"));
    }
    first.into()
}

/// All mistakes as text, as a dry run prints them: one blank line between two, a count at the end.
///
/// At most 20 are printed in full, so that a broken file does not scroll its first mistake away.
pub fn list<M: fmt::Display>(mistakes: &[M]) -> String {
    const SHOWN: usize = 20;
    let mut out = String::new();
    for mistake in mistakes.iter().take(SHOWN) {
        out.push_str(&format!("{mistake}\n\n"));
    }
    match mistakes.len() {
        0 => out.push_str("no mistakes found"),
        1 => out.push_str("1 mistake"),
        n if n > SHOWN => out.push_str(&format!("{n} mistakes, the first {SHOWN} shown")),
        n => out.push_str(&format!("{n} mistakes")),
    }
    out
}
