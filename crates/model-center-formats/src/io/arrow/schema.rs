//! The columns of an Arrow file.
//!
//! Defines [`Schema`], [`Field`] and [`Kind`].

use std::collections::BTreeSet;

use serde_json::Value;

use super::flatbuffer::{Broken, Table};

/// Lists and structures in each other. JSON lines are read to a depth of 128.
const MAX_DEPTH: usize = 64;
/// Fields of all columns together; ten thousand columns are more than any file of records has.
const MAX_FIELDS: usize = 1 << 16;
/// Bytes of a name that count as a field more.
const NAME_BYTES: usize = 256;
/// Notes of all fields, and of the file.
const MAX_NOTES: usize = 1 << 20;

/// Type of a field's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Flag,
    /// A whole number of this many bytes.
    Int {
        width: usize,
        is_signed: bool,
    },
    /// A float of this many bytes.
    Float {
        width: usize,
    },
    Text {
        is_large: bool,
    },
    TextView,
    List {
        is_large: bool,
    },
    ListView {
        is_large: bool,
    },
    FixedList {
        length: usize,
    },
    Struct,
    /// A type without a plain value in JSON: its name, and the buffers that it has without its children's.
    Unread {
        name: String,
        buffers: usize,
        has_views: bool,
    },
}

/// A column or a part of one.
#[derive(Debug, Clone)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) kind: Kind,
    /// Numbers of other values, where values are such: which others, and how the numbers are stored.
    pub(super) dictionary: Option<(i64, Kind)>,
    pub(super) children: Vec<Field>,
    /// Whether texts are JSON, whose values count.
    pub(super) is_json: bool,
}

impl Field {
    /// The first part that has no plain value, with its path in the column.
    pub(super) fn unread(&self) -> Option<(String, &str)> {
        if let Kind::Unread { name, .. } = &self.kind {
            return Some((self.name.clone(), name));
        }
        self.children.iter().find_map(Field::unread).map(|(path, kind)| (format!("{}.{path}", self.name), kind))
    }
}

/// The columns, and what the libraries that wrote them noted.
#[derive(Debug, Clone)]
pub(super) struct Schema {
    pub(super) fields: Vec<Field>,
}

/// Why a schema is not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Broken,
    BigEndian,
    TooDeep,
    /// Two fields of a structure have this name.
    Twice(String),
}

impl From<Broken> for Refused {
    fn from(_: Broken) -> Self {
        Refused::Broken
    }
}

impl Schema {
    pub(super) fn of(table: &Table<'_>) -> Result<Self, Refused> {
        if table.int16(0)? != 0 {
            return Err(Refused::BigEndian);
        }
        let mut counts = Counts::default();
        let mut fields =
            table.tables(1)?.map(|field| field_of(&field?, MAX_DEPTH, &mut counts)).collect::<Result<Vec<_>, _>>()?;
        for pair in table.tables(2)? {
            let pair = pair?;
            counts.note()?;
            if pair.text(0)? == Some("huggingface") {
                let noted = pair.text(1)?.and_then(|text| serde_json::from_str::<Value>(text).ok());
                let features = noted.as_ref().and_then(|noted| noted.get("info")?.get("features"));
                fields.iter_mut().for_each(|field| mark_json(field, features.and_then(|all| all.get(&field.name))));
                break;
            }
        }
        Ok(Schema { fields })
    }
}

/// Fields and notes so far.
#[derive(Default)]
struct Counts {
    fields: usize,
    notes: usize,
}

impl Counts {
    fn note(&mut self) -> Result<(), Refused> {
        self.notes += 1;
        if self.notes > MAX_NOTES { Err(Refused::TooDeep) } else { Ok(()) }
    }
}

/// Marks the texts that `datasets` notes as its feature `Json`.
fn mark_json(field: &mut Field, feature: Option<&Value>) {
    let Some(feature) = feature else { return };
    match feature {
        Value::Object(map) if map.get("_type").and_then(Value::as_str) == Some("Json") => field.is_json = true,
        // Lists: an object with the feature of their items, or a list of one.
        Value::Object(map) if map.contains_key("_type") => {
            if let ([item], Some(inner)) = (field.children.as_mut_slice(), map.get("feature")) {
                mark_json(item, Some(inner));
            }
        }
        Value::Object(map) => {
            field.children.iter_mut().for_each(|child| {
                let inner = map.get(&child.name);
                mark_json(child, inner);
            });
        }
        Value::Array(items) => {
            if let ([item], [inner]) = (field.children.as_mut_slice(), items.as_slice()) {
                mark_json(item, Some(inner));
            }
        }
        _ => {}
    }
}

