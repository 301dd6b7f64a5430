//! Behaviour of Python's values: the meaning of a chat template's operators, subscripts and methods.
//!
//! Defines [`Type`], by which everything here is chosen, and [`Args`]. The library's values stand for Python's: its
//! maps for dictionaries, its strings that are marked safe for `Markup`. What Python does and this does not is refused
//! by name.

pub(super) mod access;
pub(super) mod compare;
pub(super) mod format;
pub(super) mod lists;
pub(super) mod number;
pub(super) mod objects;
pub(super) mod operators;
pub(super) mod percent;
pub(super) mod spec;
pub(super) mod split;
pub(super) mod strings;
pub(super) mod text;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use self::objects::{Cycler, Generator, Joiner, Method, Range, View};

/// Python's type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Undefined,
    None,
    Bool,
    Int,
    Float,
    Str,
    List,
    Tuple,
    Dict,
    Range,
    /// View of the keys, values or items of a dictionary.
    View,
    Generator,
    Namespace,
    Loop,
    Macro,
    /// Anything else that can be called.
    Function,
    Cycler,
}

impl Type {
    pub(super) fn of(value: &Value) -> Type {
        match value.kind() {
            ValueKind::Undefined => Type::Undefined,
            ValueKind::None => Type::None,
            ValueKind::Bool => Type::Bool,
            ValueKind::Number => {
                if value.is_integer() {
                    Type::Int
                } else {
                    Type::Float
                }
            }
            ValueKind::String => Type::Str,
            _ if value.is_tuple() => Type::Tuple,
            _ if value.downcast_object_ref::<Range>().is_some() => Type::Range,
            _ if value.downcast_object_ref::<View>().is_some() => Type::View,
            _ if value.downcast_object_ref::<Generator>().is_some() => Type::Generator,
            _ if value.downcast_object_ref::<Cycler>().is_some() => Type::Cycler,
            _ if value.downcast_object_ref::<Method>().is_some() => Type::Function,
            _ if value.downcast_object_ref::<Joiner>().is_some() => Type::Function,
            ValueKind::Seq | ValueKind::Iterable => Type::List,
            ValueKind::Map => {
                let name = value.as_object().map(|object| object.type_name()).unwrap_or_default();
                match name {
                    name if name.ends_with("::Namespace") => Type::Namespace,
                    name if name.ends_with("::Loop") => Type::Loop,
                    name if name.ends_with("::Macro") => Type::Macro,
                    _ => Type::Dict,
                }
            }
            _ => Type::Function,
        }
    }

    /// Python's name of it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Type::Undefined => "Undefined",
            Type::None => "NoneType",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Float => "float",
            Type::Str => "str",
            Type::List => "list",
            Type::Tuple => "tuple",
            Type::Dict => "dict",
            Type::Range => "range",
            Type::View => "view of a dict",
            Type::Generator => "generator",
            Type::Namespace => "Namespace",
            Type::Loop => "LoopContext",
            Type::Macro => "Macro",
            Type::Function => "function",
            Type::Cycler => "Cycler",
        }
    }
}

/// The error of an operation, as a sentence.
pub(super) fn fail(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason.into())
}

/// Something that Python has and chat templates of this program cannot use.
pub(super) fn not_supported(what: &str) -> Error {
    fail(format!("{what} is not supported in chat templates"))
}

/// Jinja's error for a value that is not there.
pub(super) fn undefined() -> Error {
    Error::new(ErrorKind::UndefinedError, "a value that is used is undefined")
}

/// The values of a sequence, or of anything else that can be gone through.
pub(super) fn iterate(value: &Value) -> Result<Vec<Value>, Error> {
    match Type::of(value) {
        Type::Undefined => Ok(Vec::new()),
        Type::Str => Ok(value.as_str().unwrap_or_default().chars().map(|c| Value::from(c.to_string())).collect()),
        Type::List | Type::Tuple | Type::Dict | Type::Range | Type::View | Type::Generator => {
            Ok(value.try_iter()?.collect())
        }
        other => Err(fail(format!("'{}' object is not iterable", other.name()))),
    }
}

/// Python's `len`.
pub(super) fn length(value: &Value) -> Result<usize, Error> {
    match Type::of(value) {
        Type::Undefined => Ok(0),
        Type::Str => Ok(value.as_str().unwrap_or_default().chars().count()),
        Type::List | Type::Tuple | Type::Dict | Type::Range | Type::View => {
            value.len().map_or_else(|| Ok(value.try_iter()?.count()), Ok)
        }
        other => Err(fail(format!("object of type '{}' has no len()", other.name()))),
    }
}

/// The arguments of a call, as Python passes them.
#[derive(Debug, Clone, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl Args {
    pub(super) fn new(mut values: Vec<Value>) -> Args {
        let mut named = Vec::new();
        if let Some(last) = values.last().filter(|last| last.is_kwargs()).cloned() {
            values.pop();
            for key in last.try_iter().into_iter().flatten() {
                let value = last.get_item(&key).unwrap_or_default();
                named.push((key.as_str().unwrap_or_default().to_owned(), value));
            }
        }
        Args { positional: values, named }
    }

    /// For each name its argument, by place or by name. `of` names what is called.
    pub(super) fn bind<const N: usize>(self, of: &str, names: [&str; N]) -> Result<[Option<Value>; N], Error> {
        if self.positional.len() > N {
            let given = self.positional.len();
            return Err(fail(format!("{of} takes at most {N} arguments, {given} are given")));
        }
        let mut bound = [const { None }; N];
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            let place = names.iter().position(|own| !own.is_empty() && *own == name).and_then(|at| bound.get_mut(at));
            match place {
                Some(place @ None) => *place = Some(value),
                Some(_) => return Err(fail(format!("{of} has two values for the argument {name}"))),
                None => return Err(fail(format!("{of} has no argument {name}"))),
            }
        }
        Ok(bound)
    }
}

/// An argument that has to be there.
pub(super) fn required(value: Option<Value>, of: &str, name: &str) -> Result<Value, Error> {
    value.ok_or_else(|| fail(format!("{of} lacks its argument {name}")))
}

/// A text, as most of Python's methods of texts require.
pub(super) fn text_argument<'a>(value: &'a Value, of: &str) -> Result<&'a str, Error> {
    value.as_str().ok_or_else(|| fail(format!("{of} takes a text, not {}", Type::of(value).name())))
}

/// A whole number within the range of sizes.
pub(super) fn size_argument(value: &Value, of: &str) -> Result<i64, Error> {
    match number::whole(value) {
        Some(value) => Ok(value.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
        None => Err(fail(format!("{of} takes a whole number, not {}", Type::of(value).name()))),
    }
}
