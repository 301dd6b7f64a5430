//! A recipe in the making: each line with where it comes from, and what has no line with the reason.
//!
//! Defines [`Sheet`] and its text; filled by the translations, and by [`crate::starter`].

use super::flags::Sourced;
use crate::{Error, Result};
use model_center_base::file::printable;
use model_center_recipe::{Recipe, is_of_random_model, key, quote, tables};
use std::fmt::{self, Display, Write};

/// Kind of a setting that has no line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoteKind {
    /// It has no meaning here, or what it asks for is always so.
    Unused,
    /// Training differs here in what it asks for.
    Differs,
    /// Something to know that is not a setting.
    Remark,
}

/// A setting without a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// Whether training differs by it.
    pub kind: NoteKind,
    /// The setting as it was given.
    pub what: String,
    /// Why it has no line.
    pub why: String,
}

/// A line of the recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The key.
    pub key: String,
    /// Its value as TOML.
    pub value: String,
    /// Setting that it was made from.
    pub from: String,
}

/// A recipe with the origin of each line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sheet {
    /// The program that makes it.
    program: &'static str,
    /// Command or file that it was made from.
    pub source: String,
    /// The file that it is written to, if that is known.
    pub file: Option<String>,
    /// Ranks that the source runs on, if it tells.
    pub ranks: Option<u64>,
    lines: Vec<Line>,
    notes: Vec<Note>,
}

impl Sheet {
    pub(super) fn new(source: impl Into<String>) -> Self {
        Sheet::made_by("import", source)
    }

    pub(crate) fn made_by(program: &'static str, source: impl Into<String>) -> Self {
        Sheet { program, source: source.into(), file: None, ranks: None, lines: Vec::new(), notes: Vec::new() }
    }

    /// Sets a key to a TOML value, in place of an earlier one.
    pub(crate) fn raw(&mut self, key: &str, value: impl Into<String>, from: impl Into<String>) {
        let line = Line { key: key.to_owned(), value: value.into(), from: from.into() };
        match self.lines.iter_mut().find(|line| line.key == key) {
            Some(held) => *held = line,
            None => self.lines.push(line),
        }
    }

    pub(crate) fn text(&mut self, key: &str, value: &str, from: impl Into<String>) {
        self.raw(key, quote(value), from);
    }

    /// A number, whole or not.
    pub(crate) fn number(&mut self, key: &str, value: f64, from: impl Into<String>) {
        self.raw(key, format!("{value:?}"), from);
    }

    pub(crate) fn whole(&mut self, key: &str, value: u64, from: impl Into<String>) {
        self.raw(key, value.to_string(), from);
    }

    pub(crate) fn flag(&mut self, key: &str, value: bool, from: impl Into<String>) {
        self.raw(key, value.to_string(), from);
    }

    pub(crate) fn list(&mut self, key: &str, values: &[String], from: impl Into<String>) {
        let values: Vec<String> = values.iter().map(|value| quote(value)).collect();
        self.raw(key, format!("[{}]", values.join(", ")), from);
    }

    /// A scale, which has to be a power of two.
    pub(crate) fn power(&mut self, key: &str, value: f64, place: &str, from: impl Into<String>) -> Result<()> {
        let is_power = (0..=64).any(|power| 2f64.powi(power) == value);
        if !is_power {
            let reason = format!("{value} is not a power of two from 1 to 2^64");
            return Err(Error::argument(place, reason, "65536 is usual for a first scale, 1 for the smallest"));
        }
        let text = if value < 9e18 { (value as u64).to_string() } else { format!("{value:?}") };
        self.raw(key, text, from);
        Ok(())
    }

    /// The averages of Adam and its like.
    pub(super) fn betas(&mut self, one: Sourced<f64>, two: Sourced<f64>) {
        let value = format!("[{:?}, {:?}]", one.value, two.value);
        self.raw(key!(train.betas), value, format!("{}, {}", one.from, two.from));
    }

    /// The bound of gradients' norm; 0 is none.
    pub(super) fn clip(&mut self, norm: f64, from: String) {
        match norm > 0.0 {
            true => self.number(key!(train.clip_norm), norm, from),
            false => self.text(key!(train.clip_kind), "none", from),
        }
    }

