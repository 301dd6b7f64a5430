//! Python's comparisons, `in` included.

use std::cmp::Ordering;

use minijinja::{Error, Value};

use super::number::Number;
use super::objects::Range;
use super::{Type, fail, not_supported, undefined};
use crate::tokenizer::chat::bounds::DEPTH;

/// Whether a chain of comparisons holds: after the first operand, signs and operands in turn.
pub(in super::super) fn chain(first: &Value, rest: &[Value]) -> Result<bool, Error> {
    let mut left = first;
    for pair in rest.chunks(2) {
        let [sign, right] = pair else { return Err(fail("a comparison lacks an operand")) };
        if !holds(left, sign.as_str().unwrap_or_default(), right)? {
            return Ok(false);
        }
        left = right;
    }
    Ok(true)
}

/// Whether one comparison holds.
pub(in super::super) fn holds(left: &Value, sign: &str, right: &Value) -> Result<bool, Error> {
    let ordered = |wanted: fn(Ordering) -> bool| Ok(order(left, right, sign, 0)?.is_some_and(wanted));
    match sign {
        "==" => equals(left, right),
        "!=" => Ok(!equals(left, right)?),
        "<" => ordered(Ordering::is_lt),
        "<=" => ordered(Ordering::is_le),
        ">" => ordered(Ordering::is_gt),
        ">=" => ordered(Ordering::is_ge),
        "in" => contains(right, left),
        _ => Ok(!contains(right, left)?),
    }
}

/// Python's `==`.
pub(in super::super) fn equals(left: &Value, right: &Value) -> Result<bool, Error> {
    equal(left, right, 0)
}

fn equal(left: &Value, right: &Value, depth: usize) -> Result<bool, Error> {
    if depth > DEPTH {
        return Err(fail("containers are nested too deep"));
    }
    if let (Some(left), Some(right)) = (Number::of(left), Number::of(right)) {
        return Ok(order_of_numbers(left, right) == Some(Ordering::Equal));
    }
    let (kind, other) = (Type::of(left), Type::of(right));
    if kind != other {
        return Ok(false);
    }
    match kind {
        Type::Undefined | Type::None => Ok(true),
        Type::Str => Ok(left.as_str() == right.as_str()),
        Type::List | Type::Tuple => equal_items(left, right, depth),
        Type::Range => {
            let range = |value: &Value| value.downcast_object_ref::<Range>().copied();
            let Some((left, right)) = range(left).zip(range(right)) else { return Ok(false) };
            let same = left.count == right.count && (left.count == 0 || left.start == right.start);
            Ok(same && (left.count < 2 || left.step == right.step))
        }
        Type::Dict => {
            if left.len() != right.len() {
                return Ok(false);
            }
            for key in left.try_iter()? {
                let Some(other) = entry(right, &key) else { return Ok(false) };
                if !equal(&left.get_item(&key)?, &other, depth + 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        kind => Err(not_supported(&format!("== of two values of type {}", kind.name()))),
    }
}

fn equal_items(left: &Value, right: &Value, depth: usize) -> Result<bool, Error> {
    if left.len() != right.len() {
        return Ok(false);
    }
    for (left, right) in left.try_iter()?.zip(right.try_iter()?) {
        if !equal(&left, &right, depth + 1)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The order of two numbers, which are compared exactly.
fn order_of_numbers(left: Number, right: Number) -> Option<Ordering> {
    match (left, right) {
        (Number::Int(left), Number::Int(right)) => Some(left.cmp(&right)),
        (Number::Float(left), Number::Float(right)) => left.partial_cmp(&right),
        (Number::Int(left), Number::Float(right)) => order_of_mixed(left, right),
        (Number::Float(left), Number::Int(right)) => order_of_mixed(right, left).map(Ordering::reverse),
    }
}

fn order_of_mixed(whole: i128, float: f64) -> Option<Ordering> {
    if float.is_nan() {
        return None;
    }
    if float.abs() >= 2f64.powi(126) {
        return Some(if float > 0.0 { Ordering::Less } else { Ordering::Greater });
    }
    let floor = float.floor();
    let order = whole.cmp(&(floor as i128));
    Some(if order.is_eq() && float > floor { Ordering::Less } else { order })
}

/// The order of two values of one type; `None` where there is none, as of a number that is none.
pub(in super::super) fn order(
    left: &Value,
    right: &Value,
    sign: &str,
    depth: usize,
) -> Result<Option<Ordering>, Error> {
    if depth > DEPTH {
        return Err(fail("containers are nested too deep"));
    }
    if let (Some(left), Some(right)) = (Number::of(left), Number::of(right)) {
        return Ok(order_of_numbers(left, right));
    }
    let (kind, other) = (Type::of(left), Type::of(right));
    match (kind, other) {
        (Type::Undefined, _) | (_, Type::Undefined) => Err(undefined()),
        (Type::Str, Type::Str) => Ok(Some(left.as_str().cmp(&right.as_str()))),
        (Type::List, Type::List) | (Type::Tuple, Type::Tuple) => {
            for (left, right) in left.try_iter()?.zip(right.try_iter()?) {
                if !equal(&left, &right, depth + 1)? {
                    return order(&left, &right, sign, depth + 1);
                }
            }
            Ok(Some(left.len().cmp(&right.len())))
        }
        _ => Err(fail(format!("'{sign}' not supported between instances of '{}' and '{}'", kind.name(), other.name()))),
    }
}

/// Sorts as Python's `sorted` by keys.
pub(in super::super) fn sort<T>(items: &mut [(Value, T)], is_reverse: bool) -> Result<(), Error> {
    let mut failed = None;
    items.sort_by(|(left, _), (right, _)| {
        let found = order(left, right, "<", 0).unwrap_or_else(|error| {
            failed.get_or_insert(error);
            None
        });
        // Equal ones keep their order in both directions.
        let found = found.unwrap_or(Ordering::Equal);
        if is_reverse { found.reverse() } else { found }
    });
    failed.map_or(Ok(()), Err)
}

/// The value of a key of a dictionary.
pub(in super::super) fn entry(of: &Value, key: &Value) -> Option<Value> {
    let found = of.as_object()?.get_value(key);
    // One is the key True is, and 1.0.
    found.or_else(|| match Number::of(key)? {
        Number::Int(value) => of.as_object()?.get_value(&Number::Int(value).value()),
        Number::Float(value) if value.fract() == 0.0 && value.abs() < 1e15 => {
            of.as_object()?.get_value(&Value::from(value as i64))
        }
        Number::Float(_) => None,
    })
}

/// Whether something can be a key.
pub(in super::super) fn check_key(key: &Value) -> Result<(), Error> {
    match Type::of(key) {
        kind @ (Type::List | Type::Dict) => Err(fail(format!("unhashable type: '{}'", kind.name()))),
        Type::Tuple => key.try_iter()?.try_for_each(|item| check_key(&item)),
        _ => Ok(()),
    }
}

/// Python's `in`.
pub(in super::super) fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    match Type::of(container) {
        Type::Undefined => Ok(false),
        Type::Str => {
            let Some(text) = item.as_str() else {
                let found = Type::of(item).name();
                return Err(fail(format!("'in <string>' requires string as left operand, not {found}")));
            };
            Ok(container.as_str().unwrap_or_default().contains(text))
        }
        Type::Dict => {
            check_key(item)?;
            Ok(entry(container, item).is_some())
        }
        Type::List | Type::Tuple | Type::Range | Type::View | Type::Generator => {
            for found in container.try_iter()? {
                if equals(&found, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        other => Err(fail(format!("argument of type '{}' is not iterable", other.name()))),
    }
}
