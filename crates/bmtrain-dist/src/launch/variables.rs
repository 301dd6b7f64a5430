//! Reading a launcher's variables: numbers are numbers, and a mistake names the variable with its value.
//!
//! The lookup is passed in, so that nothing below a program's `main` reads the environment. Called by `launchers`.

use super::slurm::MAX_RANKS;
use crate::error::{Error, Result};

/// A lookup of variables by name.
pub(super) struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Variables<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Variables { lookup }
    }

    /// The text of a variable; one that is empty counts as not set.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        (self.lookup)(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// The first of several names that is set, with its text.
    pub(super) fn first(&self, names: &[&'static str]) -> Option<(&'static str, String)> {
        names.iter().find_map(|&name| self.text(name).map(|text| (name, text)))
    }

    /// A number, if the variable is set.
    pub(super) fn number(&self, name: &str) -> Result<Option<usize>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse::<usize>() {
            Ok(number) if number <= MAX_RANKS => Ok(Some(number)),
            Ok(_) => Err(wrong(name, &text, format!("no launch has more than {MAX_RANKS} ranks"))),
            Err(_) => Err(wrong(name, &text, "this is not a whole number from 0")),
        }
    }

    /// A number that has to be there because another variable of the launcher is.
    pub(super) fn need(&self, name: &str, because: &str, launcher: &str) -> Result<usize> {
        self.number(name)?.ok_or_else(|| {
            let reason = format!("{launcher} sets it together with {because}, which is set");
            Error::launch(format!("{name} is missing"), reason, format!("set {name} too, or unset {because}"))
        })
    }

    /// A port, if the variable is set.
    pub(super) fn port(&self, name: &str) -> Result<Option<u16>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(Some(port)),
            _ => Err(wrong(name, &text, "a port is a number from 1 to 65535")),
        }
    }
}

/// A variable whose value cannot be.
pub(super) fn wrong(name: &str, text: &str, reason: impl Into<String>) -> Error {
    let shown: String = text.chars().take(64).flat_map(char::escape_debug).collect();
    let fix = format!("correct {name} or unset it, and look at who sets it");
    Error::launch(format!("{name}={shown}"), reason, fix)
}