    /// A scale that does not move.
    pub(crate) fn static_loss_scale(&mut self, value: f64, place: &str, from: String) -> Result<()> {
        self.text(key!(train.loss_scale), "static", from.clone());
        self.power(key!(train.loss_scale_start), value, place, from)
    }

    pub(crate) fn remove(&mut self, key: &str) {
        self.lines.retain(|line| line.key != key);
    }

    pub(crate) fn note(&mut self, kind: NoteKind, what: impl Into<String>, why: impl Into<String>) {
        self.notes.push(Note { kind, what: what.into(), why: why.into() });
    }

    pub(crate) fn remark(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.note(NoteKind::Remark, what, why);
    }

    /// Whether a line or a note is made from a key of the source, which is shown as `KEY: VALUE`.
    pub(crate) fn mentions(&self, key: &str) -> bool {
        let shown = format!("{key}: ");
        let has = |text: &str| {
            let before = |at: usize| text[..at].chars().next_back();
            text.match_indices(&shown).any(|(at, _)| before(at).is_none_or(|c| !c.is_alphanumeric() && c != '_'))
        };
        self.lines.iter().any(|line| has(&line.from)) || self.notes.iter().any(|note| has(&note.what))
    }

    /// Whether a line or a note is made from this flag.
    pub(super) fn names_flag(&self, name: &str) -> bool {
        let continues = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let has = |text: &str| {
            let mut ends = text.match_indices(name).map(|(at, found)| &text[at + found.len()..]);
            ends.any(|rest| !rest.starts_with(continues))
        };
        self.lines.iter().any(|line| has(&line.from)) || self.notes.iter().any(|note| has(&note.what))
    }

    /// Whether there are several ranks of a kind, by the key of their number.
    pub(super) fn has_several(&self, key: &str) -> bool {
        self.count(key).is_some_and(|count| count > 1)
    }

    /// The ranks of one data rank: tensor-parallel x pipeline-parallel ones.
    pub(super) fn model_ranks(&self) -> u64 {
        let of = |key| self.count(key).unwrap_or(1).max(1);
        of(key!(parallel.tensor)).saturating_mul(of(key!(parallel.pipeline)))
    }

    /// The whole number that a key has.
    pub(super) fn count(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(|value| value.parse().ok())
    }

    /// Value of a key as TOML.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.lines.iter().find(|line| line.key == key).map(|line| line.value.as_str())
    }

    /// The lines, in the order of the source.
    pub fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// Settings that have no line.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Applies `key=value` settings of a command line, whose value is TOML or a text without quotes.
    pub fn apply(&mut self, sets: &[String]) -> Result<()> {
        for set in sets {
            let Some((key, value)) = set.split_once('=') else {
                let fix = "write --set model.path=models/bert";
                return Err(Error::argument(printable(set, 80), "this is not KEY=VALUE", fix));
            };
            let is_toml = toml::from_str::<toml::Table>(&format!("x = {value}")).is_ok_and(|table| table.len() == 1);
            let value = if is_toml { value.to_owned() } else { quote(value) };
            self.raw(key.trim(), value, "--set");
        }
        self.drop_rules_of_decay();
        Ok(())
    }

    /// Drops the rules of decay where no parameter decays: a recipe with such settings is refused.
    fn drop_rules_of_decay(&mut self) {
        if self.get(key!(train.weight_decay)).and_then(|decay| decay.parse::<f64>().ok()) != Some(0.0) {
            return;
        }
        let is_rule =
            |line: &Line| [key!(train.decoupled), key!(train.decay_norms_and_biases)].contains(&line.key.as_str());
        let rules: Vec<Line> = self.lines.extract_if(.., |line| is_rule(line)).collect();
        for rule in rules {
            self.note(NoteKind::Unused, rule.from, "the weight decay is 0");
        }
    }

    /// Drops what only a model without weights has, in a recipe that begins with one that has some.
    pub(super) fn drop_initialization(&mut self, why: &str) {
        let only = |key: &str| key == key!(model.init) || key == key!(model.family) || is_of_random_model(key);
        let dropped: Vec<Line> = self.lines.extract_if(.., |line| only(&line.key)).collect();
        for line in dropped.into_iter().filter(|line| line.from.starts_with('-')) {
            self.note(NoteKind::Unused, line.from, why);
        }
    }

    /// Refuses a recipe that its reader refuses: names the setting of the source that the mistake is made from.
    ///
    /// # Errors
    /// [`Error::Argument`] with the first mistake.
    pub(super) fn check(&self, place: &str) -> Result<()> {
        let Err(mistakes) = Recipe::read_text("", &self.to_toml(), &[]) else { return Ok(()) };
        let [first, others @ ..] = mistakes.as_slice() else { return Ok(()) };
        let mut keys = first.reason.split('`').skip(1).step_by(2);
        let line = keys.find_map(|key| self.lines.iter().find(|line| line.key == key));
        let from = line.map_or_else(String::new, |line| format!(", {}", line.from));
        let also = match others.len() {
            0 => String::new(),
            count => format!(" ({count} further mistakes)"),
        };
        let reason = format!("no recipe can have it: {}{also}", first.reason);
        Err(Error::argument(printable(&format!("{place}{from}"), 200), reason, first.fix.clone()))
    }

    /// The program that trains by the recipe.
    pub fn trainer(&self) -> &'static str {
        if self.get(key!(data.task)) == Some("\"pretrain\"") { "pretrain" } else { "finetune" }
    }

    /// The recipe as TOML.
    pub fn to_toml(&self) -> String {
        self.to_string()
    }
}

