//! `text % values`.

use minijinja::{Error, State, Value};

use super::number::{Number, truncated};
use super::spec::{digits, float_digits};
use super::strings::padded;
use super::text::{quoted, repr, str_of};
use super::{Type, compare, fail, not_supported};
use crate::tokenizer::chat::bounds::check_size;

/// Fills in a format of C's kind: with one value, with a tuple's values, or with a dictionary's by their names.
pub(super) fn format(state: &State<'_, '_>, text: &Value, values: &Value) -> Result<Value, Error> {
    if text.is_safe() {
        return Err(not_supported("% of a text that is marked safe"));
    }
    let kind = Type::of(values);
    let given = match kind {
        Type::Tuple => values.try_iter()?.collect(),
        _ => vec![values.clone()],
    };
    let mut filler = Filler { state, values, given, at: 0, is_by_name: false };
    let out = filler.fill(text.as_str().unwrap_or_default())?;
    // Of a dictionary and of a list not all has to be used.
    let may_be_left = filler.is_by_name || matches!(kind, Type::Dict | Type::List);
    if filler.at < filler.given.len() && !may_be_left {
        return Err(fail("not all arguments converted during string formatting"));
    }
    Ok(Value::from(out))
}

struct Filler<'a, 't, 'e> {
    state: &'a State<'t, 'e>,
    values: &'a Value,
    given: Vec<Value>,
    at: usize,
    is_by_name: bool,
}

/// Text between `%` and the letter of a field.
#[derive(Debug, Default)]
struct Field {
    flags: String,
    width: usize,
    precision: Option<usize>,
}

