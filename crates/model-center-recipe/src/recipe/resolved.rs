//! A resolved recipe: the settings, their text, their origins and their hash.
//!
//! Defines [`Resolved`], made by [`Recipe`](super::Recipe) and used by the programs.

use super::engine::layers::Origin;
use super::engine::reader::SettingEntry;
use super::engine::table::{HashRule, first_table, table_of};
use super::keys::batch_ramp::BatchRamp;
use super::keys::parallel::{PARTITION, StagePartition, rendered};
use super::keys::{self, Settings};
use bmtrain_dist::pipeline::PartitionRule;
use std::borrow::{Borrow, Cow};
use std::ops::Deref;

/// Comments of `--print-config` are aligned, but not further right than this column.
const MAX_COMMENT_COLUMN: usize = 56;

/// The settings of a run, read-only, with the text and the origin of each value.
///
/// Dereferences to [`Settings`]: `resolved.train.lr`. Nothing but [`Resolved::on_ranks`] and
/// [`Resolved::partitioned`] changes a setting afterwards, and they change the text with it, so the printed recipe and
/// the hash always belong to the values in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    settings: Settings,
    entries: Vec<SettingEntry>,
}

impl Deref for Resolved {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.settings
    }
}

impl Resolved {
    pub(crate) fn new(settings: Settings, mut entries: Vec<SettingEntry>) -> Self {
        entries.sort_by_key(|entry| keys::place(entry.key));
        Resolved { settings, entries }
    }

    /// The recipe as it is in force, every value written out: loading it again gives the same settings and hash.
    ///
    /// Keys without effect are left out, so that it loads without complaint. The bytes depend on nothing but the
    /// values.
    pub fn to_toml(&self) -> String {
        let head = String::from("# Every setting of the run that made this directory. Loads as a recipe.\n");
        write_tables(head, self.entries.iter().filter(|e| e.is_effective()))
    }

    /// The part of [`Resolved::to_toml`] that decides what the run computes: what the hash is taken of, and what a
    /// model card shows, since it is the same wherever and on however many threads the run was made.
    pub fn hashed_toml(&self) -> String {
        write_tables(String::new(), self.hashed()).trim_start().to_owned()
    }