impl Display for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.ranks.map_or_else(String::new, |ranks| format!(" --ranks {ranks}"));
        writeln!(f, "# Made by `{}` from {}.", self.program, comment(&self.source))?;
        let program = self.trainer();
        let file = self.file.as_deref().unwrap_or("FILE");
        writeln!(f, "# bmtrain {program} --recipe {}{ranks}", comment(file))?;
        let table_of = |line: &Line| line.key.rsplit_once('.').map_or_else(String::new, |(table, _)| table.to_owned());
        let mut tables: Vec<String> = tables().into_iter().map(str::to_owned).collect();
        for line in &self.lines {
            if !tables.contains(&table_of(line)) {
                tables.push(table_of(line));
            }
        }
        for table in tables {
            let lines: Vec<&Line> = self.lines.iter().filter(|line| table_of(line) == table).collect();
            if lines.is_empty() {
                continue;
            }
            f.write_char('\n')?;
            if !table.is_empty() {
                writeln!(f, "[{table}]")?;
            }
            for line in lines {
                let name = line.key.rsplit('.').next().unwrap_or(&line.key);
                writeln!(f, "{name} = {} # {}", line.value, comment(&line.from))?;
            }
        }
        write_notes(f, &self.notes)
    }
}

/// Result of translating a command of another system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Translated {
    /// A recipe.
    Recipe(Sheet),
    /// Commands of the programs here.
    Commands(Commands),
}

/// Commands that do what a command of another system did, as a script for a shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commands {
    /// Command or file that they were made from.
    pub source: String,
    /// The commands.
    pub lines: Vec<String>,
    notes: Vec<Note>,
}

impl Commands {
    /// The commands, with the source and the notes of a sheet.
    pub(super) fn of(sheet: Sheet, lines: Vec<String>) -> Self {
        Commands { source: sheet.source, lines, notes: sheet.notes }
    }

    /// Settings that no command has.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }
}

impl Display for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Made by `import` from {}.", comment(&self.source))?;
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        write_notes(f, &self.notes)
    }
}

/// A list of inline tables, from the fields of each with their values as TOML.
pub(crate) fn inline_tables(all: &[Vec<(&str, String)>]) -> String {
    let table = |fields: &Vec<(&str, String)>| {
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        format!("{{ {} }}", fields.join(", "))
    };
    format!("[{}]", all.iter().map(table).collect::<Vec<_>>().join(", "))
}

/// The notes as comments, by their kinds.
fn write_notes(f: &mut fmt::Formatter<'_>, notes: &[Note]) -> fmt::Result {
    let titles = [
        (NoteKind::Remark, "To know:"),
        (NoteKind::Differs, "Training differs here:"),
        (NoteKind::Unused, "Without meaning here:"),
    ];
    for (kind, title) in titles {
        let notes: Vec<&Note> = notes.iter().filter(|note| note.kind == kind).collect();
        if !notes.is_empty() {
            writeln!(f, "\n# {title}")?;
        }
        for note in notes {
            writeln!(f, "#   {}: {}", comment(&note.what), comment(&note.why))?;
        }
    }
    Ok(())
}

/// A text that stays inside of a comment.
fn comment(text: &str) -> String {
    printable(text, 400)
}
