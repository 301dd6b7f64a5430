//! The flags of a command against the table of those that its program knows.
//!
//! Defines [`Flag`], the entry of a table, and [`Flags`], what a command gives. Called by the translations.

use super::account::{Account, LEFT_UNKNOWN, Setting, is_left};
use super::numbers;
use super::sheet::{NoteKind, Sheet};
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_base::suggest::closest;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Why a flag has no line that another one takes the place of.
pub(super) const WITHOUT_EFFECT: &str = "the other flags leave it no effect";

/// Number of values that follow a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// None.
    Nothing,
    /// One.
    One,
    /// All up to the next flag.
    Many,
}

/// Role of a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Translated.
    Read,
    /// It has no meaning here; the text is why.
    Unused(&'static str),
    /// It is refused; the text is why.
    Refused(&'static str),
}

/// A flag of another system.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Its name with dashes.
    pub name: &'static str,
    /// Its values.
    pub takes: Takes,
    /// Its role.
    pub role: Role,
}

pub(super) const fn read(name: &'static str) -> Flag {
    Flag { name, takes: Takes::One, role: Role::Read }
}

pub(super) const fn switch(name: &'static str) -> Flag {
    Flag { name, takes: Takes::Nothing, role: Role::Read }
}

pub(super) const fn many(name: &'static str) -> Flag {
    Flag { name, takes: Takes::Many, role: Role::Read }
}

pub(super) const fn unused(name: &'static str, why: &'static str) -> Flag {
    Flag { name, takes: Takes::One, role: Role::Unused(why) }
}

pub(super) const fn unused_switch(name: &'static str, why: &'static str) -> Flag {
    Flag { name, takes: Takes::Nothing, role: Role::Unused(why) }
}

pub(super) const fn refused(name: &'static str, why: &'static str) -> Flag {
    Flag { name, takes: Takes::One, role: Role::Refused(why) }
}

pub(super) const fn refused_switch(name: &'static str, why: &'static str) -> Flag {
    Flag { name, takes: Takes::Nothing, role: Role::Refused(why) }
}

/// A value and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sourced<T> {
    pub(super) value: T,
    pub(super) from: String,
    pub(super) is_given: bool,
}

/// Flags of a command.
#[derive(Debug, Default)]
pub(super) struct Flags {
    given: BTreeMap<&'static str, Vec<String>>,
    /// Those that the translation asked for.
    asked: RefCell<BTreeSet<&'static str>>,
    /// Unknown ones that `--leave` names.
    left: Vec<String>,
}

impl Flags {
    /// Sorts words by the table. Names may be abbreviated and have underscores, as argparse allows.
    ///
    /// # Errors
    /// A word that belongs to no flag, a flag that is unknown, ambiguous, or without its value.
    pub(super) fn parse(words: &[String], table: &'static [Flag], leave: &[String]) -> Result<Flags> {
        let mut flags = Flags::default();
        let mut words = words.iter().peekable();
        while let Some(word) = words.next() {
            let Some(bare) = word.strip_prefix("--") else {
                return Err(Error::argument(shown(word), "this value belongs to no flag", "quote values with blanks"));
            };
            let (name, joined) = bare.split_once('=').map_or((bare, None), |(name, value)| (name, Some(value)));
            let name = format!("--{}", name.replace('_', "-"));
            let Some(flag) = find(&name, table)? else {
                if is_left(leave, &name) {
                    while words.next_if(|next| !next.starts_with("--")).is_some() {}
                    flags.left.push(shown(word));
                    continue;
                }
                let near = closest(&name, table.iter().map(|flag| flag.name));
                let fix = near.map_or_else(
                    || format!("remove it, or pass it over with --leave {}", name.trim_start_matches('-')),
                    |near| format!("did you mean {near}?"),
                );
                return Err(Error::argument(shown(word), "unknown flag", fix));
            };
            let mut values: Vec<String> = joined.map(str::to_owned).into_iter().collect();
            let is_value = |next: &&String| !next.starts_with("--");
            match flag.takes {
                Takes::Nothing => {
                    // `true` after a switch, which some programs accept.
                    words.next_if(|next| ["true", "True"].contains(&next.as_str()));
                }
                Takes::One if joined.is_none() => values.extend(words.next_if(is_value).cloned()),
                Takes::One => {}
                Takes::Many => {
                    while let Some(value) = words.next_if(is_value) {
                        values.push(value.clone());
                    }
                }
            }
            if flag.takes != Takes::Nothing && values.is_empty() {
                return Err(Error::argument(flag.name, "its value is missing", format!("write {} VALUE", flag.name)));
            }
            flags.given.insert(flag.name, values);
        }
        Ok(flags)
    }

    pub(super) fn is_given(&self, name: &'static str) -> bool {
        self.asked.borrow_mut().insert(name);
        self.given.contains_key(name)
    }

