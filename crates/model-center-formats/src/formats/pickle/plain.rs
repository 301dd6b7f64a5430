//! Pickles of plain values, such as lists of numbers and arrays of NumPy, read without running anything.
//!
//! Defines [`PlainPickle`]. A call in such a pickle is kept as what would be called and with what; the caller knows the
//! few that mean data. Called by the readers of datasets and of token files.

use std::fs::File;
use std::path::Path;

use super::input::Input;
use super::machine;
use super::value::{Call, Id, Object, Value};
use crate::Result;

/// One pickle of a file.
#[derive(Debug)]
pub struct PlainPickle {
    object: Object,
}

impl PlainPickle {
    /// Reads the pickle that begins at byte `start` of `file`, which has `end` bytes or more; where it ends.
    ///
    /// Memory: at most some 50 bytes for each byte of the pickle, and some 4 for an id in a list.
    pub fn read(path: &Path, file: &File, start: u64, end: u64) -> Result<(PlainPickle, u64)> {
        let mut input = Input::new(path, file, "pickle", start, end);
        let object = machine::parse_kept(&mut input)?;
        Ok((PlainPickle { object }, input.position()))
    }

    /// The object itself.
    pub fn root(&self) -> Id {
        self.object.root
    }

    /// A value; `None` for a small integer.
    pub fn value(&self, id: Id) -> Option<&Value> {
        self.object.value(id)
    }

    /// The value as an integer.
    pub fn integer(&self, id: Id) -> Option<i64> {
        self.object.integer(id)
    }

    /// The value as text.
    pub fn text(&self, id: Id) -> Option<&str> {
        self.object.text(id)
    }

    /// The members of a list or tuple.
    pub fn members(&self, id: Id) -> Option<&[Id]> {
        match self.value(id) {
            Some(Value::List(items)) => Some(items),
            _ => self.object.tuple(id),
        }
    }

    /// The value under a key of a dictionary; `None` for anything else.
    pub fn get(&self, dict: Id, key: &str) -> Option<Id> {
        self.object.get(dict, key)
    }

    /// Whether the value is a dictionary.
    pub fn is_dict(&self, id: Id) -> bool {
        self.object.dict(id).is_some()
    }

    /// Function that would be called, by module and name, with the call.
    pub fn call(&self, id: Id) -> Option<(&str, &str, &Call)> {
        let Some(Value::Call(call)) = self.value(id) else { return None };
        match self.value(call.callee) {
            Some(Value::Global(global)) => Some((&global.module, &global.name, call)),
            _ => None,
        }
    }

    /// The kind of the value, for messages.
    pub fn describe(&self, id: Id) -> String {
        self.object.describe(id)
    }
}
