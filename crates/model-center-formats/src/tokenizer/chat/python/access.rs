//! Attributes, items, slices, methods and calls, in the order in which Jinja looks for them.

use minijinja::value::{Object, Tuple};
use minijinja::{Error, State, Value};

use super::objects::{Method, Range, View, ViewKind};
use super::operators::text;
use super::{Args, Type, compare, fail, lists, not_supported, number, required, strings, undefined};

/// Methods of texts in Python 3.11 to 3.14.
const OF_STR: [&str; 47] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
/// Further methods of `Markup`.
const OF_MARKUP: [&str; 3] = ["escape", "striptags", "unescape"];
/// Methods of lists that change nothing; tuples and ranges have part of them.
const OF_LIST: [&str; 3] = ["copy", "count", "index"];
/// Methods that change lists and dictionaries, which the sandbox forbids.
const OF_LIST_CHANGING: [&str; 8] = ["append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"];
const OF_DICT: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
const OF_DICT_CHANGING: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
/// Methods of other values: numbers, ranges, views, generators.
const OF_OTHERS: [&str; 20] = [
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "close",
    "conjugate",
    "denominator",
    "from_bytes",
    "fromhex",
    "hex",
    "imag",
    "is_integer",
    "isdisjoint",
    "mapping",
    "numerator",
    "real",
    "send",
    "start",
    "step",
    "stop",
    "throw",
];
const OF_NUMBER: [&str; 12] = [
    "as_integer_ratio",
    "bit_count",
    "bit_length",
    "conjugate",
    "denominator",
    "from_bytes",
    "fromhex",
    "hex",
    "imag",
    "is_integer",
    "numerator",
    "real",
];

/// Whether a value of Python's may have an attribute of this name: then it is found here, not by the library.
pub(in super::super) fn is_python_attribute(name: &str) -> bool {
    let lists: [&[&str]; 7] =
        [&OF_STR, &OF_MARKUP, &OF_LIST, &OF_LIST_CHANGING, &OF_DICT, &OF_DICT_CHANGING, &OF_OTHERS];
    name == "to_bytes" || OF_GROUP.contains(&name) || lists.iter().any(|list| list.contains(&name))
}

/// Further methods of the pairs of `groupby`.
const OF_GROUP: [&str; 2] = ["grouper", "list"];

/// Attribute of a value's type under a name.
enum Own {
    Method,
    /// The sandbox forbids it.
    Unsafe,
    NotSupported,
    Nothing,
}

fn own(value: &Value, name: &str) -> Own {
    let kind = Type::of(value);
    let is_method = match kind {
        Type::Str => OF_STR.contains(&name),
        Type::List => OF_LIST.contains(&name),
        Type::Tuple | Type::Range => matches!(name, "count" | "index"),
        Type::Dict => OF_DICT.contains(&name),
        _ => false,
    };
    let is_unsafe = match kind {
        Type::List => OF_LIST_CHANGING.contains(&name),
        Type::Dict => OF_DICT_CHANGING.contains(&name),
        _ => false,
    };
    let is_left_out = match kind {
        Type::Str => value.is_safe() && OF_MARKUP.contains(&name),
        Type::Bool | Type::Int | Type::Float => OF_NUMBER.contains(&name) || name == "to_bytes",
        Type::Range => matches!(name, "start" | "stop" | "step"),
        Type::View => matches!(name, "isdisjoint" | "mapping"),
        Type::Generator => matches!(name, "close" | "send" | "throw"),
        _ => false,
    };
    match () {
        () if is_method => Own::Method,
        () if is_unsafe => Own::Unsafe,
        () if is_left_out => Own::NotSupported,
        () => Own::Nothing,
    }
}

/// Looks only for what the type has: a method, or nothing that is defined.
fn own_attribute(value: &Value, name: &str) -> Result<Option<Value>, Error> {
    match own(value, name) {
        Own::Method => Ok(Some(Value::from_object(Method { of: value.clone(), name: name.to_owned() }))),
        Own::Unsafe => Ok(Some(Value::UNDEFINED)),
        Own::NotSupported => Err(not_supported(&format!("{name} of a value of type {}", Type::of(value).name()))),
        Own::Nothing => Ok(None),
    }
}

