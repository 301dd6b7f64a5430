//! The layers of a recipe merged into one tree, each value with its origin.
//!
//! Defines [`Origin`], [`Value`], [`Tree`] and [`merge`], the deep merge of the recipe file and the `--set` arguments,
//! the later one winning. Defaults are the lowest layer and live with the keys. Nothing here knows any key. Called by
//! [`Recipe`](crate::recipe::Recipe); the tree is consumed by the reader.

use super::mistake::Mistake;
use model_center_base::file::printable;
use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use toml::de::{DeTable, DeValue};

/// The largest recipe file that is read, in bytes. Real recipes are about 2 KiB.
pub const MAX_RECIPE_BYTES: u64 = 1 << 20;
/// Longest `--set` argument that is looked at, in bytes; the shell allows more than any setting needs.
const MAX_SET_BYTES: usize = 1 << 16;
/// Most parts of a path in `--set`; ours have three.
const MAX_SET_DEPTH: usize = 8;
/// Syntax errors listed of one file; what follows the first few is rarely worth reading.
const MAX_SYNTAX_MISTAKES: usize = 10;
/// Characters of a `--set` argument shown in messages.
const SHOWN_SET: usize = 80;

/// Origin of a value. The order is the order of precedence, then of appearance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The default.
    Default,
    /// The default, which is the value of another key.
    Follows(&'static str),
    /// The default, which is this rank's share of the batch.
    Shared {
        /// The number of data-parallel ranks.
        ranks: usize,
        /// The number of micro-batches that each of them has in a step: 1, or the fewest that fill its pipeline.
        micro_batches: usize,
    },
    /// The number that the other numbers of the batch leave on this number of data-parallel ranks.
    Solved {
        /// The number of these ranks.
        data_ranks: usize,
    },
    /// The default, which is the value that the run in the output directory was begun with.
    Begun,
    /// Chosen by times that a run with this recipe measured.
    Measured,
    /// A place in the recipe file.
    File {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The file as named by the caller.
        name: Arc<str>,
    },
    /// A command line argument.
    Set {
        /// Its number among the `--set` arguments, from 0.
        index: usize,
        /// Its text, clipped.
        text: Arc<str>,
    },
}

impl Origin {
    /// Whether the user set the value.
    pub fn is_explicit(&self) -> bool {
        matches!(self, Origin::File { .. } | Origin::Set { .. })
    }

    /// The place for an error message: `file:line:column` or the argument.
    pub fn place(&self) -> String {
        match self {
            Origin::File { line, column, name } => format!("{name}:{line}:{column}"),
            Origin::Set { text, .. } => format!("--set {text}"),
            _ => "the default".into(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Follows(key) => write!(f, "default: follows {key}"),
            Origin::Shared { ranks, micro_batches: 1 } => write!(f, "default: train.batch_size / {ranks} ranks"),
            Origin::Shared { ranks, micro_batches } => {
                write!(f, "default: train.batch_size / {ranks} data ranks / {micro_batches} micro-batches")
            }
            Origin::Solved { data_ranks } => {
                write!(f, "default: follows train.accumulation, on {data_ranks} data ranks")
            }
            Origin::Begun => f.write_str("default: as the run that is resumed"),
            Origin::Measured => f.write_str("measured by the run"),
            Origin::File { line, name, .. } => write!(f, "{name}:{line}"),
            Origin::Set { text, .. } => write!(f, "--set {text}"),
        }
    }
}

/// A value that is not a table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Bool(bool),
    Array(Vec<Value>),
    /// A table whose keys are not settings, such as classes; sorted by name.
    Table(Vec<(String, Value)>),
    /// A value that no setting accepts, described, e.g. `a date`.
    Other(&'static str),
    /// The right side of a `--set`, to be read as what its key wants.
    Raw(String),
}

impl fmt::Display for Value {
    /// For messages: the type and the value, clipped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => write!(f, "the string \"{}\"", printable(text, 40)),
            Value::Integer(v) => write!(f, "the integer {v}"),
            Value::Float(v) => write!(f, "the float {v:?}"),
            Value::Bool(v) => write!(f, "the boolean {v}"),
            Value::Array(items) => write!(f, "an array of {}", items.len()),
            Value::Table(_) => f.write_str("a table"),
            Value::Other(what) => f.write_str(what),
            Value::Raw(text) => write!(f, "\"{}\"", printable(text, 40)),
        }
    }
}

