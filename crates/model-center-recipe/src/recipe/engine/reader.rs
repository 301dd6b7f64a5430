//! Reads keys out of the merged tree, each with its type, range and default.
//!
//! Defines [`Reader`]. One call per key declares it, checks the value and records it for `--print-config`; after a
//! mistake the default is returned and reading continues, so that all mistakes are found. Keys that no call declares
//! are unknown.
//! The kinds of values are in `kinds.rs`. Called by the tables in `keys/` and by the rules of keys.

use super::layers::{Leaf, Node, Origin, Tree, Value, parse_raw};
use super::mistake::Mistake;
use super::schema::Shape;
use super::table::{Row, Table};
use super::unknown::{self, ForeignNames};
use model_center_data::OwnData;

/// Beginning of the note of a setting that has no effect.
const NO_EFFECT: &str = "no effect: ";

/// One setting as it will be printed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SettingEntry {
    pub(crate) key: &'static str,
    /// The value as TOML; `None` when the key has no value.
    pub(crate) value: Option<String>,
    pub(crate) origin: Origin,
    /// Why the value is absent or has no effect.
    pub(crate) note: Option<String>,
}

impl SettingEntry {
    /// Whether the run depends on it.
    pub(crate) fn is_effective(&self) -> bool {
        self.value.is_some() && self.note.is_none()
    }

    /// Why it has no effect, if a setting is the reason.
    pub(crate) fn without_effect(&self) -> Option<&str> {
        self.note.as_deref()?.strip_prefix(NO_EFFECT)
    }
}

/// Declaration of a key, for the page of settings.
#[derive(Debug, Clone)]
pub(crate) struct Declared {
    pub(crate) row: &'static Row,
    /// Requirement on its value.
    pub(crate) wanted: String,
    /// Value where it is not set, in Markdown.
    pub(crate) default: String,
    /// Its values for a schema.
    pub(crate) shape: Shape,
}

/// The default of a key.
#[derive(Debug, Clone)]
pub(crate) enum Otherwise<'a, T> {
    /// This value.
    Default(T),
    /// No value; the text describes what happens then.
    Absent(&'a str),
    /// It is a mistake.
    Required,
}

/// Description of reading a key.
pub(crate) struct Spec<'a, T> {
    pub(crate) key: &'static str,
    /// Whether a `--set` value is text without quotes.
    pub(crate) textual: bool,
    /// Requirement on the value, to follow "must be".
    pub(crate) wanted: String,
    /// A right value as TOML.
    pub(crate) example: String,
    pub(crate) otherwise: Otherwise<'a, T>,
    /// Accepts or refuses a value.
    pub(crate) read: &'a dyn Fn(&Value) -> Option<T>,
    /// Gives an accepted value back as TOML.
    pub(crate) render: &'a dyn Fn(&T) -> String,
}

/// Reads and checks; see the module documentation.
pub(crate) struct Reader {
    tree: Tree,
    /// Every key; none where defaults alone are read.
    rows: &'static [Row],
    /// The recipe file's name, empty without a file.
    name: String,
    /// The tasks and classes that a program adds.
    pub(crate) own: OwnData,
    entries: Vec<SettingEntry>,
    mistakes: Vec<(Origin, Mistake)>,
    failed: Vec<&'static str>,
    /// The mistakes that are missing settings.
    missing: Vec<Mistake>,
    declared: Vec<Declared>,
    shapes: Vec<(&'static str, Shape)>,
}

/// Results of a reader.
pub(crate) struct Found {
    pub(crate) entries: Vec<SettingEntry>,
    /// In order of appearance.
    pub(crate) mistakes: Vec<Mistake>,
    /// The mistakes that are missing settings.
    pub(crate) missing: Vec<Mistake>,
}

impl Reader {
    pub(crate) fn new(tree: Tree, rows: &'static [Row], name: &str, own: OwnData) -> Self {
        Reader {
            tree,
            rows,
            own,
            name: name.to_owned(),
            entries: Vec::new(),
            mistakes: Vec::new(),
            failed: Vec::new(),
            missing: Vec::new(),
            declared: Vec::new(),
            shapes: Vec::new(),
        }
    }