/// `value.name`: what the type has, then the item.
pub(in super::super) fn attribute(value: &Value, name: &str) -> Result<Value, Error> {
    match Type::of(value) {
        Type::Undefined => Err(undefined()),
        Type::None => Ok(Value::UNDEFINED),
        Type::Function if is_python_attribute(name) => Err(not_supported(&format!("{name} of a function"))),
        Type::Namespace | Type::Loop | Type::Macro | Type::Function | Type::Cycler => value.get_attr(name),
        kind => match own_attribute(value, name)? {
            Some(found) => Ok(found),
            None if kind == Type::Tuple && OF_GROUP.contains(&name) && value.len() == Some(2) => {
                value.get_item_by_index(usize::from(name == OF_GROUP[1]))
            }
            None if kind == Type::Dict => Ok(compare::entry(value, &Value::from(name)).unwrap_or_default()),
            None => Ok(Value::UNDEFINED),
        },
    }
}

/// `value|attr(name)`: no items.
pub(in super::super) fn attribute_alone(value: &Value, name: &str) -> Result<Value, Error> {
    match Type::of(value) {
        Type::Undefined => Err(undefined()),
        Type::Namespace | Type::Loop | Type::Macro | Type::Function | Type::Cycler => value.get_attr(name),
        _ => Ok(own_attribute(value, name)?.unwrap_or_default()),
    }
}

/// `value[key]`: the item, then what the type has.
pub(in super::super) fn item(value: &Value, key: &Value) -> Result<Value, Error> {
    let kind = Type::of(value);
    let index = number::whole(key);
    let found = match kind {
        Type::Undefined => return Err(undefined()),
        Type::Dict => {
            if compare::check_key(key).is_err() {
                None
            } else {
                compare::entry(value, key)
            }
        }
        Type::List | Type::Tuple | Type::Range => {
            position(index, value.len().unwrap_or(0)).and_then(|at| value.get_item_by_index(at).ok())
        }
        Type::Str => {
            let word = value.as_str().unwrap_or_default();
            let letter = |index: i128| match index < 0 {
                true => word.chars().rev().nth(usize::try_from(-1 - index).ok()?),
                false => word.chars().nth(usize::try_from(index).ok()?),
            };
            index.and_then(letter).map(|letter| text(letter.to_string(), value.is_safe()))
        }
        Type::Namespace | Type::Loop | Type::Macro | Type::Function | Type::Cycler => {
            return key.as_str().map_or(Ok(Value::UNDEFINED), |name| value.get_attr(name));
        }
        _ => None,
    };
    match (found, key.as_str()) {
        (Some(found), _) => Ok(found),
        (None, Some(name)) => Ok(own_attribute(value, name)?.unwrap_or_default()),
        (None, None) => Ok(Value::UNDEFINED),
    }
}

/// The place of an index, which counts from the end if it is negative.
fn position(index: Option<i128>, length: usize) -> Option<usize> {
    let index = index?;
    let index = if index < 0 { index.checked_add(length as i128)? } else { index };
    usize::try_from(index).ok().filter(|index| *index < length)
}

/// Python's `slice(start, stop, step).indices(length)`: start, step and count.
fn indices(bounds: [Option<i128>; 3], length: usize) -> Option<(i128, i128, usize)> {
    let [start, stop, step] = bounds;
    let (length, step) = (length as i128, step.unwrap_or(1));
    if step == 0 {
        return None;
    }
    let (least, most) = if step < 0 { (-1, length - 1) } else { (0, length) };
    let place = |bound: Option<i128>, otherwise: i128| match bound {
        None => otherwise,
        Some(bound) if bound < 0 => bound.saturating_add(length).max(least),
        Some(bound) => bound.min(most),
    };
    let start = place(start, if step < 0 { most } else { least });
    let stop = place(stop, if step < 0 { least } else { most });
    let (distance, stride) = if step < 0 { (start - stop, -step) } else { (stop - start, step) };
    let count = if distance <= 0 { 0 } else { (distance - 1) / stride + 1 };
    Some((start, step, count as usize))
}

