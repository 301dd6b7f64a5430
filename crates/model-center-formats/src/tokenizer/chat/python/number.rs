//! Numbers: what Python reads, calculates and prints.

use minijinja::{Error, Value};

use super::{Type, fail};

/// A number, or a truth value, which is one in Python.
#[derive(Debug, Clone, Copy)]
pub(in super::super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(in super::super) fn of(value: &Value) -> Option<Number> {
        match Type::of(value) {
            Type::Bool => Some(Number::Int(value.is_true().into())),
            Type::Int => i128::try_from(value.clone()).ok().map(Number::Int),
            Type::Float => f64::try_from(value.clone()).ok().map(Number::Float),
            _ => None,
        }
    }

    pub(in super::super) fn float(self) -> f64 {
        match self {
            Number::Int(value) => value as f64,
            Number::Float(value) => value,
        }
    }

    pub(in super::super) fn value(self) -> Value {
        match self {
            Number::Int(value) => match i64::try_from(value) {
                Ok(value) => Value::from(value),
                Err(_) => Value::from(value),
            },
            Number::Float(value) => Value::from(value),
        }
    }
}

/// The whole number that a value is.
pub(in super::super) fn whole(value: &Value) -> Option<i128> {
    match Number::of(value) {
        Some(Number::Int(value)) => Some(value),
        _ => None,
    }
}

/// Python has whole numbers of any size, this program up to 2^127.
pub(in super::super) fn too_large() -> Error {
    fail("a whole number is larger than supported, 2 to the power of 127")
}

/// `repr` of a number with a fraction: the fewest digits that give it back, with an exponent for large and small ones.
pub(in super::super) fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value < 0.0 { "-inf" } else { "inf" }.into();
    }
    let spelled = format!("{value:e}");
    let (digits, exponent) = spelled.split_once('e').unwrap_or((&spelled, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = value.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// Python's `float(text)`.
pub(in super::super) fn parse_float(text: &str) -> Option<f64> {
    let text = without_underscores(super::strings::strip(text))?;
    let word = text.trim_start_matches(['+', '-']).to_ascii_lowercase();
    let is_word = matches!(word.as_str(), "inf" | "infinity" | "nan");
    if !is_word && !word.starts_with(|first: char| first.is_ascii_digit() || first == '.') {
        return None;
    }
    text.parse().ok()
}

/// Python's `int(text, base)`; an error where it is larger than supported.
pub(in super::super) fn parse_int(text: &str, base: u32) -> Result<Option<i128>, Error> {
    let text = super::strings::strip(text);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find(|(prefix, _)| lower.starts_with(prefix));
    let (base, digits) = match prefixed {
        Some((prefix, own)) if base == own || base == 0 => {
            let rest = digits.get(prefix.len()..).unwrap_or_default();
            (own, rest.strip_prefix('_').unwrap_or(rest))
        }
        _ => (if base == 0 { 10 } else { base }, digits),
    };
    if !(2..=36).contains(&base) {
        return Err(fail("the base of a number is 0, or 2 to 36"));
    }
    let Some(digits) = without_underscores(digits) else { return Ok(None) };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(base)) {
        return Ok(None);
    }
    i128::from_str_radix(&format!("{sign}{digits}"), base).map(Some).map_err(|_| too_large())
}

/// Underscores are allowed between two digits.
fn without_underscores(text: &str) -> Option<String> {
    let letters: Vec<char> = text.chars().collect();
    let is_digit = |at: Option<usize>| at.and_then(|at| letters.get(at)).is_some_and(char::is_ascii_alphanumeric);
    let is_right =
        |(at, letter): (usize, &char)| *letter != '_' || (is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)));
    letters.iter().enumerate().all(is_right).then(|| text.replace('_', ""))
}

/// Python's `int(number)`: without the fraction.
pub(in super::super) fn truncated(value: f64) -> Result<i128, Error> {
    if value.is_nan() || value.is_infinite() {
        return Err(fail("cannot convert float infinity or NaN to integer"));
    }
    if value.abs() >= 2f64.powi(126) { Err(too_large()) } else { Ok(value.trunc() as i128) }
}

/// Python's `round`: to the nearest, and of two that are as near the even one.
pub(in super::super) fn rounded(value: f64, digits: usize) -> f64 {
    if !value.is_finite() || digits > 340 {
        return value;
    }
    format!("{value:.digits$}").parse().unwrap_or(value)
}
