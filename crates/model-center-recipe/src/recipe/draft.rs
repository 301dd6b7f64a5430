//! A recipe as far as it could be read: complete, or with what is missing and wrong in it.
//!
//! Defines [`Draft`], made by [`Recipe`](super::Recipe), which makes a [`Resolved`](super::Resolved) of one without
//! mistakes.

use super::engine::layers;
use super::engine::mistake::Mistake;
use super::engine::reader::{Found, Reader, SettingEntry};
use super::keys::{self, Settings, elsewhere};
use super::resolved::{Resolved, print_entries};
use super::{class_weights, rules};
use model_center_data::OwnData;

/// Every key of a recipe, and the mistakes in it.
#[derive(Debug)]
pub struct Draft {
    /// Keys with mistakes have placeholders.
    pub(super) settings: Settings,
    pub(super) entries: Vec<SettingEntry>,
    pub(super) mistakes: Vec<Mistake>,
    missing: Vec<Mistake>,
}

impl Draft {
    pub(super) fn read(name: &str, text: &str, sets: &[String], own: OwnData) -> Result<Self, Vec<Mistake>> {
        let (tree, mistakes) = layers::merge(name, text, sets, &[class_weights::KEY]);
        let mut reader = Reader::new(tree, keys::rows(), name, own);
        let settings = keys::read(&mut reader);
        rules::check(&mut reader, &settings);
        // Of a file that could only be read in part, what seems missing or contradictory may be in the other part.
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let Found { mut entries, mistakes, missing } = reader.finish(elsewhere::NAMES);
        entries.sort_by_key(|entry| keys::place(entry.key));
        Ok(Draft { settings, entries, mistakes, missing })
    }

    /// The settings.
    ///
    /// # Errors
    /// Every mistake.
    pub fn resolved(self) -> Result<Resolved, Vec<Mistake>> {
        match self.mistakes.is_empty() {
            true => Ok(Resolved::new(self.settings, self.entries)),
            false => Err(self.mistakes),
        }
    }

    /// Every key with its value and, as a comment, where the value came from, or that it is missing or wrong.
    pub fn print_config(&self) -> String {
        let head = match self.missing.len() {
            0 => String::new(),
            1 => "# Incomplete: 1 setting is missing; look for \"missing\" below.\n".to_owned(),
            n => format!("# Incomplete: {n} settings are missing; look for \"missing\" below.\n"),
        };
        head + &print_entries(&self.entries)
    }

    /// Whether nothing is missing and nothing is wrong.
    pub fn is_complete(&self) -> bool {
        self.mistakes.is_empty()
    }

    /// Mistakes, without settings that are only missing.
    pub fn into_wrong(self) -> Vec<Mistake> {
        self.mistakes.into_iter().filter(|mistake| !self.missing.contains(mistake)).collect()
    }
}