    /// The entries that decide what the run computes.
    fn hashed(&self) -> impl Iterator<Item = Cow<'_, SettingEntry>> {
        let is_later = |e: &SettingEntry| e.value.as_ref().is_some_and(|value| is_later_default(e.key, value));
        let counted = self.entries.iter().filter(move |e| e.is_effective() && !is_later(e));
        counted.filter_map(|entry| match hash_rule(entry.key) {
            HashRule::Counted => Some(Cow::Borrowed(entry)),
            HashRule::Uncounted | HashRule::OfRank => None,
            HashRule::Fixed(value) => Some(Cow::Owned(SettingEntry { value: Some(value.to_owned()), ..entry.clone() })),
        })
    }

    /// Every key with its value and, as an aligned comment, where the value came from. Loads as a recipe.
    pub fn print_config(&self) -> String {
        print_entries(&self.entries)
    }

    /// BLAKE3 of everything that decides what the run computes, 64 hexadecimal digits.
    ///
    /// Keys whose row states `uncounted`, `of_rank` or `fixed` do not count. Paths count as they are written, contents
    /// of files do not.
    pub fn recipe_hash(&self) -> String {
        blake3::hash(self.hashed_toml().as_bytes()).to_hex().to_string()
    }

    /// BLAKE3 of the same but for the keys of [`is_of_schedule`]: equal for recipes that differ in these alone.
    pub fn hash_without_schedule(&self) -> String {
        let text = write_tables(String::new(), self.hashed().filter(|entry| !is_of_schedule(entry.key)));
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }

    /// BLAKE3 of everything in which the ranks of a run must agree: all but how each reports and how many threads it
    /// has.
    pub fn shared_hash(&self) -> String {
        let of_all = |entry: &&SettingEntry| entry.is_effective() && hash_rule(entry.key) != HashRule::OfRank;
        let text = write_tables(String::new(), self.entries.iter().filter(of_all));
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }

    /// Keys whose values decide what the run computes and are others in `text`, a recipe that
    /// [`to_toml`](Resolved::to_toml) wrote; with both values.
    ///
    /// # Errors
    /// A text that is not TOML.
    pub fn changes(&self, text: &str) -> Result<Vec<String>, toml::de::Error> {
        let earlier: toml::Table = toml::from_str(text)?;
        let now: toml::Table = toml::from_str(&self.hashed_toml())?;
        let (mut earlier, now) = (flat(&earlier), flat(&now));
        // The text has every value, at its default or not.
        earlier.retain(|key, value| !is_later_default(key, &value.to_string()));
        let keys: std::collections::BTreeSet<&String> = earlier.keys().chain(now.keys()).collect();
        let shown = |value: Option<&toml::Value>| value.map_or_else(|| "not set".to_owned(), ToString::to_string);
        let counts = |key: &&&String| hash_rule(key) == HashRule::Counted && earlier.get(**key) != now.get(**key);
        let change = |key: &String| format!("{key}: {} -> {}", shown(earlier.get(key)), shown(now.get(key)));
        Ok(keys.iter().filter(counts).map(|key| change(key)).collect())
    }

    /// Origin of the value of a key; `None` for an unknown key.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        self.entries.iter().find(|e| e.key == key).map(|e| &e.origin)
    }

    /// The place of a key for an error message about its value: file, line and column, or the argument.
    pub fn place(&self, key: &str) -> String {
        self.origin(key).map_or_else(|| key.to_owned(), Origin::place)
    }

    /// The value of a key as TOML; `None` where it has none.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.entries.iter().find(|entry| entry.key == key)?.value.as_deref()
    }

    /// Whether the recipe or an argument sets the key.
    pub(super) fn is_explicit(&self, key: &str) -> bool {
        self.origin(key).is_some_and(Origin::is_explicit)
    }

    /// The recipe with its ranks divided in another way, for plans. Text, origins and hash stay as they are.
    #[must_use]
    pub fn with_parallel(self, parallel: super::Parallel) -> Self {
        Resolved { settings: Settings { parallel, ..self.settings }, ..self }
    }

    /// The recipe with this number of blocks in each model chunk of its pipeline, which were chosen by time.
    #[must_use]
    pub fn partitioned(mut self, counts: Vec<usize>) -> Self {
        let partition = StagePartition::Rule(PartitionRule::Given(counts));
        for entry in self.entries.iter_mut().filter(|entry| entry.key == PARTITION) {
            (entry.value, entry.origin) = (Some(rendered(&partition)), Origin::Measured);
        }
        self.settings.parallel.partition = partition;
        self
    }

    /// Sets the default of the micro-batch size, and of the evaluation's, which follows it.
    pub(super) fn set_micro_batch(&mut self, size: usize, origin: Origin) {
        self.settings.train.micro_batch_size = size;
        let follows = !self.is_explicit("eval.batch_size");
        for entry in &mut self.entries {
            match entry.key {
                "train.micro_batch_size" => (entry.value, entry.origin) = (Some(size.to_string()), origin.clone()),
                "eval.batch_size" if follows => {
                    entry.value = Some(size.to_string());
                    self.settings.eval.batch_size = size;
                }
                _ => {}
            }
        }
    }

    /// Growth of the batches of the run.
    pub fn batch_ramp(&self) -> BatchRamp {
        self.train.batch_ramp.unwrap_or(BatchRamp::constant(self.train.batch_size as u64))
    }

    /// Sets the batch size, which no key sets.
    pub(super) fn set_batch(&mut self, size: usize, origin: Origin) {
        self.settings.train.batch_size = size;
        if let Some(ramp) = &mut self.settings.train.batch_ramp {
            ramp.batch = size as u64;
        }
        for entry in self.entries.iter_mut().filter(|entry| entry.key == "train.batch_size") {
            (entry.value, entry.origin) = (Some(size.to_string()), origin.clone());
        }
    }

    /// Key and value of every setting that is in force.
    pub fn values(&self) -> Vec<(String, toml::Value)> {
        let table: toml::Table = toml::from_str(&self.to_toml()).unwrap_or_default();
        flat(&table).into_iter().collect()
    }

    /// Every key, in printing order.
    pub fn keys(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.entries.iter().map(|e| e.key)
    }
}

/// Whether a key sets the schedule of the learning rate, or the length of the run, which that is made for.
pub fn is_of_schedule(key: &str) -> bool {
    keys::row(key).is_some_and(|row| row.is_of_schedule)
}

/// Whether a value is the default of a key of a later version.
fn is_later_default(key: &str, value: &str) -> bool {
    keys::row(key).is_some_and(|row| row.later == Some(value))
}