fn field_of(table: &Table<'_>, depth: usize, counts: &mut Counts) -> Result<Field, Refused> {
    let name = table.text(0)?.unwrap_or_default();
    // Many fields may have one long name, which is stored once.
    counts.fields += 1 + name.len() / NAME_BYTES;
    if depth == 0 || counts.fields > MAX_FIELDS {
        return Err(Refused::TooDeep);
    }
    let name = name.to_owned();
    let children = table.tables(5)?.map(|child| field_of(&child?, depth - 1, counts)).collect::<Result<Vec<_>, _>>()?;
    let kind = kind_of(table.byte(2)?, table.table(3)?)?;
    let dictionary = match table.table(4)? {
        None => None,
        // Indices are 32 bits wide where their type is not given.
        Some(encoding) => {
            let index = encoding.table(1)?.map_or(Ok(Kind::Int { width: 4, is_signed: true }), |int| int_of(&int))?;
            Some((encoding.int64(0)?, index))
        }
    };
    let expected = match kind {
        Kind::List { .. } | Kind::ListView { .. } | Kind::FixedList { .. } => Some(1),
        Kind::Struct | Kind::Unread { .. } => None,
        _ => Some(0),
    };
    if expected.is_some_and(|expected| expected != children.len()) {
        return Err(Refused::Broken);
    }
    let mut names = BTreeSet::new();
    if kind == Kind::Struct
        && let Some(twice) = children.iter().find(|child| !names.insert(child.name.as_str()))
    {
        return Err(Refused::Twice(format!("{name}.{}", twice.name)));
    }
    let mut is_json = false;
    for pair in table.tables(6)? {
        let pair = pair?;
        counts.note()?;
        if pair.text(0)? == Some("ARROW:extension:name") {
            is_json |= pair.text(1)? == Some("arrow.json");
        }
    }
    Ok(Field { name, kind, dictionary, children, is_json })
}

fn int_of(table: &Table<'_>) -> Result<Kind, Broken> {
    let width = match table.int32(0)? {
        8 => 1,
        16 => 2,
        32 => 4,
        64 => 8,
        _ => return Err(Broken),
    };
    Ok(Kind::Int { width, is_signed: table.flag(1)? })
}

/// The kind by its number in the format; parameters of a type that has none may be left out.
fn kind_of(number: u8, table: Option<Table<'_>>) -> Result<Kind, Broken> {
    let unread = |name: &str, buffers| Kind::Unread { name: name.into(), buffers, has_views: false };
    let parameters = || table.ok_or(Broken);
    Ok(match number {
        1 => Kind::Null,
        2 => int_of(&parameters()?)?,
        3 => match parameters()?.int16(0)? {
            0 => Kind::Float { width: 2 },
            1 => Kind::Float { width: 4 },
            2 => Kind::Float { width: 8 },
            _ => return Err(Broken),
        },
        4 => unread("binary", 3),
        5 => Kind::Text { is_large: false },
        6 => Kind::Flag,
        7 => unread("decimal", 2),
        8 => unread("date", 2),
        9 => unread("time", 2),
        10 => unread("timestamp", 2),
        11 => unread("interval", 2),
        12 => Kind::List { is_large: false },
        13 => Kind::Struct,
        14 => unread("union", if parameters()?.int16(0)? == 0 { 1 } else { 2 }),
        15 => unread("fixed-size binary", 2),
        16 => Kind::FixedList { length: usize::try_from(parameters()?.int32(0)?).map_err(|_| Broken)? },
        17 => unread("map", 2),
        18 => unread("duration", 2),
        19 => unread("large binary", 3),
        20 => Kind::Text { is_large: true },
        21 => Kind::List { is_large: true },
        22 => unread("run-end encoded", 0),
        23 => Kind::Unread { name: "binary view".into(), buffers: 2, has_views: true },
        24 => Kind::TextView,
        25 => Kind::ListView { is_large: false },
        26 => Kind::ListView { is_large: true },
        _ => return Err(Broken),
    })
}
