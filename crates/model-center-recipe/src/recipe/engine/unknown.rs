//! The rest of the merged tree once every key has been read: unknown keys and tables.

use super::layers::{Node, Origin, Tree, Value};
use super::mistake::Mistake;
use model_center_base::file::printable;
use model_center_base::suggest;

/// Unknown keys named one by one; a file with more is not a recipe.
const MAX_NAMED: usize = 50;

/// Names that other trainers have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ForeignNames {
    /// Owner of a setting's name or path, and the key here.
    pub(crate) key: fn(&str) -> Option<(&'static str, &'static str)>,
    /// Feature of a setting's path that is not available, and one that is.
    pub(crate) missing: fn(&str) -> Option<(&'static str, &'static str)>,
}

/// The mistakes, each with its place, and how many more there are than were described.
pub(crate) fn find(tree: Tree, known: &[&'static str], names: ForeignNames) -> (Vec<(Origin, Mistake)>, usize) {
    let mut left = Vec::new();
    collect(String::new(), tree, known, &mut left);
    left.sort_by(|a, b| a.origin.cmp(&b.origin));
    let left_out = left.len().saturating_sub(MAX_NAMED);
    left.truncate(MAX_NAMED);
    (left.into_iter().map(|l| (l.origin.clone(), l.describe(known, names))).collect(), left_out)
}

struct Left {
    path: String,
    origin: Origin,
    /// The value, absent for a whole table.
    value: Option<Value>,
}

/// Walks tables that hold known keys; any other table is one finding, however much it holds.
fn collect(prefix: String, tree: Tree, known: &[&'static str], out: &mut Vec<Left>) {
    for (key, node) in tree.nodes {
        let path = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match node {
            Node::Leaf(leaf) => out.push(Left { path, origin: leaf.key, value: Some(leaf.value) }),
            Node::Table(inner) if is_table(&path, known) => collect(path, inner, known, out),
            Node::Table(inner) => out.push(Left { path, origin: inner.origin, value: None }),
        }
    }
}

fn is_table(path: &str, known: &[&'static str]) -> bool {
    known.iter().any(|k| k.strip_prefix(path).is_some_and(|rest| rest.starts_with('.')))
}

/// The tables that hold keys, in reading order.
fn tables(known: &[&'static str]) -> Vec<&'static str> {
    let mut tables: Vec<&'static str> = known.iter().filter_map(|k| Some(k.rsplit_once('.')?.0)).collect();
    let mut seen = std::collections::BTreeSet::new();
    tables.retain(|table| seen.insert(*table));
    tables
}

impl Left {
    fn describe(&self, known: &[&'static str], names: ForeignNames) -> Mistake {
        let shown = printable(&self.path, 60);
        if let Some(value) = &self.value
            && is_table(&self.path, known)
        {
            let reason = format!("`{shown}` must be a table of settings, got {value}");
            return Mistake::recipe(self.origin.place(), reason, format!("write [{shown}] and its settings below it"));
        }
        if let Some((what, instead)) = (names.missing)(&self.path) {
            let reason = format!("`{shown}`: {what} not available");
            return Mistake::recipe(self.origin.place(), reason, format!("available instead: {instead}"));
        }
        let tables = tables(known);
        let table = self.path.rsplit_once('.').map_or("", |(table, _)| table);
        if self.value.is_none() {
            let near = match (names.key)(&self.path) {
                Some((whose, ours)) => Some(format!("this is {whose}; here it is {ours}; ")),
                None => {
                    suggest::closest(&self.path, tables.iter().copied()).map(|near| format!("did you mean [{near}]? "))
                }
            };
            let fix = format!("{}tables: {}", near.unwrap_or_default(), tables.join(", "));
            return Mistake::recipe(self.origin.place(), format!("unknown table [{shown}]"), fix);
        }
        let name = self.path.rsplit('.').next().unwrap_or_default();
        let near = match (names.key)(name) {
            Some((whose, ours)) => Some(format!("this is {whose}; here it is {ours}; ")),
            None => suggest::path(&self.path, known).map(|near| format!("did you mean `{near}`? ")),
        };
        let near = near.unwrap_or_default();
        let siblings: Vec<&str> = known.iter().filter_map(|k| k.strip_prefix(table)?.strip_prefix('.')).collect();
        let fix = if table.is_empty() {
            format!("{near}every setting belongs to a table: {}", tables.join(", "))
        } else if siblings.is_empty() {
            format!("{near}tables: {}", tables.join(", "))
        } else {
            format!("{near}keys of [{table}]: {}", siblings.join(", "))
        };
        Mistake::recipe(self.origin.place(), format!("unknown key `{shown}`"), fix)
    }
}