/// Contribution of a key to the hash; one of an earlier version is counted as the keys of its first table.
fn hash_rule(key: &str) -> HashRule {
    let table = || keys::rows().iter().find(|row| first_table(row.key) == first_table(key));
    match keys::row(key) {
        Some(row) => row.hash,
        None => table().map_or(HashRule::Counted, |row| row.hash),
    }
}

/// Keys in a row that have no effect for the same reason, from which number on they share a comment.
const SHARED_REASON: usize = 3;

/// Columns of such a comment.
const COMMENT_WIDTH: usize = 100;

/// Every key with its value or why it has none, sorted by table.
pub(super) fn print_entries(entries: &[SettingEntry]) -> String {
    let mut lines: Vec<(String, String)> = Vec::new();
    let mut current = "";
    let alike = |a: &SettingEntry, b: &SettingEntry| {
        table_of(a.key) == table_of(b.key) && a.without_effect().is_some() && a.without_effect() == b.without_effect()
    };
    for run in entries.chunk_by(alike) {
        let table = table_of(run[0].key);
        if table != current {
            if !lines.is_empty() {
                lines.push((String::new(), String::new()));
            }
            lines.push((format!("[{table}]"), String::new()));
            current = table;
        }
        match run[0].without_effect() {
            Some(reason) if run.len() >= SHARED_REASON => lines.extend(shared_reason(run, reason)),
            _ => lines.extend(run.iter().map(line_of)),
        }
    }
    let width = |left: &String| left.chars().count();
    let fits = lines.iter().map(|(left, _)| width(left)).filter(|w| *w <= MAX_COMMENT_COLUMN);
    let column = fits.max().unwrap_or(0) + 2;
    let mut out = String::new();
    for (left, comment) in &lines {
        out.push_str(left);
        if !comment.is_empty() {
            let gap = if left.is_empty() { 0 } else { column.saturating_sub(width(left)).max(2) };
            out.push_str(&format!("{}# {comment}", " ".repeat(gap)));
        }
        out.push('\n');
    }
    out
}

fn name_of(entry: &SettingEntry) -> &'static str {
    entry.key.rsplit_once('.').map_or(entry.key, |(_, name)| name)
}

/// A key with its value, and a comment.
fn line_of(entry: &SettingEntry) -> (String, String) {
    let name = name_of(entry);
    let left = match &entry.value {
        Some(value) if entry.is_effective() => format!("{name} = {value}"),
        Some(value) => format!("# {name} = {value}"),
        None => format!("# {name}"),
    };
    (left, entry.note.clone().unwrap_or_else(|| entry.origin.to_string()))
}

/// Lines of comment alone: the names of keys, and why none of them has an effect.
fn shared_reason(run: &[SettingEntry], reason: &str) -> Vec<(String, String)> {
    let mut lines = vec![format!("no effect, {reason}:")];
    for (index, entry) in run.iter().enumerate() {
        let name = name_of(entry).to_owned() + if index + 1 < run.len() { "," } else { "" };
        match lines.last_mut() {
            Some(line) if line.chars().count() + name.len() + 3 <= COMMENT_WIDTH => *line += &format!(" {name}"),
            _ => lines.push(format!("  {name}")),
        }
    }
    lines.into_iter().map(|line| (String::new(), line)).collect()
}

/// Appends the entries, which are sorted by table, each table with its header.
fn write_tables(mut out: String, entries: impl Iterator<Item = impl Borrow<SettingEntry>>) -> String {
    let mut current = "";
    for entry in entries {
        let entry = entry.borrow();
        let (table, name) = entry.key.rsplit_once('.').unwrap_or(("", entry.key));
        if table != current {
            out.push_str(&format!("\n[{table}]\n"));
            current = table;
        }
        out.push_str(&format!("{name} = {}\n", entry.value.as_deref().unwrap_or_default()));
    }
    out
}

/// Every value under its dotted key.
pub fn flat(table: &toml::Table) -> std::collections::BTreeMap<String, toml::Value> {
    let mut out = std::collections::BTreeMap::new();
    for (name, value) in table {
        match value {
            toml::Value::Table(inner) => {
                out.extend(flat(inner).into_iter().map(|(key, value)| (format!("{name}.{key}"), value)));
            }
            value => {
                out.insert(name.clone(), value.clone());
            }
        }
    }
    out
}
