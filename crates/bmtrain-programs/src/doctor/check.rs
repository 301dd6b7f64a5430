//! Result of a check, whether it is well, and its fix.

use serde_json::{Value, json};
use std::fmt::Write;

/// Outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// As a run wants it.
    Well,
    /// There is less than could be, or something to know.
    Less,
    /// A run would fail, or would be far slower.
    Wrong,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Check {
    pub(super) state: State,
    /// A short name.
    pub(super) name: String,
    /// Value that was found.
    pub(super) value: String,
    /// Fix.
    pub(super) fix: Option<String>,
}

impl Check {
    pub(super) fn well(name: &str, value: impl Into<String>) -> Check {
        Check { state: State::Well, name: name.to_owned(), value: value.into(), fix: None }
    }

    pub(super) fn less(name: &str, value: impl Into<String>, fix: &str) -> Check {
        let fix = Some(fix.to_owned()).filter(|fix| !fix.is_empty());
        Check { state: State::Less, name: name.to_owned(), value: value.into(), fix }
    }

    pub(super) fn wrong(name: &str, value: impl Into<String>, fix: impl Into<String>) -> Check {
        Check { state: State::Wrong, name: name.to_owned(), value: value.into(), fix: Some(fix.into()) }
    }
}

impl State {
    fn mark(self) -> char {
        match self {
            State::Well => '✓',
            State::Less => '!',
            State::Wrong => '✗',
        }
    }

    fn name(self) -> &'static str {
        match self {
            State::Well => "ok",
            State::Less => "note",
            State::Wrong => "wrong",
        }
    }
}

/// A line for each check, and one for its fix.
pub(super) fn as_text(checks: &[Check]) -> String {
    let mut text = String::new();
    for Check { state, name, value, fix } in checks {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{} {name:<12} {value}", state.mark());
        if let Some(fix) = fix {
            let _ = writeln!(text, "  {:<12} fix: {fix}", "");
        }
    }
    text
}

pub(super) fn as_json(checks: &[Check]) -> Value {
    let one = |check: &Check| {
        let state = check.state.name();
        json!({ "state": state, "name": check.name, "value": check.value, "fix": check.fix })
    };
    checks.iter().map(one).collect()
}