impl Filler<'_, '_, '_> {
    fn fill(&mut self, text: &str) -> Result<String, Error> {
        let mut out = String::new();
        let mut letters = text.chars().peekable();
        while let Some(letter) = letters.next() {
            if letter != '%' {
                out.push(letter);
                continue;
            }
            let (mut field, mut named) = (Field::default(), None);
            if letters.next_if_eq(&'(').is_some() {
                let mut open = 1;
                let mut name = String::new();
                for letter in letters.by_ref() {
                    open += i32::from(letter == '(') - i32::from(letter == ')');
                    if open == 0 {
                        break;
                    }
                    name.push(letter);
                }
                named = Some(self.named(&name)?);
            }
            while let Some(flag) = letters.next_if(|letter| "#0- +".contains(*letter)) {
                field.flags.push(flag);
            }
            let mut count = |filler: &mut Self| {
                if letters.next_if_eq(&'*').is_some() {
                    let value = filler.next()?;
                    let Some(Number::Int(value)) = Number::of(&value) else { return Err(fail("* wants int")) };
                    return Ok(Some(value));
                }
                let mut digits = String::new();
                while let Some(digit) = letters.next_if(char::is_ascii_digit) {
                    digits.push(digit);
                }
                let large = digits.parse().unwrap_or(i128::MAX);
                Ok(if digits.is_empty() { None } else { Some(large) })
            };
            if let Some(width) = count(self)? {
                if width < 0 {
                    field.flags.push('-');
                }
                field.width = usize::try_from(width.unsigned_abs()).unwrap_or(usize::MAX);
            }
            if letters.next_if_eq(&'.').is_some() {
                let mut digits = String::new();
                while let Some(digit) = letters.next_if(|letter| letter.is_ascii_digit() || *letter == '*') {
                    digits.push(digit);
                }
                field.precision = Some(match digits.as_str() {
                    "" => 0,
                    "*" => match Number::of(&self.next()?) {
                        Some(Number::Int(value)) => usize::try_from(value.max(0)).unwrap_or(usize::MAX),
                        _ => return Err(fail("* wants int")),
                    },
                    digits => digits.parse().unwrap_or(usize::MAX),
                });
            }
            letters.next_if(|letter| "hlL".contains(*letter));
            let Some(kind) = letters.next() else { return Err(fail("incomplete format")) };
            check_size(self.state, out.len().saturating_add(field.width.max(field.precision.unwrap_or(0))))?;
            if kind == '%' {
                out.push('%');
                continue;
            }
            let value = match named {
                Some(value) => value,
                None => self.next()?,
            };
            out += &self.field(&field, kind, &value)?;
            check_size(self.state, out.len())?;
        }
        Ok(out)
    }

    fn next(&mut self) -> Result<Value, Error> {
        let value = self.given.get(self.at).cloned();
        self.at += 1;
        value.ok_or_else(|| fail("not enough arguments for format string"))
    }

    fn named(&mut self, name: &str) -> Result<Value, Error> {
        self.is_by_name = true;
        if Type::of(self.values) != Type::Dict {
            return Err(fail("format requires a mapping"));
        }
        compare::entry(self.values, &Value::from(name)).ok_or_else(|| fail(format!("there is no key {name:?}")))
    }

    fn field(&self, field: &Field, kind: char, value: &Value) -> Result<String, Error> {
        let number = || {
            if value.is_undefined() {
                return Err(super::undefined());
            }
            Number::of(value)
                .ok_or_else(|| fail(format!("%{kind} format: a number is required, not {}", Type::of(value).name())))
        };
        match kind {
            's' | 'r' | 'a' => {
                let text = match (kind, value.as_str()) {
                    ('s', _) => str_of(self.state, value)?,
                    (_, Some(text)) if !value.is_safe() => quoted(text),
                    _ => repr(self.state, value)?,
                };
                if kind == 'a' && !text.is_ascii() {
                    return Err(not_supported("%a of characters beyond ASCII"));
                }
                let text: String = text.chars().take(field.precision.unwrap_or(usize::MAX)).collect();
                self.filled(field, "", &text, false)
            }
            'c' => match value.as_str().map(|text| text.chars().count()) {
                Some(1) => self.filled(field, "", value.as_str().unwrap_or_default(), false),
                _ => Err(not_supported("%c of anything but one character")),
            },
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
                let number = match (number()?, kind) {
                    (Number::Int(number), _) => number,
                    (Number::Float(number), 'd' | 'i' | 'u') => truncated(number)?,
                    _ => return Err(fail(format!("%{kind} format: an integer is required, not float"))),
                };
                let prefix = match kind {
                    'x' | 'X' | 'o' if field.flags.contains('#') => format!("0{kind}"),
                    _ => String::new(),
                };
                let digits = digits(number, kind);
                let digits = format!("{digits:0>width$}", width = field.precision.unwrap_or(0));
                self.filled(field, &(sign(field, number < 0).to_owned() + &prefix), &digits, true)
            }
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let number = number()?.float();
                let text = float_digits(number, kind, field.precision.unwrap_or(6), field.flags.contains('#'));
                let is_negative = number.is_sign_negative() && !number.is_nan();
                self.filled(field, sign(field, is_negative), &text, number.is_finite())
            }
            other => Err(fail(format!("unsupported format character '{other}'"))),
        }
    }

    /// A field filled up to its width, with zeros after the sign where it is a number.
    fn filled(&self, field: &Field, sign: &str, text: &str, is_number: bool) -> Result<String, Error> {
        let width = i64::try_from(field.width).unwrap_or(i64::MAX);
        if field.flags.contains('-') {
            return padded(self.state, &format!("{sign}{text}"), "ljust", width, ' ');
        }
        if is_number && field.flags.contains('0') {
            let rest = width.saturating_sub(sign.len() as i64);
            return Ok(sign.to_owned() + &padded(self.state, text, "rjust", rest, '0')?);
        }
        padded(self.state, &format!("{sign}{text}"), "rjust", width, ' ')
    }
}

fn sign(field: &Field, is_negative: bool) -> &'static str {
    match is_negative {
        true => "-",
        false if field.flags.contains('+') => "+",
        false if field.flags.contains(' ') => " ",
        false => "",
    }
}