/// `value[start:stop:step]`.
pub(in super::super) fn slice(value: &Value, bounds: [Value; 3]) -> Result<Value, Error> {
    let kind = Type::of(value);
    if kind == Type::Undefined {
        return Err(undefined());
    }
    let is_bound = |bound: &Value| bound.is_none() || number::whole(bound).is_some();
    if !matches!(kind, Type::Str | Type::List | Type::Tuple | Type::Range) {
        return Err(fail(format!("'{}' object is not subscriptable by a slice", kind.name())));
    }
    if !bounds.iter().all(is_bound) {
        return Err(fail("slice indices must be integers or None"));
    }
    let limit = i128::from(i64::MAX);
    let bounds = bounds.map(|bound| number::whole(&bound).map(|bound| bound.clamp(-limit, limit)));
    let zero = || fail("slice step cannot be zero");
    if let Some(range) = value.downcast_object_ref::<Range>() {
        let (start, step, count) = indices(bounds, range.count).ok_or_else(zero)?;
        let at = |index: i128| i128::from(range.start) + i128::from(range.step) * index;
        let small = |value: i128| i64::try_from(value).map_err(|_| number::too_large());
        let (start, step, end) = (at(start), i128::from(range.step) * step, at(start + step * count as i128));
        return Ok(Value::from_object(Range::new(small(start)?, small(end)?, small(step)?)?));
    }
    if let Some(word) = value.as_str() {
        let letters: Vec<char> = word.chars().collect();
        let (start, step, count) = indices(bounds, letters.len()).ok_or_else(zero)?;
        return Ok(text(picked(&letters, start, step, count).collect(), value.is_safe()));
    }
    let items: Vec<Value> = value.try_iter()?.collect();
    let (start, step, count) = indices(bounds, items.len()).ok_or_else(zero)?;
    let picked: Vec<Value> = picked(&items, start, step, count).collect();
    Ok(if kind == Type::Tuple { Value::from(Tuple::from(picked)) } else { Value::from(picked) })
}

fn picked<T: Clone>(items: &[T], start: i128, step: i128, count: usize) -> impl Iterator<Item = T> {
    let at = move |number: usize| usize::try_from(start + step * number as i128).ok();
    (0..count).filter_map(move |number| items.get(at(number)?).cloned())
}

/// `value.name(args)`.
pub(in super::super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: Vec<Value>,
) -> Result<Value, Error> {
    let kind = Type::of(value);
    match kind {
        Type::Undefined => return Err(undefined()),
        Type::Namespace | Type::Loop | Type::Macro | Type::Function | Type::Cycler => {
            return value.call_method(state, name, &args);
        }
        _ => {}
    }
    match own(value, name) {
        Own::Method => {}
        Own::Unsafe => {
            let kind = kind.name();
            return Err(fail(format!(
                "access to attribute '{name}' of '{kind}' object is unsafe: it changes the {kind}"
            )));
        }
        Own::NotSupported => return Err(not_supported(&format!("{name} of a value of type {}", kind.name()))),
        Own::Nothing => {
            let found = attribute(value, name)?;
            if found.is_undefined() {
                return Err(fail(format!("'{} object' has no attribute '{name}'", kind.name())));
            }
            return call(state, &found, args);
        }
    }
    let args = Args::new(args);
    match kind {
        Type::Str => strings::method(state, value, name, args),
        Type::Dict => dict_method(value, name, args),
        _ => lists::method(value, name, args),
    }
}

/// `value(args)`.
pub(in super::super) fn call(state: &mut State<'_, '_>, value: &Value, args: Vec<Value>) -> Result<Value, Error> {
    match value.downcast_object::<Method>() {
        Some(method) => method.call(state, &args),
        None if value.is_undefined() => Err(undefined()),
        None => value.call(state, &args),
    }
}

fn dict_method(value: &Value, name: &str, args: Args) -> Result<Value, Error> {
    let of = format!("dict.{name}()");
    match name {
        "get" => {
            let [key, default] = args.bind(&of, ["", ""])?;
            let key = required(key, &of, "key")?;
            compare::check_key(&key)?;
            Ok(compare::entry(value, &key).or(default).unwrap_or(Value::from(())))
        }
        "fromkeys" => {
            let [keys, default] = args.bind(&of, ["", ""])?;
            lists::from_keys(required(keys, &of, "iterable")?, default.unwrap_or(Value::from(())))
        }
        _ => {
            let [] = args.bind(&of, [])?;
            match name {
                "copy" => lists::pairs(value).map(Value::from_pairs),
                "keys" => View::value(value, ViewKind::Keys),
                "values" => View::value(value, ViewKind::Values),
                _ => View::value(value, ViewKind::Items),
            }
        }
    }
}
