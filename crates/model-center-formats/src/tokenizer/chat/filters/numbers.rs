//! Filters of numbers.

use minijinja::{Error, State, Value};

use super::{Args, defined};
use crate::tokenizer::chat::python::number::{Number, parse_float, parse_int, rounded, too_large, truncated};
use crate::tokenizer::chat::python::{Type, fail, not_supported, size_argument};

pub(super) fn abs(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("abs", [])?;
    defined(&value)?;
    match Number::of(&value) {
        Some(Number::Int(number)) => {
            number.checked_abs().map(|number| Number::Int(number).value()).ok_or_else(too_large)
        }
        Some(Number::Float(number)) => Ok(Value::from(number.abs())),
        None => Err(fail(format!("bad operand type for abs(): '{}'", Type::of(&value).name()))),
    }
}

/// `int(default, base)`.
pub(super) fn int(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [default, base] = args.bind("int", ["default", "base"])?;
    defined(&value)?;
    let default = default.unwrap_or_else(|| Value::from(0));
    let base = base.map_or(Ok(10), |base| size_argument(&base, "int"))?;
    if let Some(text) = value.as_str() {
        if let Some(number) = parse_int(text, u32::try_from(base).unwrap_or(1))? {
            return Ok(Number::Int(number).value());
        }
        return match parse_float(text).filter(|number| number.is_finite()) {
            Some(number) => Ok(Number::Int(truncated(number)?).value()),
            None => Ok(default),
        };
    }
    match Number::of(&value) {
        Some(Number::Int(number)) => Ok(Number::Int(number).value()),
        Some(Number::Float(number)) if number.is_nan() => Ok(default),
        Some(Number::Float(number)) => Ok(Number::Int(truncated(number)?).value()),
        None => Ok(default),
    }
}

/// `float(default)`.
pub(super) fn float(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [default] = args.bind("float", ["default"])?;
    defined(&value)?;
    let number = match value.as_str() {
        Some(text) => parse_float(text),
        None => Number::of(&value).map(Number::float),
    };
    Ok(number.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0)))
}

/// `round(precision, method)`.
pub(super) fn round(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [precision, method] = args.bind("round", ["precision", "method"])?;
    defined(&value)?;
    let precision = precision.map_or(Ok(0), |precision| size_argument(&precision, "round"))?;
    let method = method.unwrap_or_else(|| Value::from("common"));
    let kind = Type::of(&value).name();
    let number = Number::of(&value).ok_or_else(|| fail(format!("type {kind} has no rounding")))?;
    let method = method.as_str().unwrap_or_default();
    match (method, number) {
        ("common", _) if precision < 0 => Err(not_supported("round to tens and hundreds")),
        ("common", Number::Int(number)) => Ok(Number::Int(number).value()),
        ("common", Number::Float(number)) => {
            Ok(Value::from(rounded(number, usize::try_from(precision).unwrap_or(usize::MAX))))
        }
        ("ceil" | "floor", _) => {
            let scale = 10f64.powi(i32::try_from(precision).unwrap_or(i32::MAX));
            let scaled = number.float() * scale;
            let whole = truncated(if method == "ceil" { scaled.ceil() } else { scaled.floor() })?;
            Ok(Value::from(whole as f64 / scale))
        }
        _ => Err(fail("method must be common, ceil or floor")),
    }
}

/// `filesizeformat(binary)`.
pub(super) fn file_size(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [binary] = args.bind("filesizeformat", ["binary"])?;
    let is_number = value.as_str().map_or(Number::of(&value).is_some(), |text| parse_float(text).is_some());
    if !is_number {
        return Err(fail("filesizeformat takes a number"));
    }
    let bytes = f64::try_from(float(state, value, Args::default())?)?;
    let (base, middle) = if super::flag(binary) { (1024.0, "i") } else { (1000.0, "") };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::from(format!("{} Bytes", truncated(bytes)?)));
    }
    let (mut unit, mut letters) = (base * base, "kMGTPEZY".chars());
    let mut letter = letters.next().unwrap_or('k');
    while bytes >= unit {
        let Some(next) = letters.next() else { break };
        letter = next;
        unit *= base;
    }
    let letter = if middle.is_empty() { letter } else { letter.to_ascii_uppercase() };
    Ok(Value::from(format!("{:.1} {letter}{middle}B", base * bytes / unit)))
}