    /// [`Flags::is_given`] for a decision that does not translate the flag.
    pub(super) fn has(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    /// The values of a flag for a comparison that does not translate it.
    pub(super) fn peek(&self, name: &str) -> Option<&[String]> {
        self.given.get(name).map(Vec::as_slice)
    }

    pub(super) fn values(&self, name: &'static str) -> Option<&[String]> {
        self.asked.borrow_mut().insert(name);
        self.given.get(name).map(Vec::as_slice)
    }

    /// A text; one with a variable that is not set is an error.
    pub(super) fn text(&self, name: &'static str) -> Result<Option<&str>> {
        let Some(value) = self.values(name).and_then(|values| values.last()) else { return Ok(None) };
        check_set(name, value)?;
        Ok(Some(value))
    }

    /// A text, or the default that the other program has.
    pub(super) fn text_or<'f>(&'f self, name: &'static str, default: &'f str) -> Result<Sourced<&'f str>> {
        Ok(match self.text(name)? {
            Some(value) => Sourced { value, from: self.shown(name), is_given: true },
            None => Sourced { value: default, from: format!("{name}, default {default}"), is_given: false },
        })
    }

    /// A number, or the default that the other program has.
    pub(super) fn number(&self, name: &'static str, default: f64) -> Result<Sourced<f64>> {
        match self.text(name)? {
            Some(text) => Ok(given(name, parse(name, text)?, text)),
            None => Ok(Sourced { value: default, from: format!("{name}, default {default}"), is_given: false }),
        }
    }

    /// Number of a flag, if it is given.
    pub(super) fn maybe_number(&self, name: &'static str) -> Result<Option<Sourced<f64>>> {
        self.text(name)?.map(|text| Ok(given(name, parse(name, text)?, text))).transpose()
    }

    pub(super) fn whole(&self, name: &'static str, default: u64) -> Result<Sourced<u64>> {
        let found = self.number(name, default as f64)?;
        whole(name, found)
    }

    pub(super) fn maybe_whole(&self, name: &'static str) -> Result<Option<Sourced<u64>>> {
        self.maybe_number(name)?.map(|found| whole(name, found)).transpose()
    }

    /// A flag as it was given.
    pub(super) fn shown(&self, name: &str) -> String {
        let values = self.given.get(name).map(|values| values.join(" ")).unwrap_or_default();
        printable(format!("{name} {values}").trim_end(), 120)
    }

    /// Notes the flags that neither a line nor a note of the sheet names.
    pub(super) fn note_unnamed(&self, why: &str, sheet: &mut Sheet) {
        for name in self.given.keys() {
            if !sheet.names_flag(name) {
                sheet.note(NoteKind::Unused, self.shown(name), why);
            }
        }
    }

    /// Notes what has no meaning here, and reports what is refused. Every flag that was given is then accounted for.
    ///
    /// # Errors
    /// [`Error::Argument`] with the first refused flag and the names of others.
    pub(super) fn account(&self, table: &'static [Flag], leave: &[String], sheet: &mut Sheet) -> Result<()> {
        for flag in &self.left {
            sheet.note(NoteKind::Differs, flag.clone(), LEFT_UNKNOWN);
        }
        let mut account = Account::new(leave);
        for flag in table.iter().filter(|flag| self.given.contains_key(flag.name)) {
            let shown = self.shown(flag.name);
            match flag.role {
                Role::Read if self.asked.borrow().contains(flag.name) => {}
                Role::Read => sheet.note(NoteKind::Unused, shown, WITHOUT_EFFECT),
                role => account.settle(Setting { name: flag.name, place: flag.name.to_owned(), shown }, role, sheet),
            }
        }
        account.finish()
    }
}

/// The entry of this name, or the only one that begins so.
fn find(name: &str, table: &'static [Flag]) -> Result<Option<&'static Flag>> {
    if let Some(flag) = table.iter().find(|flag| flag.name.eq_ignore_ascii_case(name)) {
        return Ok(Some(flag));
    }
    let begun: Vec<&Flag> = table.iter().filter(|flag| name.len() > 4 && flag.name.starts_with(name)).collect();
    match begun.as_slice() {
        [] => Ok(None),
        [flag] => Ok(Some(flag)),
        several => {
            let names: Vec<&str> = several.iter().map(|flag| flag.name).collect();
            let reason = format!("the abbreviation is ambiguous: {}", names.join(", "));
            Err(Error::argument(shown(name), reason, "write the flag in full"))
        }
    }
}

pub(super) fn check_set(name: &str, value: &str) -> Result<()> {
    let Some((_, variable)) = value.split_once('$') else { return Ok(()) };
    let end = variable.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(variable.len());
    if end == 0 {
        let reason = format!("its value {} is something that a shell computes", shown(value));
        return Err(Error::argument(name, reason, "write the value itself"));
    }
    let variable = &variable[..end];
    let reason = format!("the variable {} has no value", printable(variable, 60));
    Err(Error::argument(name, reason, format!("write {}=VALUE before the command", printable(variable, 60))))
}

fn shown(word: &str) -> String {
    printable(word, 80)
}

fn given(name: &'static str, value: f64, text: &str) -> Sourced<f64> {
    Sourced { value, from: format!("{name} {}", shown(text)), is_given: true }
}

/// A finite number; thousands may be separated by `_` or `,` as Python's sources and READMEs do.
pub(super) fn parse(name: &str, text: &str) -> Result<f64> {
    let plain = text.replace(['_', ','], "");
    let value = plain.parse().ok().filter(|value: &f64| value.is_finite());
    value.ok_or_else(|| Error::argument(name, format!("{} is not a number", shown(text)), "write a number"))
}

fn whole(name: &'static str, found: Sourced<f64>) -> Result<Sourced<u64>> {
    let Some(value) = numbers::whole(found.value) else {
        let reason = format!("{} is not a whole number of at least 0", found.value);
        return Err(Error::argument(name, reason, "write a whole number"));
    };
    Ok(Sourced { value, from: found.from, is_given: found.is_given })
}
