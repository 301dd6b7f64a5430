//! The keys of a configuration against the table of those that its trainer knows.

use super::YamlKey;
use super::tree::{Tree, parse};
use crate::import::ImportOptions;
use crate::import::account::{Account, Setting};
use crate::import::flags::{Role, Sourced};
use crate::import::numbers;
use crate::import::sheet::{NoteKind, Sheet};
use crate::{Error, Result};
use model_center_base::file::printable;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Display;

/// A configuration that is being translated.
pub(super) struct Settings<'a> {
    tree: Tree,
    place: &'a str,
    table: &'static [YamlKey],
    /// Keys that the translation asked for.
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Settings<'a> {
    pub(super) fn read(text: &str, place: &'a str, table: &'static [YamlKey]) -> Result<Self> {
        Ok(Settings { tree: parse(text, place)?, place, table, asked: RefCell::default() })
    }

    /// A value; `None` where it is absent or null.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.asked.borrow_mut().insert(key.to_owned());
        self.tree.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether it is there, for a decision that does not translate it.
    pub(super) fn has(&self, key: &str) -> bool {
        self.tree.map.get(key).is_some_and(|value| !value.is_null())
    }

    /// The place of a key in errors.
    pub(super) fn place(&self, key: &str) -> String {
        match self.tree.lines.get(key) {
            Some(line) => format!("{}:{line}, {}", self.place, printable(key, 60)),
            None => format!("{}, {}", self.place, printable(key, 60)),
        }
    }

    pub(super) fn wrong(&self, key: &str, wanted: &str) -> Error {
        let value = self.tree.map.get(key).map(Value::to_string).unwrap_or_default();
        let reason = format!("{} is not {wanted}", printable(&value, 80));
        Error::argument(self.place(key), reason, format!("write {wanted}"))
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        numbers::number(value).map(Some).ok_or_else(|| self.wrong(key, "a number"))
    }

    pub(super) fn whole(&self, key: &str) -> Result<Option<u64>> {
        let Some(number) = self.number(key)? else { return Ok(None) };
        numbers::whole(number).map(Some).ok_or_else(|| self.wrong(key, "a whole number"))
    }

    /// A number, or the trainer's default, with where it comes from.
    pub(super) fn number_or(&self, key: &str, default: f64) -> Result<Sourced<f64>> {
        Ok(self.or(key, self.number(key)?, default))
    }

    /// Whole number of a key, or the default.
    pub(super) fn whole_or(&self, key: &str, default: u64) -> Result<Sourced<u64>> {
        Ok(self.or(key, self.whole(key)?, default))
    }

    /// Text of a key, or the default.
    pub(super) fn text_or<'s>(&'s self, key: &str, default: &'s str) -> Result<Sourced<&'s str>> {
        Ok(self.or(key, self.text(key)?, default))
    }

    fn or<T: Display>(&self, key: &str, given: Option<T>, default: T) -> Sourced<T> {
        match given {
            Some(value) => Sourced { value, from: self.shown(key), is_given: true },
            None => {
                let from = format!("{key}, default {default}");
                Sourced { value: default, from, is_given: false }
            }
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(key, "a text")),
        }
    }

    /// A list of texts, or one text with commas.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<String>>> {
        let texts = match self.get(key) {
            None => return Ok(None),
            Some(Value::String(text)) => text.split(',').map(|part| part.trim().to_owned()).collect(),
            Some(Value::Array(items)) => {
                let texts = items.iter().map(|item| item.as_str().map(str::to_owned));
                texts.collect::<Option<Vec<_>>>().ok_or_else(|| self.wrong(key, "a list of texts"))?
            }
            Some(_) => return Err(self.wrong(key, "a list of texts")),
        };
        Ok(Some(texts))
    }

    /// A key as it was given.
    pub(super) fn shown(&self, key: &str) -> String {
        let value = self.tree.map.get(key).map(Value::to_string).unwrap_or_default();
        printable(&format!("{key}: {value}"), 120)
    }

    /// The keys of a list that are there, as they were given.
    pub(super) fn shown_all(&self, keys: &[&str]) -> String {
        let shown: Vec<String> = keys.iter().filter(|key| self.has(key)).map(|key| self.shown(key)).collect();
        shown.join(", ")
    }

    /// Notes keys that have no meaning beside others.
    pub(super) fn pass_over(&self, keys: &[&str], why: &str, sheet: &mut Sheet) {
        for key in keys.iter().filter(|key| self.get(key).is_some()) {
            sheet.note(NoteKind::Unused, self.shown(key), why);
        }
    }

    /// Refuses the value of a key.
    pub(super) fn refuse<T>(&self, key: &str, reason: impl Into<String>, fix: &str) -> Result<T> {
        Err(Error::argument(self.place(key), reason, fix))
    }

    /// The recipe, with every key accounted for and the settings of the command line.
    ///
    /// # Errors
    /// [`Error::Argument`] for refused and unknown keys, and for what no recipe can have.
    pub(super) fn finish(&self, options: &ImportOptions, mut sheet: Sheet) -> Result<Sheet> {
        self.account(options, &mut sheet)?;
        sheet.apply(&options.sets)?;
        sheet.check(self.place)?;
        Ok(sheet)
    }

    /// Notes every key that has no line, and refuses what cannot be kept.
    ///
    /// # Errors
    /// [`Error::Argument`] with the first refused or unknown key and the names of the others.
    fn account(&self, options: &ImportOptions, sheet: &mut Sheet) -> Result<()> {
        let mut account = Account::new(&options.leave);
        for (key, value) in &self.tree.map {
            let setting = Setting { name: key, place: self.place(key), shown: self.shown(key) };
            let is_off = value.is_null()
                || *value == Value::Bool(false)
                || value.as_str() == Some("")
                || value.as_array().is_some_and(Vec::is_empty);
            match self.table.iter().find(|known| known.name == key).map(|known| known.role) {
                Some(Role::Read) if sheet.mentions(key) => {}
                Some(_) if is_off => sheet.note(NoteKind::Unused, setting.shown, "it is off"),
                Some(Role::Read) if self.asked.borrow().contains(key) => {
                    sheet.note(NoteKind::Unused, setting.shown, "it is so by default");
                }
                Some(Role::Read) => sheet.note(NoteKind::Unused, setting.shown, "other keys leave it no effect"),
                Some(role) => account.settle(setting, role, sheet),
                None => account.unknown(setting, self.table.iter().map(|known| known.name), sheet),
            }
        }
        account.finish()
    }
}
