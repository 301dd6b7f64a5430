//! The kinds of values a key can have, as methods of [`Reader`]: numbers in a range, choices, text, lists.
//!
//! Also [`quote`], TOML's way to write a string. Called by the tables in `keys/`.

use super::layers::Value;
use super::reader::{Otherwise, Reader, Spec};
use super::schema::Shape;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// The largest whole number TOML can hold.
pub(crate) const MAX_INTEGER: u64 = i64::MAX as u64;

/// The numbers a key accepts; never infinite, never NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Range {
    Above(f64),
    AtLeast(f64),
    /// Both ends included.
    Within(f64, f64),
    /// The upper end excluded.
    Below(f64, f64),
}

impl Range {
    pub(crate) fn contains(self, v: f64) -> bool {
        v.is_finite()
            && match self {
                Range::Above(low) => v > low,
                Range::AtLeast(low) => v >= low,
                Range::Within(low, high) => (low..=high).contains(&v),
                Range::Below(low, high) => (low..high).contains(&v),
            }
    }

    /// Whether a number, and what is left of it in single precision, is accepted. 0.99999999 is below 1 and rounds to
    /// 1.
    pub(crate) fn holds_single(self, v: f64) -> bool {
        self.contains(v) && self.contains(f64::from(v as f32))
    }

    fn describe(self) -> String {
        match self {
            Range::Above(low) => format!("a number above {low}"),
            Range::AtLeast(low) => format!("a number of at least {low}"),
            Range::Within(low, high) => format!("a number from {low} to {high}"),
            Range::Below(low, high) => format!("a number from {low} to below {high}"),
        }
    }
}

fn flag_spec<'a>(key: &'static str, otherwise: Otherwise<'a, bool>) -> Spec<'a, bool> {
    Spec {
        key,
        textual: false,
        wanted: "true or false".into(),
        example: if let Otherwise::Default(default) = &otherwise { default.to_string() } else { "true".into() },
        otherwise,
        read: &|value| if let Value::Bool(flag) = value { Some(*flag) } else { None },
        render: &ToString::to_string,
    }
}

/// The types of whole numbers; ranges of keys are within them.
pub(crate) trait Whole: Copy {
    fn of(number: u64) -> Self;
    fn number(self) -> u64;
}

macro_rules! whole {
    ($($type:ty),*) => {
        $(impl Whole for $type {
            fn of(number: u64) -> Self {
                number as $type
            }

            fn number(self) -> u64 {
                self as u64
            }
        })*
    };
}

whole!(u32, u64, usize);

