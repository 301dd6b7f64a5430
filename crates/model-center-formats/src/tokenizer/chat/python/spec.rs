//! Formatting of numbers and texts: what `%` and `str.format` share.

use minijinja::{Error, State, Value};

use super::number::{self, Number};
use super::{Type, fail, not_supported};
use crate::tokenizer::chat::bounds::check_size;

/// The digits of `e`, `f`, `g` and their large forms, without a sign. `keeps_zeros` is `#`.
pub(super) fn float_digits(value: f64, kind: char, precision: usize, keeps_zeros: bool) -> String {
    let value = value.abs();
    let is_upper = kind.is_ascii_uppercase();
    let text = if value.is_infinite() {
        "inf".to_owned()
    } else if value.is_nan() {
        "nan".to_owned()
    } else {
        match kind.to_ascii_lowercase() {
            'e' => exponent(&format!("{value:.precision$e}")),
            'f' => format!("{value:.precision$}"),
            _ => {
                let precision = precision.max(1);
                let scientific = format!("{value:.*e}", precision - 1);
                let power: i32 = scientific.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
                let is_plain = power >= -4 && power < precision as i32;
                let text = match is_plain {
                    true => format!("{value:.*}", (precision as i32 - 1 - power).max(0) as usize),
                    false => exponent(&scientific),
                };
                if keeps_zeros { text } else { without_zeros(&text) }
            }
        }
    };
    if is_upper { text.to_ascii_uppercase() } else { text }
}

/// An exponent with a sign and at least two digits.
fn exponent(text: &str) -> String {
    let (digits, power) = text.split_once('e').unwrap_or((text, "0"));
    let (sign, power) = power.strip_prefix('-').map_or(('+', power), |power| ('-', power));
    format!("{digits}e{sign}{power:0>2}")
}

fn without_zeros(text: &str) -> String {
    let (digits, power) = text.find('e').map_or((text, ""), |at| text.split_at(at));
    let digits = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    format!("{digits}{power}")
}

/// A whole number in a base, without a sign.
pub(super) fn digits(value: i128, kind: char) -> String {
    let value = value.unsigned_abs();
    match kind {
        'x' => format!("{value:x}"),
        'X' => format!("{value:X}"),
        'o' => format!("{value:o}"),
        'b' => format!("{value:b}"),
        _ => value.to_string(),
    }
}

/// `[[fill]align][sign][#][0][width][grouping][.precision][type]`.
#[derive(Debug, Clone, Copy, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    is_alternate: bool,
    is_zero: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

fn parse(spec: &str) -> Result<Spec, Error> {
    let letters: Vec<char> = spec.chars().collect();
    let is_align = |at: usize| letters.get(at).is_some_and(|letter| "<>=^".contains(*letter));
    let (mut found, mut at) = (Spec::default(), 0);
    if is_align(1) {
        (found.fill, found.align, at) = (letters.first().copied(), letters.get(1).copied(), 2);
    } else if is_align(0) {
        (found.align, at) = (letters.first().copied(), 1);
    }
    let next = |at: &mut usize, wanted: &str| {
        let letter = letters.get(*at).copied().filter(|letter| wanted.contains(*letter));
        *at += usize::from(letter.is_some());
        letter
    };
    let count = |at: &mut usize| {
        let digits: String = letters.iter().skip(*at).take_while(|letter| letter.is_ascii_digit()).collect();
        *at += digits.len();
        if digits.is_empty() { None } else { Some(digits.parse().unwrap_or(usize::MAX)) }
    };
    found.sign = next(&mut at, "+- ");
    found.is_alternate = next(&mut at, "#").is_some();
    found.is_zero = next(&mut at, "0").is_some();
    found.width = count(&mut at).unwrap_or(0);
    found.grouping = next(&mut at, ",_");
    if next(&mut at, ".").is_some() {
        found.precision = Some(count(&mut at).ok_or_else(|| fail("format specifier missing precision"))?);
    }
    found.kind = letters.get(at).copied();
    if letters.len() > at + usize::from(found.kind.is_some()) {
        return Err(fail(format!("invalid format specifier {spec:?}")));
    }
    Ok(found)
}

