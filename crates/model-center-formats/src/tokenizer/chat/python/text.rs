//! Python's `str` and `repr`.

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use super::objects::{Range, View};
use super::{Type, fail, number};
use crate::tokenizer::chat::bounds::{DEPTH, limit, too_large};

/// `str` of a value, at most as long as a text may be.
pub(in super::super) fn str_of(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    if value.is_undefined() {
        return Ok(String::new());
    }
    repr(state, value)
}

/// `repr` of a value.
pub(in super::super) fn repr(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let mut writer = Writer { out: String::new(), limit: limit(state) };
    writer.write(value, 0)?;
    Ok(writer.out)
}

struct Writer {
    out: String,
    limit: usize,
}

impl Writer {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH {
            return Err(fail("containers are nested too deep"));
        }
        if self.out.len() > self.limit {
            return Err(too_large(self.limit));
        }
        match Type::of(value) {
            Type::Undefined => self.out += "Undefined",
            Type::None => self.out += "None",
            Type::Bool => self.out += if value.is_true() { "True" } else { "False" },
            Type::Int => self.out += &value.to_string(),
            Type::Float => self.out += &number::float_text(f64::try_from(value.clone()).unwrap_or(f64::NAN)),
            Type::Str => self.quote(value),
            Type::List => self.items("[", value, "]", depth)?,
            Type::Tuple => self.items("(", value, if value.len() == Some(1) { ",)" } else { ")" }, depth)?,
            Type::Dict => self.mapping(value, depth)?,
            Type::Range => {
                let range = value.downcast_object_ref::<Range>();
                self.out += &range.map(Range::text).unwrap_or_default();
            }
            Type::View => {
                let name = value.downcast_object_ref::<View>().map_or("", |view| view.kind.name());
                self.items(&format!("{name}(["), value, "])", depth)?;
            }
            // What Python prints of a namespace has an order that is not kept.
            other => {
                let reason = format!("the text of a value of type {} is not supported in chat templates", other.name());
                return Err(fail(reason));
            }
        }
        Ok(())
    }

    fn items(&mut self, open: &str, value: &Value, close: &str, depth: usize) -> Result<(), Error> {
        self.out += open;
        for (at, item) in value.try_iter()?.enumerate() {
            self.out += if at > 0 { ", " } else { "" };
            self.write(&item, depth + 1)?;
        }
        self.out += close;
        Ok(())
    }

    fn mapping(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('{');
        for (at, key) in value.try_iter()?.enumerate() {
            self.out += if at > 0 { ", " } else { "" };
            self.write(&key, depth + 1)?;
            self.out += ": ";
            self.write(&value.get_item(&key)?, depth + 1)?;
        }
        self.out.push('}');
        Ok(())
    }

    fn quote(&mut self, value: &Value) {
        let text = value.as_str().unwrap_or_default();
        if value.kind() == ValueKind::String && value.is_safe() {
            self.out += "Markup(";
            self.out += &quoted(text);
            self.out.push(')');
            return;
        }
        self.out += &quoted(text);
    }
}

/// A text as Python writes it in source.
pub(in super::super) fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for letter in text.chars() {
        match letter {
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            '\t' => out += "\\t",
            letter if letter == quote => {
                out.push('\\');
                out.push(letter);
            }
            letter if is_printable(letter) => out.push(letter),
            letter => {
                let code = u32::from(letter);
                out += &match code {
                    0..=0xff => format!("\\x{code:02x}"),
                    0x100..=0xffff => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
    out
}

/// Python's `isprintable` of one character: neither of the categories of others nor of separators, but a space.
pub(in super::super) fn is_printable(letter: char) -> bool {
    if letter.is_ascii() {
        return (' '..='~').contains(&letter);
    }
    // The standard library escapes the same, and a mark that would combine with what is before it at the beginning.
    format!("a{letter}").escape_debug().skip(1).eq([letter])
}