/// A value and where it was written.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    pub(crate) value: Value,
    /// Origin of the key.
    pub(crate) key: Origin,
    /// Origin of the value.
    pub(crate) origin: Origin,
}

/// Value of a key.
#[derive(Debug, Clone)]
pub(crate) enum Node {
    Leaf(Leaf),
    Table(Tree),
}

/// A table of settings, with the place of its header or first mention.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub(crate) origin: Origin,
    pub(crate) nodes: BTreeMap<String, Node>,
    /// Whether this table is one value, which takes the place of an earlier one as a whole.
    is_value: bool,
}

impl Tree {
    pub(crate) fn new(origin: Origin) -> Self {
        Tree { origin, nodes: BTreeMap::new(), is_value: false }
    }

    /// Lays `upper` over this table: tables of settings merge, everything else is replaced.
    fn overlay(&mut self, upper: Tree) {
        for (key, node) in upper.nodes {
            match (self.nodes.get_mut(&key), node) {
                (Some(Node::Table(below)), Node::Table(above)) if !above.is_value => below.overlay(above),
                (_, node) => {
                    self.nodes.insert(key, node);
                }
            }
        }
    }
}

/// Reads a recipe file of bounded size.
pub(crate) fn read_file(path: &Path) -> Result<String, Mistake> {
    let place = path.display().to_string();
    let refused = |e: std::io::Error| Mistake::recipe(&place, format!("cannot read the recipe: {e}"), "check the path");
    // Opening a named pipe would wait for its writer, so the kind of file is looked at first.
    let kind = std::fs::metadata(path).map_err(refused)?;
    if !kind.is_file() {
        return Err(Mistake::recipe(&place, "the recipe is not a plain file", "name a TOML file"));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(refused)?;
    file.take(MAX_RECIPE_BYTES + 1).read_to_end(&mut bytes).map_err(refused)?;
    if bytes.len() as u64 > MAX_RECIPE_BYTES {
        let reason = format!("the recipe is larger than {MAX_RECIPE_BYTES} bytes");
        return Err(Mistake::recipe(&place, reason, "name a recipe, not a data file"));
    }
    String::from_utf8(bytes).map_err(|e| {
        let good = e.as_bytes().get(..e.utf8_error().valid_up_to()).unwrap_or_default();
        let (line, column) = Lines::new(&String::from_utf8_lossy(good)).place(good.len());
        Mistake::recipe(format!("{place}:{line}:{column}"), "the recipe is not UTF-8 text", "save the file as UTF-8")
    })
}

/// Merges the file's text and the arguments. The last argument for a key overrides earlier ones, as in most programs: a
/// script can append its own. A key that appears twice in the file is a mistake instead. What could not be parsed is
/// left out and listed. `values` are the keys whose values are tables.
pub(crate) fn merge(name: &str, text: &str, sets: &[String], values: &[&str]) -> (Tree, Vec<Mistake>) {
    let mut mistakes = Vec::new();
    let mut tree = file_layer(name, text, &mut mistakes);
    for (index, argument) in sets.iter().enumerate() {
        match set_layer(index, argument, values) {
            Ok(layer) => tree.overlay(layer),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    (tree, mistakes)
}

fn file_layer(name: &str, text: &str, mistakes: &mut Vec<Mistake>) -> Tree {
    let lines = Lines::new(text);
    let name: Arc<str> = name.into();
    let at = |offset: usize| {
        let (line, column) = lines.place(offset);
        Origin::File { line, column, name: name.clone() }
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut last_line = 0;
    for error in &errors {
        let span = error.span().unwrap_or(0..0);
        let (line, _) = lines.place(span.start);
        // A further error on the same line is a consequence of the first one.
        if line == std::mem::replace(&mut last_line, line) {
            continue;
        }
        if mistakes.len() == MAX_SYNTAX_MISTAKES {
            break;
        }
        let message = error.message();
        let (reason, fix) = if message.starts_with("duplicate key") {
            let key = text.get(span.clone()).unwrap_or_default();
            (format!("`{}` is set twice", printable(key, 40)), "keep one of the two")
        } else {
            (format!("not valid TOML: {}", printable(message, 120)), "correct the line")
        };
        mistakes.push(Mistake::recipe(at(span.start).place(), reason, fix));
    }
    tree_of(table.get_ref(), at(0), &at)
}

/// Copies a parsed table; `at` turns an offset into a place. The parser bounds the nesting, and so this recursion.
fn tree_of(table: &DeTable<'_>, origin: Origin, at: &dyn Fn(usize) -> Origin) -> Tree {
    let mut tree = Tree::new(origin);
    for (key, value) in table {
        let key_origin = at(key.span().start);
        let node = match value.get_ref() {
            DeValue::Table(inner) => Node::Table(tree_of(inner, key_origin, at)),
            other => Node::Leaf(Leaf { value: value_of(other), key: key_origin, origin: at(value.span().start) }),
        };
        tree.nodes.insert(key.get_ref().to_string(), node);
    }
    tree
}

fn value_of(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(v) => match i64::from_str_radix(v.as_str(), v.radix()) {
            Ok(v) => Value::Integer(v),
            Err(_) => Value::Other("an integer beyond 64 bits"),
        },
        DeValue::Float(v) => v.as_str().parse().map_or(Value::Other("a number out of range"), Value::Float),
        DeValue::Boolean(v) => Value::Bool(*v),
        DeValue::Datetime(_) => Value::Other("a date"),
        DeValue::Array(items) => Value::Array(items.iter().map(|item| value_of(item.get_ref())).collect()),
        DeValue::Table(table) => {
            let entries = table.iter().map(|(key, value)| (key.get_ref().to_string(), value_of(value.get_ref())));
            let mut entries: Vec<(String, Value)> = entries.collect();
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Value::Table(entries)
        }
    }
}

/// One `path=value` as a tree of its own.
fn set_layer(index: usize, argument: &str, values: &[&str]) -> Result<Tree, Mistake> {
    let shown: Arc<str> = printable(argument, SHOWN_SET).into();
    let origin = Origin::Set { index, text: shown };
    let wrong =
        |reason: &str| Mistake::recipe(origin.place(), reason, "write --set table.key=value, e.g. train.lr=3e-4");
    if argument.len() > MAX_SET_BYTES {
        return Err(wrong("the argument is too long"));
    }
    let (path, right) = argument.split_once('=').ok_or_else(|| match argument.ends_with(".toml") {
        true => {
            let fix = format!("for a recipe write --recipe {}", printable(argument, SHOWN_SET));
            Mistake::recipe(origin.place(), "there is no `=`, and a recipe is named by --recipe", fix)
        }
        false => wrong("there is no `=`"),
    })?;
    let (path, right) = (path.trim(), right.trim());
    let keys: Vec<&str> = path.split('.').map(str::trim).collect();
    let plain = |key: &&str| !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if !keys.iter().all(plain) || keys.len() > MAX_SET_DEPTH {
        return Err(wrong("the text before `=` is not a path of keys"));
    }
    if right.is_empty() {
        return Err(wrong("there is no value after `=`"));
    }
    let mut node = if right.starts_with('{') {
        let parsed =
            DeValue::parse(right).map_err(|e| wrong(&format!("not a TOML table: {}", printable(e.message(), 120))))?;
        match parsed.get_ref() {
            DeValue::Table(table) => {
                let tree = tree_of(table, origin.clone(), &|_| origin.clone());
                Node::Table(Tree { is_value: values.contains(&path), ..tree })
            }
            _ => return Err(wrong("not a TOML table")),
        }
    } else {
        Node::Leaf(Leaf { value: Value::Raw(right.to_owned()), key: origin.clone(), origin: origin.clone() })
    };
    let mut tree = Tree::new(origin.clone());
    for key in keys.iter().skip(1).rev() {
        let mut table = Tree::new(origin.clone());
        table.nodes.insert((*key).to_owned(), node);
        node = Node::Table(table);
    }
    tree.nodes.insert(keys.first().copied().unwrap_or_default().to_owned(), node);
    Ok(tree)
}

/// Reads the right side of a `--set` for a key that takes text (`textual`) or anything else.
///
/// Text needs no quotes. For other keys, anything that is not a TOML value is taken for text, so that the key's own
/// error applies.
pub(crate) fn parse_raw(raw: &str, textual: bool) -> Result<Value, String> {
    if textual && !raw.starts_with(['"', '\'']) {
        return Ok(Value::Text(raw.to_owned()));
    }
    match DeValue::parse(raw) {
        Ok(parsed) => Ok(value_of(parsed.get_ref())),
        Err(error) if raw.starts_with(['"', '\'', '[']) => Err(printable(error.message(), 120)),
        Err(_) => Ok(Value::Text(raw.to_owned())),
    }
}

/// Finds line and column of an offset.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect();
        Lines { text, starts }
    }

    /// Line and column, both from 1; columns count characters.
    fn place(&self, offset: usize) -> (usize, usize) {
        let line = self.starts.partition_point(|&start| start <= offset).max(1);
        let start = self.starts.get(line - 1).copied().unwrap_or(0);
        // A line of a hostile file may be a megabyte long; counting it for every value would take minutes.
        const COUNTED: usize = 4096;
        let ahead = offset.saturating_sub(start);
        let column = match self.text.get(start..offset) {
            Some(before) if ahead <= COUNTED => before.chars().count() + 1,
            _ => ahead + 1,
        };
        (line, column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf<'a>(tree: &'a Tree, path: &str) -> &'a Leaf {
        let (table, key) = path.split_once('.').unwrap();
        let Some(Node::Table(inner)) = tree.nodes.get(table) else { panic!("no table {table}") };
        if key.contains('.') {
            return leaf(inner, key);
        }
        let Some(Node::Leaf(found)) = inner.nodes.get(key) else { panic!("no leaf {path}") };
        found
    }

    #[test]
    fn later_layers_win_and_neighbours_stay() {
        let text = "[train]\nlr = 1e-4\nseed = 7\n[train.early_stop]\npatience = 2\n";
        let sets = ["train.lr=3e-4".to_string(), "train.early_stop={metric=\"f1\"}".into()];
        let (tree, mistakes) = merge("r.toml", text, &sets, &[]);
        assert_eq!(mistakes, []);
        assert_eq!(leaf(&tree, "train.lr").value, Value::Raw("3e-4".into()));
        assert_eq!(leaf(&tree, "train.lr").origin.to_string(), "--set train.lr=3e-4");
        assert_eq!(leaf(&tree, "train.seed").value, Value::Integer(7));
        assert_eq!(leaf(&tree, "train.seed").origin.place(), "r.toml:3:8");
        assert_eq!(leaf(&tree, "train.early_stop.patience").value, Value::Integer(2));
        assert_eq!(leaf(&tree, "train.early_stop.metric").value, Value::Text("f1".into()));
    }

    #[test]
    fn columns_count_characters_not_bytes() {
        let lines = Lines::new("ä = \"é\" # x\nb");
        assert_eq!(lines.place("ä = \"é\" # ".len()), (1, 11));
        assert_eq!(lines.place("ä = \"é\" # x\n".len()), (2, 1));
        assert_eq!(lines.place(10_000), (2, 9987));
    }

    #[test]
    fn raw_values_are_read_as_their_key_wants() {
        assert_eq!(parse_raw("2024-01-01", true), Ok(Value::Text("2024-01-01".into())));
        assert_eq!(parse_raw("\"a b\"", true), Ok(Value::Text("a b".into())));
        assert_eq!(parse_raw("1_000", false), Ok(Value::Integer(1000)));
        assert_eq!(parse_raw("0x10", false), Ok(Value::Integer(16)));
        assert_eq!(parse_raw("3e-4", false), Ok(Value::Float(3e-4)));
        assert_eq!(parse_raw("true", false), Ok(Value::Bool(true)));
        assert_eq!(parse_raw("fast", false), Ok(Value::Text("fast".into())));
        assert_eq!(parse_raw("[1, 2]", false), Ok(Value::Array(vec![Value::Integer(1), Value::Integer(2)])));
        assert!(parse_raw("[1, 2", false).is_err());
        assert_eq!(parse_raw("99999999999999999999", false), Ok(Value::Other("an integer beyond 64 bits")));
    }
}