    /// Reader of an empty recipe.
    pub(crate) fn of_defaults() -> Self {
        Reader::new(Tree::new(Origin::Default), &[], "", OwnData::default())
    }

    fn row(&self, key: &str) -> Option<&'static Row> {
        self.rows.iter().find(|row| row.key == key)
    }

    /// Reads one key. `None` only if it is absent, missing or wrong and has no default.
    pub(crate) fn read<T: Clone>(&mut self, spec: Spec<'_, T>) -> Option<T> {
        let fallback = if let Otherwise::Default(v) = &spec.otherwise { Some(v.clone()) } else { None };
        let row = self.row(spec.key);
        let followed = row.and_then(|row| row.follows);
        if let Some(row) = row {
            let default = match (row.default, followed, &spec.otherwise) {
                (Some(text), ..) => text.to_owned(),
                (None, Some(followed), _) => format!("follows `{followed}`"),
                (None, None, Otherwise::Default(v)) => format!("`{}`", (spec.render)(v)),
                (None, None, Otherwise::Absent(why)) => (*why).to_owned(),
                (None, None, Otherwise::Required) => "required".to_owned(),
            };
            self.declared.push(Declared { row, wanted: spec.wanted.clone(), default, shape: Shape::Any });
        }
        let leaf = match self.take(spec.key) {
            None => {
                match &spec.otherwise {
                    Otherwise::Default(v) => {
                        let origin = followed.map_or(Origin::Default, Origin::Follows);
                        self.note(spec.key, Some((spec.render)(v)), origin, None);
                    }
                    Otherwise::Absent(why) => self.note(spec.key, None, Origin::Default, Some((*why).to_owned())),
                    Otherwise::Required => self.missing(&spec),
                }
                return fallback;
            }
            Some(leaf) => leaf,
        };
        let value = match &leaf.value {
            Value::Raw(raw) => match parse_raw(raw, spec.textual) {
                Ok(value) => value,
                Err(why) => {
                    self.wrong(&spec, &leaf.origin, format!("is not valid TOML: {why}"), None);
                    return fallback;
                }
            },
            other => other.clone(),
        };
        match (spec.read)(&value) {
            Some(v) => {
                self.note(spec.key, Some((spec.render)(&v)), leaf.origin, None);
                Some(v)
            }
            None => {
                self.wrong(&spec, &leaf.origin, format!("must be {}, got {value}", spec.wanted), Some(&value));
                fallback
            }
        }
    }

    /// States the values of a key for a schema.
    pub(crate) fn shape(&mut self, key: &'static str, shape: Shape) {
        self.shapes.push((key, shape));
    }

    /// Every key that is set and was not read yet, with its dots.
    pub(crate) fn left(&self) -> Vec<String> {
        fn collect(prefix: &str, tree: &Tree, keys: &mut Vec<String>) {
            for (name, node) in &tree.nodes {
                let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                match node {
                    Node::Leaf(_) => keys.push(key),
                    Node::Table(inner) => collect(&key, inner, keys),
                }
            }
        }
        let mut keys = Vec::new();
        collect("", &self.tree, &mut keys);
        keys
    }

    /// The value of a key that was read, as TOML; `None` for one without a value.
    pub(crate) fn value(&self, key: &str) -> Option<&str> {
        self.entries.iter().find(|entry| entry.key == key)?.value.as_deref()
    }

    /// Whether the user set the key, validly or not.
    pub(crate) fn is_explicit(&self, key: &str) -> bool {
        self.entries.iter().any(|e| e.key == key && e.origin.is_explicit())
    }

    /// Whether all the keys could be read; what depends on one that could not is better not judged.
    pub(crate) fn are_sound(&self, keys: &[&str]) -> bool {
        !self.failed.iter().any(|failed| keys.contains(failed))
    }

