//! Columns of lists and structures: which values of their leaves make a row's value.
//!
//! Defines [`Node`] and [`Entries`]. Parquet stores the leaves of a nested column one by one, each value with two
//! levels: how many of the optional and repeated fields on the way to it are there, and which list it continues.

use std::collections::BTreeSet;

use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use super::columns::{Cell, Kind, kind};

/// A column or a part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    /// Leaf number `leaf` of the column; a value is there at the level `defined`.
    Leaf { leaf: usize, defined: i16 },
    /// Fields by name; there at the level `defined`.
    Struct { defined: i16, fields: Vec<(String, Node)> },
    /// A list, there at the level `defined`, with an item at the level after it; items that follow repeat level
    /// `repeated`.
    List { defined: i16, repeated: i16, item: Box<Node> },
}

/// Part of a column without a plain value in JSON: its path in the column and its type.
pub(super) type NoValue = (String, String);

/// Counts leaves and levels on the way down.
pub(super) struct Builder {
    /// The kinds of the leaves that were found.
    pub(super) kinds: Vec<Kind>,
    /// Whether a writer of Arrow made the file.
    pub(super) is_arrow: bool,
}

impl Builder {
    /// The node of a field under `defined` optional and repeated fields, of them `repeated`.
    pub(super) fn node(&mut self, field: &Type, defined: i16, repeated: i16) -> Result<Node, NoValue> {
        let info = field.get_basic_info();
        match if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED } {
            Repetition::REQUIRED => self.present(field, defined, repeated),
            Repetition::OPTIONAL => self.present(field, defined + 1, repeated),
            // A list without a group around it, as protocol buffers have.
            Repetition::REPEATED => {
                let item = Box::new(self.present(field, defined + 1, repeated + 1)?);
                Ok(Node::List { defined, repeated: repeated + 1, item })
            }
        }
    }

    /// The node of a field whose own repetition is counted.
    fn present(&mut self, field: &Type, defined: i16, repeated: i16) -> Result<Node, NoValue> {
        let named = |(path, kind): NoValue| (format!("{}.{path}", field.name()), kind);
        if field.is_primitive() {
            let found = kind(field, self.is_arrow).map_err(|kind| (field.name().to_owned(), kind))?;
            self.kinds.push(found);
            return Ok(Node::Leaf { leaf: self.kinds.len() - 1, defined });
        }
        let (logical, converted) = (field.get_basic_info().logical_type_ref(), field.get_basic_info().converted_type());
        if matches!(logical, Some(LogicalType::Map))
            || matches!(converted, ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE)
        {
            return Err((field.name().to_owned(), "map".into()));
        }
        let is_list = matches!(logical, Some(LogicalType::List)) || converted == ConvertedType::LIST;
        if let (true, [middle]) = (is_list, field.get_fields())
            && middle.get_basic_info().has_repetition()
            && middle.get_basic_info().repetition() == Repetition::REPEATED
        {
            // Old writers left out the group of the items.
            let is_item = middle.is_primitive()
                || middle.get_fields().len() != 1
                || middle.name() == "array"
                || middle.name() == format!("{}_tuple", field.name());
            let item = match middle.is_group().then(|| middle.get_fields().first()).flatten() {
                Some(inner) if !is_item => self.node(inner, defined + 1, repeated + 1),
                _ => self.present(middle, defined + 1, repeated + 1),
            };
            return Ok(Node::List { defined, repeated: repeated + 1, item: Box::new(item.map_err(named)?) });
        }
        if field.get_fields().is_empty() {
            return Err((field.name().to_owned(), "group without fields".into()));
        }
        let mut names = BTreeSet::new();
        let fields = field.get_fields().iter().map(|inner| {
            if !names.insert(inner.name()) {
                return Err((format!("{}.{}", field.name(), inner.name()), "two fields of this name".into()));
            }
            let node = self.node(inner, defined, repeated).map_err(named)?;
            Ok((inner.name().to_owned(), node))
        });
        Ok(Node::Struct { defined, fields: fields.collect::<Result<_, NoValue>>()? })
    }
}

