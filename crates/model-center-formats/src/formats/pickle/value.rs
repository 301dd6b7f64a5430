//! The contents of a pickle as inert values.
//!
//! Defines [`Object`], [`Value`] and [`Id`]; made by [`super::machine`], read by [`super::state`] and
//! [`super::legacy`].

use super::globals::Global;

/// A value's number, or a small integer itself: sizes and strides are most of what a pickle of tensors has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id(u32);

/// Set in an [`Id`] that is an integer.
const INTEGER: u32 = 1 << 31;

impl Id {
    /// The value at `index`, which is below [`INTEGER`] as there are fewer values.
    pub(super) fn of_index(index: usize) -> Self {
        Id(index as u32 & !INTEGER)
    }

    /// The integer itself, if it is small enough.
    pub(super) fn of_integer(value: i64) -> Option<Self> {
        u32::try_from(value).ok().filter(|value| *value < INTEGER).map(|value| Id(value | INTEGER))
    }
}

/// One value. Values refer to each other by number, so nothing that walks or drops them recurses.
#[derive(Debug)]
pub enum Value {
    /// `None`.
    Nothing,
    /// `True` or `False`.
    Truth(bool),
    /// A float beyond those that are kept.
    Number,
    /// A float.
    Float(f64),
    /// An integer of up to eight bytes.
    Integer(i64),
    /// A longer integer, little endian.
    Long(Box<[u8]>),
    /// Text.
    Text(Box<str>),
    /// Bytes, whose contents play no part.
    Bytes,
    /// Bytes by their position in the file, where values are kept.
    Stretch {
        /// Its first byte.
        at: u64,
        /// Its length.
        bytes: u64,
    },
    /// A set, whose contents play no part.
    Set,
    /// A tuple.
    Tuple(Box<[Id]>),
    /// A list.
    List(Vec<Id>),
    /// A dictionary, in the order of insertion; a key may appear twice, the later one counts.
    Dict(Vec<(Id, Id)>),
    /// A class or function by its name; never called.
    Global(Box<Global>),
    /// A storage, by the tuple that describes it.
    Storage(Id),
    /// A tensor, by the arguments of its constructor.
    Tensor(Id),
    /// An object of a class that means nothing here, by its class. Its state is dropped.
    Foreign(Id),
    /// The result of a call that was not made, where values are kept.
    Call(Box<Call>),
    /// The arguments of a command line, by the dictionary of their values.
    Namespace(Id),
}

/// A call that a pickle asks for, and the state that the result is given.
#[derive(Debug)]
pub struct Call {
    pub callee: Id,
    /// A tuple.
    pub arguments: Id,
    pub state: Option<Id>,
}

/// One unpickled object with everything it refers to.
#[derive(Debug)]
pub(crate) struct Object {
    /// By the index of an [`Id`].
    pub(super) values: Vec<Value>,
    pub(crate) root: Id,
}

impl Object {
    /// A value; `None` for an integer that its number holds.
    pub(crate) fn value(&self, id: Id) -> Option<&Value> {
        value(&self.values, id)
    }

    pub(crate) fn integer(&self, id: Id) -> Option<i64> {
        match self.value(id) {
            None => Some(i64::from(id.0 & !INTEGER)),
            Some(Value::Integer(value)) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn text(&self, id: Id) -> Option<&str> {
        match self.value(id) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn tuple(&self, id: Id) -> Option<&[Id]> {
        match self.value(id) {
            Some(Value::Tuple(items)) => Some(items),
            _ => None,
        }
    }

    pub(crate) fn dict(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.value(id) {
            Some(Value::Dict(pairs)) => Some(pairs),
            _ => None,
        }
    }

    /// The members of a list or tuple.
    pub(super) fn items(&self, id: Id) -> Option<&[Id]> {
        match self.value(id) {
            Some(Value::Tuple(items)) => Some(items),
            Some(Value::List(items)) => Some(items),
            _ => None,
        }
    }

    pub(crate) fn get(&self, dict: Id, key: &str) -> Option<Id> {
        self.dict(dict)?.iter().rev().find(|(k, _)| self.text(*k) == Some(key)).map(|(_, value)| *value)
    }

    pub(crate) fn describe(&self, id: Id) -> String {
        describe(&self.values, id)
    }
}

pub(super) fn value(values: &[Value], id: Id) -> Option<&Value> {
    if id.0 & INTEGER != 0 { None } else { values.get(id.0 as usize) }
}

/// The value to change, if there is one under this number.
pub(super) fn value_mut(values: &mut [Value], id: Id) -> Option<&mut Value> {
    if id.0 & INTEGER != 0 { None } else { values.get_mut(id.0 as usize) }
}

pub(super) fn describe(values: &[Value], id: Id) -> String {
    let kind = match value(values, id) {
        None | Some(Value::Integer(_) | Value::Long(_)) => "an integer",
        Some(Value::Nothing) => "None",
        Some(Value::Truth(_)) => "a truth value",
        Some(Value::Number | Value::Float(_)) => "a float",
        Some(Value::Text(_)) => "a text",
        Some(Value::Bytes | Value::Stretch { .. }) => "bytes",
        Some(Value::Set) => "a set",
        Some(Value::Tuple(_)) => "a tuple",
        Some(Value::List(_)) => "a list",
        Some(Value::Dict(_)) => "a dictionary",
        Some(Value::Global(global)) => return format!("the name {global}"),
        Some(Value::Storage(_)) => "a storage",
        Some(Value::Tensor(_)) => "a tensor",
        Some(Value::Call(call)) => match value(values, call.callee) {
            Some(Value::Global(global)) => return format!("what {global} returns"),
            _ => "what a call returns",
        },
        Some(Value::Namespace(_)) => "the arguments of a command line",
        Some(Value::Foreign(class)) => match value(values, *class) {
            Some(Value::Global(global)) => return format!("an object of the class {global}"),
            _ => "an object of an unknown class",
        },
    };
    kind.into()
}
