//! From values to tensors wherever they are: dictionaries and lists of any depth, with paths for names.
//!
//! Defines [`Scalar`] and `tensors`; called by [`PickleFile::open_tree`](super::PickleFile::open_tree).

use std::path::Path;

use super::input::refused;
use super::state::{State, Storage};
use super::value::{Id, Object, Value};
use crate::Result;

/// Dictionaries and lists inside of each other.
const DEPTH: usize = 16;
/// Values that are visited: a pickle of references to references could name any number.
const MAX_VISITS: usize = 1 << 20;
/// The longest path.
const MAX_PATH: usize = 1024;

/// A value that is not a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Scalar {
    /// A truth value.
    Truth(bool),
    /// A whole number.
    Whole(i64),
    /// A float.
    Float(f64),
    /// A text.
    Text(String),
    /// A tuple of whole numbers of at least 0, such as a shape.
    Shape(Vec<usize>),
}

/// Tensors and scalars by path. `is_read` chooses among the keys at the top. A tensor that is saved by itself is called
/// `tensor`.
pub(super) fn tensors(
    path: &Path,
    object: &Object,
    is_read: &dyn Fn(&str) -> bool,
    locate: &mut dyn FnMut(&Storage<'_>) -> Result<u64>,
) -> Result<State> {
    let mut walk = Walk { path, object, locate, state: State::new(), visited: 0 };
    if let Some(Value::Tensor(_)) = object.value(object.root) {
        walk.visit("tensor", object.root, DEPTH)?;
    }
    for (key, value) in object.dict(object.root).unwrap_or_default() {
        match object.text(*key) {
            Some(name) if is_read(name) => walk.visit(name, *value, DEPTH)?,
            Some(name) => walk.state.others.push(name.to_owned()),
            None => {}
        }
    }
    if walk.state.tensors.is_empty() && walk.state.scalars.is_empty() {
        let kind = object.describe(object.root);
        return Err(refused(path, format!("the file holds {kind} without the entries of a checkpoint")));
    }
    Ok(walk.state)
}

struct Walk<'a> {
    path: &'a Path,
    object: &'a Object,
    locate: &'a mut dyn FnMut(&Storage<'_>) -> Result<u64>,
    state: State,
    visited: usize,
}

impl Walk<'_> {
    fn visit(&mut self, name: &str, id: Id, depth: usize) -> Result<()> {
        self.visited += 1;
        if self.visited > MAX_VISITS || depth == 0 || name.len() > MAX_PATH {
            return Err(refused(self.path, "its dictionaries are nested too deep, or have too many values"));
        }
        let object = self.object;
        if let Some(whole) = object.integer(id) {
            self.state.scalars.push((name.to_owned(), Scalar::Whole(whole)));
            return Ok(());
        }
        let scalar = match object.value(id) {
            Some(Value::Tensor(arguments)) => {
                return self.state.add(self.path, object, (name, *arguments), self.locate);
            }
            Some(Value::Namespace(inner)) => return self.visit(name, *inner, depth - 1),
            Some(Value::Dict(pairs)) => {
                for (key, value) in pairs {
                    let key = match (object.text(*key), object.integer(*key)) {
                        (Some(key), _) => key.to_owned(),
                        (None, Some(key)) => key.to_string(),
                        (None, None) => continue,
                    };
                    self.visit(&format!("{name}.{key}"), *value, depth - 1)?;
                }
                return Ok(());
            }
            Some(Value::Tuple(_) | Value::List(_)) => {
                let items = object.items(id).unwrap_or_default();
                let whole = |id: &Id| object.integer(*id).and_then(|value| usize::try_from(value).ok());
                match items.iter().map(whole).collect::<Option<Vec<usize>>>() {
                    Some(shape) => Scalar::Shape(shape),
                    None => {
                        for (index, item) in items.iter().enumerate() {
                            self.visit(&format!("{name}.{index}"), *item, depth - 1)?;
                        }
                        return Ok(());
                    }
                }
            }
            Some(Value::Truth(truth)) => Scalar::Truth(*truth),
            Some(Value::Float(number)) => Scalar::Float(*number),
            Some(Value::Text(text)) => Scalar::Text(text.to_string()),
            _ => return Ok(()),
        };
        self.state.scalars.push((name.to_owned(), scalar));
        Ok(())
    }
}