/// The entries of a leaf in one row.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// The two levels of each.
    pub(super) defined: Vec<i16>,
    pub(super) repeated: Vec<i16>,
    /// Those that are values.
    pub(super) cells: std::vec::IntoIter<Cell>,
    pub(super) next: usize,
}

/// Why a row's value cannot be made.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The leaves contradict each other.
    Broken,
    /// A text cannot be used, or the value is too long: why.
    Unusable(String),
}

impl Entries {
    fn defined(&self) -> Result<i16, Fault> {
        self.defined.get(self.next).copied().ok_or(Fault::Broken)
    }

    /// Whether the next entry continues a list of this level.
    fn continues(&self, level: i16) -> bool {
        self.next < self.defined.len() && self.repeated.get(self.next).copied().unwrap_or(0) == level
    }

    /// Whether all entries were used.
    pub(super) fn is_used(&self) -> bool {
        self.next == self.defined.len() && self.cells.as_slice().is_empty()
    }
}

impl Node {
    /// The value of a row from the entries of its leaves; `value` makes one of a cell, and counts.
    pub(super) fn value(
        &self,
        leaves: &mut [Entries],
        value: &mut dyn FnMut(Option<Cell>) -> Result<Value, Fault>,
    ) -> Result<Value, Fault> {
        match self {
            Node::Leaf { leaf, defined } => {
                let entries = leaves.get_mut(*leaf).ok_or(Fault::Broken)?;
                let is_there = entries.defined()? >= *defined;
                entries.next += 1;
                let cell = if is_there { Some(entries.cells.next().ok_or(Fault::Broken)?) } else { None };
                value(cell)
            }
            Node::Struct { defined, fields } => {
                if self.level(leaves)? < *defined {
                    return self.pass(leaves, value);
                }
                let fields = fields.iter().map(|(name, node)| Ok((name.clone(), node.value(leaves, value)?)));
                Ok(Value::Object(fields.collect::<Result<Map<_, _>, Fault>>()?))
            }
            Node::List { defined, repeated, item } => {
                match self.level(leaves)? {
                    level if level < *defined => return self.pass(leaves, value),
                    level if level == *defined => {
                        self.pass(leaves, value)?;
                        return Ok(Value::Array(Vec::new()));
                    }
                    _ => {}
                }
                let mut items = Vec::new();
                loop {
                    items.push(item.value(leaves, value)?);
                    let mut continues =
                        self.leaves().map(|leaf| leaves.get(leaf).is_some_and(|one| one.continues(*repeated)));
                    let first = continues.next().unwrap_or(false);
                    if continues.any(|other| other != first) {
                        return Err(Fault::Broken);
                    }
                    if !first {
                        return Ok(Value::Array(items));
                    }
                }
            }
        }
    }

    /// Level down to which the path to the first leaf's next entry is there.
    fn level(&self, leaves: &[Entries]) -> Result<i16, Fault> {
        let first = self.leaves().next().and_then(|leaf| leaves.get(leaf));
        first.ok_or(Fault::Broken)?.defined()
    }

    /// Uses one entry of each leaf, for what is not there.
    fn pass(
        &self,
        leaves: &mut [Entries],
        value: &mut dyn FnMut(Option<Cell>) -> Result<Value, Fault>,
    ) -> Result<Value, Fault> {
        for leaf in self.leaves() {
            let entries = leaves.get_mut(leaf).ok_or(Fault::Broken)?;
            entries.defined()?;
            entries.next += 1;
        }
        value(None)
    }

    fn leaves(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        match self {
            Node::Leaf { leaf, .. } => Box::new(std::iter::once(*leaf)),
            Node::Struct { fields, .. } => Box::new(fields.iter().flat_map(|(_, node)| node.leaves())),
            Node::List { item, .. } => item.leaves(),
        }
    }
}
