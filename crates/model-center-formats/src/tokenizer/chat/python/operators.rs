//! Python's operators of values: `+ - * / // % **`, signs, and Jinja's `~`.

use minijinja::value::Tuple;
use minijinja::{Error, State, Value};

use super::number::{self, Number};
use super::objects::escaped;
use super::text::str_of;
use super::{Type, fail, length, not_supported, percent, undefined};
use crate::tokenizer::chat::bounds::{ITEM_BYTES, check_size};

/// An operator with two operands, by the name that it has here.
pub(in super::super) fn binary(state: &State<'_, '_>, name: &str, left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (Number::of(left), Number::of(right)) {
        return calculate(name, a, b).map(Number::value);
    }
    let (kind, other) = (Type::of(left), Type::of(right));
    match (name, kind, other) {
        (_, Type::Undefined, _) => Err(undefined()),
        ("mod", Type::Str, _) => percent::format(state, left, right),
        (_, _, Type::Undefined) => Err(undefined()),
        ("add", Type::Str, Type::Str) => add_texts(state, left, right),
        ("add", Type::List, Type::List) | ("add", Type::Tuple, Type::Tuple) => {
            check_size(state, (length(left)? + length(right)?).saturating_mul(ITEM_BYTES))?;
            let items = left.try_iter()?.chain(right.try_iter()?).collect();
            Ok(sequence(kind, items))
        }
        ("mul", Type::Str | Type::List | Type::Tuple, Type::Int | Type::Bool) => repeat(state, left, right),
        ("mul", Type::Int | Type::Bool, Type::Str | Type::List | Type::Tuple) => repeat(state, right, left),
        _ => Err(fail(format!(
            "unsupported operand type(s) for {}: '{}' and '{}'",
            sign(name),
            kind.name(),
            other.name()
        ))),
    }
}

fn sign(name: &str) -> &str {
    match name {
        "add" => "+",
        "sub" => "-",
        "mul" => "*",
        "div" => "/",
        "floordiv" => "//",
        "mod" => "%",
        _ => "**",
    }
}

fn sequence(kind: Type, items: Vec<Value>) -> Value {
    if kind == Type::Tuple { Value::from(Tuple::from(items)) } else { Value::from(items) }
}

/// A text, marked safe if `is_safe`.
pub(in super::super) fn text(text: String, is_safe: bool) -> Value {
    if is_safe { Value::from_safe_string(text) } else { Value::from(text) }
}

/// If one is marked safe, the other is escaped and both together are safe.
fn add_texts(state: &State<'_, '_>, left: &Value, right: &Value) -> Result<Value, Error> {
    let (a, b) = (left.as_str().unwrap_or_default(), right.as_str().unwrap_or_default());
    check_size(state, a.len().saturating_add(b.len()))?;
    match left.is_safe() || right.is_safe() {
        false => Ok(Value::from(format!("{a}{b}"))),
        true => Ok(text(escaped(state, left)? + &escaped(state, right)?, true)),
    }
}

fn repeat(state: &State<'_, '_>, what: &Value, count: &Value) -> Result<Value, Error> {
    let count = usize::try_from(number::whole(count).unwrap_or(0).max(0)).unwrap_or(usize::MAX);
    if let Some(repeated) = what.as_str() {
        check_size(state, repeated.len().saturating_mul(count))?;
        return Ok(text(repeated.repeat(count), what.is_safe()));
    }
    let items: Vec<Value> = what.try_iter()?.collect();
    check_size(state, items.len().saturating_mul(count).saturating_mul(ITEM_BYTES))?;
    let repeated = std::iter::repeat_n(items, count).flatten().collect();
    Ok(sequence(Type::of(what), repeated))
}

fn calculate(name: &str, left: Number, right: Number) -> Result<Number, Error> {
    let zero = || fail("division by zero");
    if let (Number::Int(a), Number::Int(b)) = (left, right) {
        let whole = match name {
            "add" => a.checked_add(b),
            "sub" => a.checked_sub(b),
            "mul" => a.checked_mul(b),
            "floordiv" | "mod" if b == 0 => return Err(zero()),
            "floordiv" => a.checked_div_euclid(b).map(|_| floor_division(a, b)),
            "mod" => {
                Some(a.wrapping_rem(b)).map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
            }
            "pow" if b >= 0 => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            "div" if b == 0 => return Err(zero()),
            "div" if a.unsigned_abs() > 1 << 53 || b.unsigned_abs() > 1 << 53 => {
                return Err(not_supported("the quotient of whole numbers beyond 2 to the power of 53"));
            }
            _ => return calculate_floats(name, a as f64, b as f64),
        };
        return whole.map(Number::Int).ok_or_else(number::too_large);
    }
    calculate_floats(name, left.float(), right.float())
}

fn floor_division(a: i128, b: i128) -> i128 {
    let quotient = a / b;
    if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient }
}

fn calculate_floats(name: &str, a: f64, b: f64) -> Result<Number, Error> {
    let is_division = matches!(name, "div" | "floordiv" | "mod");
    if is_division && b == 0.0 {
        return Err(fail("float division by zero"));
    }
    // As in C, and with the sign of the divisor.
    let rest = || {
        let rest = a % b;
        if rest == 0.0 {
            0f64.copysign(b)
        } else if (rest < 0.0) != (b < 0.0) {
            rest + b
        } else {
            rest
        }
    };
    let value = match name {
        "add" => a + b,
        "sub" => a - b,
        "mul" => a * b,
        "div" => a / b,
        "mod" => rest(),
        "floordiv" => {
            let quotient = (a - rest()) / b;
            let floor = quotient.floor();
            if quotient == 0.0 {
                0f64.copysign(a / b)
            } else if quotient - floor > 0.5 {
                floor + 1.0
            } else {
                floor
            }
        }
        _ if a == 0.0 && b < 0.0 => return Err(fail("0.0 cannot be raised to a negative power")),
        _ if a < 0.0 && b.fract() != 0.0 && b.is_finite() => return Err(not_supported("a complex number")),
        _ => a.powf(b),
    };
    if name == "pow" && value.is_infinite() && a.is_finite() && b.is_finite() {
        return Err(fail("the result of ** is too large"));
    }
    Ok(Number::Float(value))
}

/// `-value` and `+value`.
pub(in super::super) fn signed(value: &Value, is_negative: bool) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(undefined());
    }
    match Number::of(value) {
        Some(Number::Int(number)) if is_negative => {
            number.checked_neg().map(|number| Number::Int(number).value()).ok_or_else(number::too_large)
        }
        Some(Number::Float(number)) if is_negative => Ok(Value::from(-number)),
        Some(number) => Ok(number.value()),
        None => Err(fail(format!("bad operand type for unary sign: '{}'", Type::of(value).name()))),
    }
}

/// Jinja's `~` of several values.
pub(in super::super) fn concat(state: &State<'_, '_>, first: &Value, rest: &[Value]) -> Result<Value, Error> {
    let mut out = str_of(state, first)?;
    for value in rest {
        out += &str_of(state, value)?;
        check_size(state, out.len())?;
    }
    Ok(Value::from(out))
}