/// A value by a format specification: Python's `format(value, spec)`. `text` is `str` of it.
pub(super) fn formatted(state: &State<'_, '_>, value: &Value, spec: &str, text: String) -> Result<String, Error> {
    if spec.is_empty() {
        return Ok(text);
    }
    let kind = Type::of(value);
    let found = parse(spec)?;
    check_size(state, found.width.max(found.precision.unwrap_or(0)).saturating_add(text.len()))?;
    let wrong = || {
        let code = found.kind.unwrap_or('?');
        fail(format!("unknown format code '{code}' for a value of type '{}'", kind.name()))
    };
    match (kind, Number::of(value)) {
        (Type::Str, _) => {
            let is_number = found.sign.is_some() || found.is_alternate || found.grouping.is_some();
            if is_number || found.align == Some('=') || !matches!(found.kind, None | Some('s')) {
                return Err(wrong());
            }
            let text: String = text.chars().take(found.precision.unwrap_or(usize::MAX)).collect();
            let fill = found.fill.or(if found.is_zero { Some('0') } else { None });
            Ok(aligned(&text, Spec { fill, ..found }, '<'))
        }
        (_, Some(Number::Int(number))) => match found.kind {
            None | Some('d' | 'b' | 'o' | 'x' | 'X') => {
                if found.precision.is_some() {
                    return Err(fail("precision not allowed in integer format specifier"));
                }
                let kind = found.kind.unwrap_or('d');
                let prefix = match kind {
                    'd' => String::new(),
                    kind if found.is_alternate => format!("0{kind}"),
                    _ => String::new(),
                };
                let group = if kind == 'd' { 3 } else { 4 };
                Ok(with_sign(number < 0, &prefix, &digits(number, kind), "", found, group))
            }
            Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => float(number as f64, found),
            Some('n' | 'c') => Err(not_supported("the format codes n and c")),
            _ => Err(wrong()),
        },
        (_, Some(Number::Float(number))) => match found.kind {
            None | Some('e' | 'E' | 'f' | 'F' | 'g' | 'G' | '%') => float(number, found),
            Some('n') => Err(not_supported("the format code n")),
            _ => Err(wrong()),
        },
        _ => Err(fail(format!("unsupported format string passed to a value of type '{}'", kind.name()))),
    }
}

fn float(value: f64, spec: Spec) -> Result<String, Error> {
    let (text, end) = match spec.kind {
        // As `str`, or as `g` with at least one digit after the point.
        None => match spec.precision {
            None => (number::float_text(value.abs()), ""),
            Some(precision) => {
                let text = float_digits(value, 'g', precision, spec.is_alternate);
                let power = format!("{:.*e}", precision.max(1) - 1, value.abs());
                let power: i32 = power.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
                // One digit fewer fits before an exponent is needed.
                let text = match power >= precision.max(1) as i32 - 1 && !text.contains('e') && value.is_finite() {
                    true => without_zeros(&exponent(&format!("{:.*e}", precision.max(1) - 1, value.abs()))),
                    false => text,
                };
                let is_whole = !text.contains(['.', 'e', 'n']);
                (if is_whole { text + ".0" } else { text }, "")
            }
        },
        Some('%') => (float_digits(value * 100.0, 'f', spec.precision.unwrap_or(6), false), "%"),
        Some(kind) => (float_digits(value, kind, spec.precision.unwrap_or(6), spec.is_alternate), ""),
    };
    let is_negative = value.is_sign_negative() && !value.is_nan();
    Ok(with_sign(is_negative, "", &text, end, spec, 3))
}

/// A number with its sign, its groups and what fills it up.
fn with_sign(is_negative: bool, prefix: &str, digits: &str, end: &str, spec: Spec, group: usize) -> String {
    let sign = match (is_negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    let whole = digits.find(|letter: char| !letter.is_ascii_alphanumeric() || letter == 'e').unwrap_or(digits.len());
    let whole = if group == 4 { digits.len() } else { whole };
    let (whole, rest) = digits.split_at(whole);
    let is_zero = spec.is_zero && spec.align.is_none() || spec.align == Some('=') && spec.fill == Some('0');
    let used = sign.len() + prefix.len() + rest.len() + end.len();
    let whole = grouped(whole, spec.grouping, group, if is_zero { spec.width.saturating_sub(used) } else { 0 });
    let number = format!("{whole}{rest}{end}");
    if spec.align == Some('=') && !is_zero {
        let missing = spec.width.saturating_sub((sign.len() + prefix.len() + number.len()).min(spec.width));
        let fill = spec.fill.unwrap_or(if spec.is_zero { '0' } else { ' ' });
        return format!("{sign}{prefix}{}{number}", fill.to_string().repeat(missing));
    }
    let fill = spec.fill.or(if spec.is_zero && spec.align.is_some() { Some('0') } else { None });
    aligned(&format!("{sign}{prefix}{number}"), Spec { fill, ..spec }, '>')
}

/// Digits with a sign between groups, and zeros before them up to a width.
fn grouped(digits: &str, separator: Option<char>, group: usize, width: usize) -> String {
    let Some(separator) = separator else { return format!("{digits:0>width$}") };
    let mut letters: Vec<char> = Vec::new();
    let mut count = 0;
    let mut source = digits.chars().rev();
    loop {
        let next = match source.next() {
            Some(letter) => letter,
            // A group that begins has at least one digit.
            None if letters.len() < width => '0',
            None => break,
        };
        if count > 0 && count % group == 0 {
            letters.push(separator);
        }
        letters.push(next);
        count += 1;
    }
    letters.iter().rev().collect()
}

fn aligned(text: &str, spec: Spec, otherwise: char) -> String {
    let missing = spec.width.saturating_sub(text.chars().count());
    let fill = spec.fill.unwrap_or(' ').to_string();
    let left = match spec.align.unwrap_or(otherwise) {
        '<' => 0,
        '^' => missing / 2,
        _ => missing,
    };
    format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left))
}