/// The name of a choice.
pub(crate) fn name_of<T: PartialEq>(choices: &[(&'static str, T)], choice: &T) -> &'static str {
    choices.iter().find(|(_, other)| other == choice).map_or("", |(name, _)| name)
}

/// Names in quotes, with `by` between them.
pub(crate) fn quoted(names: &[&str], by: &str) -> String {
    names.iter().map(|name| quote(name)).collect::<Vec<_>>().join(by)
}

/// Text that stands for a value, or a path: what it must be and a right one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) what: &'static str,
    pub(crate) example: &'static str,
}

impl Reader {
    pub(crate) fn float(&mut self, key: &'static str, default: f64, range: Range) -> f64 {
        self.any_float(key, Otherwise::Default(default), range, default).unwrap_or(default)
    }

    /// A number that may be absent; `absent` describes what applies then.
    pub(crate) fn optional_float(
        &mut self,
        key: &'static str,
        absent: &str,
        range: Range,
        example: f64,
    ) -> Option<f64> {
        self.any_float(key, Otherwise::Absent(absent), range, example)
    }

    /// A number that is used in single precision and has to be in its range there too.
    pub(crate) fn single(&mut self, key: &'static str, default: f64, range: Range) -> f32 {
        self.number_in_single(key, default, range) as f32
    }

    /// Number of a key before it is rounded to single precision.
    pub(crate) fn number_in_single(&mut self, key: &'static str, default: f64, range: Range) -> f64 {
        self.any_single(key, Otherwise::Default(default), range, default).unwrap_or(default)
    }

    /// Number of a key that may be absent, in single precision; `absent` describes what applies then.
    pub(crate) fn optional_single(
        &mut self,
        key: &'static str,
        absent: &str,
        range: Range,
        example: f64,
    ) -> Option<f32> {
        self.any_single(key, Otherwise::Absent(absent), range, example).map(|v| v as f32)
    }

    /// A number that is converted to f32 at the end: it is kept as it was written, because the nearest f32 would be
    /// printed with more digits than the user wrote.
    fn any_single(
        &mut self,
        key: &'static str,
        otherwise: Otherwise<'_, f64>,
        range: Range,
        example: f64,
    ) -> Option<f64> {
        let wanted = format!("{} in single precision", range.describe());
        let read = self.number(key, otherwise, wanted, &|value| range.holds_single(value), example);
        self.shape(key, Shape::Number(range));
        read
    }

    fn any_float(
        &mut self,
        key: &'static str,
        otherwise: Otherwise<'_, f64>,
        range: Range,
        example: f64,
    ) -> Option<f64> {
        let read = self.number(key, otherwise, range.describe(), &|value| range.contains(value), example);
        self.shape(key, Shape::Number(range));
        read
    }

    fn number(
        &mut self,
        key: &'static str,
        otherwise: Otherwise<'_, f64>,
        wanted: String,
        holds: &dyn Fn(f64) -> bool,
        example: f64,
    ) -> Option<f64> {
        self.read(Spec {
            key,
            textual: false,
            wanted,
            example: format!("{example:?}"),
            otherwise,
            read: &|value| as_float(value).filter(|v| holds(*v)),
            render: &|v| format!("{v:?}"),
        })
    }

    pub(crate) fn integer<T: Whole>(&mut self, key: &'static str, default: T, range: RangeInclusive<u64>) -> T {
        let number = default.number();
        self.any_integer(key, Otherwise::Default(number), range, number).map_or(default, T::of)
    }

    /// A whole number that may be absent; `absent` describes what applies then.
    pub(crate) fn optional_integer<T: Whole>(
        &mut self,
        key: &'static str,
        absent: &str,
        range: RangeInclusive<u64>,
        example: u64,
    ) -> Option<T> {
        self.any_integer(key, Otherwise::Absent(absent), range, example).map(T::of)
    }

    fn any_integer(
        &mut self,
        key: &'static str,
        otherwise: Otherwise<'_, u64>,
        range: RangeInclusive<u64>,
        example: u64,
    ) -> Option<u64> {
        let wanted = match (*range.start(), *range.end()) {
            (low, high) if high >= MAX_INTEGER => format!("a whole number of at least {low}"),
            (low, high) => format!("a whole number from {low} to {high}"),
        };
        let read = self.read(Spec {
            key,
            textual: false,
            wanted,
            example: example.to_string(),
            otherwise,
            read: &|value| as_integer(value).filter(|v| range.contains(v)),
            render: &|v| v.to_string(),
        });
        let most = Some(*range.end()).filter(|most| *most < MAX_INTEGER);
        self.shape(key, Shape::Integer(*range.start(), most));
        read
    }

    pub(crate) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        let read = self.read(flag_spec(key, Otherwise::Default(default))).unwrap_or(default);
        self.shape(key, Shape::Flag);
        read
    }

    /// A flag that may be absent.
    pub(crate) fn optional_flag(&mut self, key: &'static str, absent: &str) -> Option<bool> {
        let read = self.read(flag_spec(key, Otherwise::Absent(absent)));
        self.shape(key, Shape::Flag);
        read
    }

    /// One of a few names.
    pub(crate) fn choice<T: Copy + PartialEq>(&mut self, key: &'static str, choices: &[(&str, T)], default: T) -> T {
        self.any_choice(key, choices, Otherwise::Default(default)).unwrap_or(default)
    }

    /// One of a few names, which must be set.
    pub(crate) fn required_choice<T: Copy + PartialEq>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        self.any_choice(key, choices, Otherwise::Required)
    }

    fn any_choice<T: Copy + PartialEq>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
        otherwise: Otherwise<'_, T>,
    ) -> Option<T> {
        let names: Vec<String> = choices.iter().map(|(name, _)| quote(name)).collect();
        let read = self.read(Spec {
            key,
            textual: true,
            wanted: format!("one of {}", names.join(", ")),
            example: names.first().cloned().unwrap_or_default(),
            otherwise,
            read: &|value| match value {
                Value::Text(text) => choices.iter().find(|(word, _)| word == text).map(|(_, v)| *v),
                _ => None,
            },
            render: &|v| quote(choices.iter().find(|(_, c)| c == v).map_or("", |(word, _)| word)),
        });
        self.shape(key, Shape::Choice(choices.iter().map(|(name, _)| (*name).to_owned()).collect()));
        read
    }

    /// Text that is not empty.
    pub(crate) fn text(&mut self, key: &'static str, default: &str, wanted: Expected) -> String {
        self.any_text(key, Otherwise::Default(default.to_owned()), wanted).unwrap_or_default()
    }

    /// Text that must be there; empty after a mistake.
    pub(crate) fn required_text(&mut self, key: &'static str, wanted: Expected) -> String {
        self.any_text(key, Otherwise::Required, wanted).unwrap_or_default()
    }

    /// Text that may be absent; `absent` describes what applies then.
    pub(crate) fn optional_text(&mut self, key: &'static str, absent: &str, wanted: Expected) -> Option<String> {
        self.any_text(key, Otherwise::Absent(absent), wanted)
    }

    /// A path that must be there; empty after a mistake.
    pub(crate) fn required_path(&mut self, key: &'static str, wanted: Expected) -> PathBuf {
        self.required_text(key, wanted).into()
    }

    /// A path that may be absent; `absent` describes what applies then.
    pub(crate) fn optional_path(&mut self, key: &'static str, absent: &str, wanted: Expected) -> Option<PathBuf> {
        self.any_text(key, Otherwise::Absent(absent), wanted).map(PathBuf::from)
    }

    fn any_text(&mut self, key: &'static str, otherwise: Otherwise<'_, String>, wanted: Expected) -> Option<String> {
        let read = self.read(Spec {
            key,
            textual: true,
            wanted: wanted.what.into(),
            example: quote(wanted.example),
            otherwise,
            read: &as_text,
            render: &|v| quote(v),
        });
        self.shape(key, Shape::Text);
        read
    }

    /// A list of texts that may be absent.
    pub(crate) fn optional_texts(&mut self, key: &'static str, absent: &str, example: &str) -> Option<Vec<String>> {
        let read = self.read(Spec {
            key,
            textual: false,
            wanted: "a list of strings".into(),
            example: example.into(),
            otherwise: Otherwise::Absent(absent),
            read: &|value| if let Value::Array(items) = value { items.iter().map(as_text).collect() } else { None },
            render: &|v: &Vec<String>| format!("[{}]", v.iter().map(|t| quote(t)).collect::<Vec<_>>().join(", ")),
        });
        self.shape(key, Shape::List(Box::new(Shape::Text)));
        read
    }

    /// The same, empty where it is absent.
    pub(crate) fn texts(&mut self, key: &'static str, absent: &str, example: &str) -> Vec<String> {
        self.optional_texts(key, absent, example).unwrap_or_default()
    }

    /// A list of some of a few names, each once, that may be absent.
    pub(crate) fn optional_choices<T: Copy + PartialEq>(
        &mut self,
        key: &'static str,
        absent: &str,
        choices: &[(&str, T)],
    ) -> Option<Vec<T>> {
        let names: Vec<String> = choices.iter().map(|(name, _)| quote(name)).collect();
        let find = |value: &Value| match value {
            Value::Text(text) => choices.iter().find(|(word, _)| word == text).map(|(_, v)| *v),
            _ => None,
        };
        let read = self.read(Spec {
            key,
            textual: false,
            wanted: format!("a list of some of {}", names.join(", ")),
            example: format!("[{}]", names.first().map_or("", String::as_str)),
            otherwise: Otherwise::Absent(absent),
            read: &|value| {
                let Value::Array(items) = value else { return None };
                let found: Vec<T> = items.iter().map(find).collect::<Option<_>>()?;
                let is_again = |at: usize| found[..at].contains(&found[at]);
                (!found.is_empty() && !(0..found.len()).any(is_again)).then_some(found)
            },
            // In the order of the choices, so that equal sets are equal texts.
            render: &|found: &Vec<T>| {
                let given = choices.iter().filter(|(_, choice)| found.contains(choice));
                format!("[{}]", given.map(|(name, _)| quote(name)).collect::<Vec<_>>().join(", "))
            },
        });
        let of = Shape::Choice(choices.iter().map(|(name, _)| (*name).to_owned()).collect());
        self.shape(key, Shape::List(Box::new(of)));
        read
    }

    /// Two numbers in one range, which they have to be in when rounded to single precision too.
    pub(crate) fn pair(&mut self, key: &'static str, default: [f64; 2], range: Range) -> [f64; 2] {
        let render = |v: &[f64; 2]| format!("[{:?}, {:?}]", v[0], v[1]);
        let read = self.read(Spec {
            key,
            textual: false,
            wanted: format!("a list of two, each {} in single precision", range.describe()),
            example: render(&default),
            otherwise: Otherwise::Default(default),
            read: &|value| {
                let Value::Array(items) = value else { return None };
                let [a, b] = items.as_slice() else { return None };
                let (a, b) = (as_float(a)?, as_float(b)?);
                (range.holds_single(a) && range.holds_single(b)).then_some([a, b])
            },
            render: &render,
        });
        self.shape(key, Shape::Tuple(Box::new(Shape::Number(range)), 2));
        read.unwrap_or(default)
    }
}

/// A number; whole ones may be written without a point.
pub(crate) fn as_float(value: &Value) -> Option<f64> {
    match value {
        Value::Float(v) => Some(*v),
        Value::Integer(v) => Some(*v as f64),
        _ => None,
    }
}

pub(crate) fn as_integer(value: &Value) -> Option<u64> {
    if let Value::Integer(v) = value { u64::try_from(*v).ok() } else { None }
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) if !text.trim().is_empty() => Some(text.clone()),
        _ => None,
    }
}

/// A TOML basic string on one line.
pub fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