    /// A setting that has no effect because of another one: an error if the user set it, a remark otherwise. Silent if
    /// either is invalid itself.
    pub(crate) fn without_effect(&mut self, key: &'static str, because: &'static str, why: &str, fix: &str) {
        let sound = self.are_sound(&[key, because]);
        let Some(entry) = self.entries.iter_mut().find(|e| e.key == key) else { return };
        if !entry.origin.is_explicit() {
            entry.note = Some(format!("{NO_EFFECT}{why}"));
        } else if sound {
            let origin = entry.origin.clone();
            let reason = format!("`{key}` has no effect: {why}");
            self.mistakes.push((origin.clone(), Mistake::recipe(origin.place(), reason, fix)));
        }
    }

    /// Settings of a table that have no effect because another one, `by`, does not have one of the choices that they
    /// are of; `why` is told these.
    pub(crate) fn refuse_others(
        &mut self,
        table: &Table,
        (by, chosen): (&'static str, &str),
        why: impl Fn(&[&str]) -> (String, String),
    ) {
        for row in table.rows().iter().filter(|row| !row.uses.is_empty() && !row.uses.contains(&chosen)) {
            let (why, fix) = why(row.uses);
            self.without_effect(row.key, by, &why, &fix);
        }
    }

    /// Settings that cannot hold together; the place is the last one written. Silent if one of them is wrong by itself.
    pub(crate) fn contradiction(&mut self, keys: &[&'static str], reason: impl Into<String>, fix: impl Into<String>) {
        if !self.are_sound(keys) {
            return;
        }
        let written = self.entries.iter().filter(|e| keys.contains(&e.key) && e.origin.is_explicit());
        let origin = written.map(|e| e.origin.clone()).max().or_else(|| self.table_origin(keys.first()?));
        self.mistake_at(origin, reason.into(), fix.into());
    }

    /// Settings that others require, such as a task, or alternatives: the `keys` without a value are missing. Silent if
    /// one of them is invalid itself.
    pub(crate) fn absent(&mut self, keys: &[&'static str], reason: impl Into<String>, fix: impl Into<String>) {
        if !self.are_sound(keys) {
            return;
        }
        let fix = fix.into();
        for entry in self.entries.iter_mut().filter(|e| keys.contains(&e.key) && e.value.is_none()) {
            entry.note = Some(format!("missing: {fix}"));
        }
        self.contradiction(keys, reason, fix);
        self.missing.extend(self.mistakes.last().map(|(_, mistake)| mistake.clone()));
    }

    /// The keys that were read.
    pub(crate) fn into_declared(self) -> Vec<Declared> {
        let Reader { mut declared, shapes, .. } = self;
        for (key, shape) in shapes {
            declared.iter_mut().filter(|declared| declared.row.key == key).for_each(|one| one.shape = shape.clone());
        }
        declared
    }

    /// The settings and the mistakes in order of appearance, unknown keys among them.
    pub(crate) fn finish(mut self, names: ForeignNames) -> Found {
        let known: Vec<&'static str> = self.entries.iter().map(|e| e.key).collect();
        let tree = std::mem::replace(&mut self.tree, Tree::new(Origin::Default));
        let (found, left_out) = unknown::find(tree, &known, names);
        self.mistakes.extend(found);
        self.mistakes.sort_by(|a, b| a.0.cmp(&b.0));
        if left_out > 0 {
            self.mistake_at(None, format!("{left_out} more unknown keys"), "is this a recipe?".into());
        }
        let mistakes = self.mistakes.into_iter().map(|(_, mistake)| mistake).collect();
        Found { entries: self.entries, mistakes, missing: self.missing }
    }

    fn mistake_at(&mut self, origin: Option<Origin>, reason: String, fix: String) {
        let place = match &origin {
            Some(origin) => origin.place(),
            None if self.name.is_empty() => "command line".into(),
            None => self.name.clone(),
        };
        self.mistakes.push((origin.unwrap_or(Origin::Default), Mistake::recipe(place, reason, fix)));
    }

    /// Position at which the table of a key begins.
    fn table_origin(&self, key: &str) -> Option<Origin> {
        let (tables, _) = key.rsplit_once('.')?;
        let mut tree = &self.tree;
        for table in tables.split('.') {
            match tree.nodes.get(table) {
                Some(Node::Table(inner)) => tree = inner,
                _ => return None,
            }
        }
        Some(tree.origin.clone())
    }

    fn note(&mut self, key: &'static str, value: Option<String>, origin: Origin, note: Option<String>) {
        debug_assert!(self.entries.iter().all(|e| e.key != key), "{key} is read twice");
        debug_assert!(self.rows.is_empty() || self.row(key).is_some(), "{key} has no row");
        self.entries.push(SettingEntry { key, value, origin, note });
    }

    fn missing<T>(&mut self, spec: &Spec<'_, T>) {
        let origin = self.table_origin(spec.key);
        self.failed.push(spec.key);
        self.note(spec.key, None, Origin::Default, Some(format!("missing: it must be {}", spec.wanted)));
        let reason = format!("`{}` is missing: it must be {}", spec.key, spec.wanted);
        self.mistake_at(origin, reason, format!("set {} = {}", spec.key, spec.example));
        self.missing.extend(self.mistakes.last().map(|(_, mistake)| mistake.clone()));
    }

    fn wrong<T>(&mut self, spec: &Spec<'_, T>, origin: &Origin, what: String, got: Option<&Value>) {
        self.failed.push(spec.key);
        let name = spec.key.rsplit('.').next().unwrap_or(spec.key);
        let word = match got {
            Some(Value::Text(text)) => Some(text.clone()),
            Some(Value::Integer(number)) => Some(number.to_string()),
            Some(Value::Bool(flag)) => Some(flag.to_string()),
            _ => None,
        };
        if let Some((reason, fix)) = word.and_then(|word| self.row(spec.key).and_then(|row| (row.foreign)(&word))) {
            self.note(spec.key, None, origin.clone(), Some(format!("wrong at {}: {reason}", origin.place())));
            return self.mistake_at(Some(origin.clone()), reason, fix);
        }
        // A quoted list in `wanted` is a choice: the nearest of them is a better hint than any example.
        let choices = || spec.wanted.split('"').skip(1).step_by(2);
        let is_list = spec.wanted.starts_with("a list");
        let near = match got {
            Some(Value::Text(text)) if !is_list => model_center_base::suggest::choice(text, choices()),
            Some(Value::Array(items)) if is_list => items.iter().find_map(|item| match item {
                Value::Text(text) if !choices().any(|choice| choice == text) => {
                    model_center_base::suggest::closest(text, choices())
                }
                _ => None,
            }),
            _ => None,
        };
        let fix =
            near.map_or_else(|| format!("write e.g. {name} = {}", spec.example), |w| format!("did you mean \"{w}\"?"));
        self.note(spec.key, None, origin.clone(), Some(format!("wrong at {}: {what}", origin.place())));
        self.mistake_at(Some(origin.clone()), format!("`{}` {what}", spec.key), fix);
    }

    /// Removes a key's value from the tree.
    fn take(&mut self, key: &'static str) -> Option<Leaf> {
        let (tables, name) = key.rsplit_once('.').unwrap_or(("", key));
        let mut tree = &mut self.tree;
        for table in tables.split('.').filter(|t| !t.is_empty()) {
            match tree.nodes.get_mut(table) {
                Some(Node::Table(inner)) => tree = inner,
                _ => return None,
            }
        }
        match tree.nodes.remove(name)? {
            Node::Leaf(leaf) => Some(leaf),
            Node::Table(inner) => {
                let origin = inner.origin.clone();
                let value = |(name, node)| match node {
                    Node::Leaf(Leaf { value: Value::Raw(raw), .. }) => {
                        (name, parse_raw(&raw, false).unwrap_or(Value::Other("no TOML")))
                    }
                    Node::Leaf(leaf) => (name, leaf.value),
                    Node::Table(_) => (name, Value::Other("a table")),
                };
                let value = Value::Table(inner.nodes.into_iter().map(value).collect());
                Some(Leaf { value, key: origin.clone(), origin })
            }
        }
    }
}
