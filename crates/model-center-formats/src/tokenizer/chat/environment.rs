//! The environment in which chat templates run, as transformers sets it up, with bounds.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment, Error};
use serde_json::Map;

use super::python::{fail, text};
use super::{bounds, filters, globals};

/// Besides what the messages have, so much may be written.
pub(super) const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// Steps that a template may take, and further ones for each byte it is given: some templates go through texts by
/// character.
const FUEL: u64 = 2_000_000;
const FUEL_PER_BYTE: u64 = 20;
/// Blocks and calls within each other.
const DEPTH: usize = 200;
/// The variable that carries the time of a rendering to `strftime_now`.
pub(super) const NOW: &str = "__seconds_since_1970";

/// The variables at the beginning and the end of what an assistant wrote, in templates that mark it: empty, but where
/// the places are asked for.
pub(super) const MARKS: [&str; 2] = ["__generation_begin", "__generation_end"];

/// An environment without templates. It has no loader, so templates cannot read files or each other.
pub(super) fn new() -> Environment<'static> {
    // Without the library's own filters, tests and functions.
    let mut environment = Environment::empty();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(DEPTH);
    environment.set_formatter(|output, state, value| {
        let text = text::str_of(state, value)?;
        output.write_str(&text).map_err(Error::from)
    });
    // Building this fails only for delimiters that cannot be told apart, and these are the usual ones.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    MARKS.iter().for_each(|mark| environment.add_global(*mark, ""));
    filters::add(&mut environment);
    globals::add(&mut environment);
    environment
}

/// A value of a conversation as templates see it.
fn value_of(value: &serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(value_of).collect::<Vec<_>>().into(),
        serde_json::Value::Object(fields) => map_of(fields),
    }
}

fn map_of(fields: &Map<String, serde_json::Value>) -> Value {
    Value::from_pairs(fields.iter().map(|(key, field)| (key.as_str(), value_of(field))))
}

/// Size of a context, about.
pub(super) fn size_of(context: &Map<String, serde_json::Value>) -> usize {
    fn size(value: &serde_json::Value) -> usize {
        match value {
            serde_json::Value::String(text) => text.len(),
            serde_json::Value::Array(items) => items.iter().map(|item| 1 + size(item)).sum(),
            serde_json::Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + size(value)).sum(),
            _ => 8,
        }
    }
    context.values().map(size).sum()
}

/// Run a template of the environment; its output has at most `limit` bytes. `marks` are written around what an
/// assistant wrote, if the template marks that.
pub(super) fn render(
    environment: &Environment<'static>,
    name: &str,
    context: &Map<String, serde_json::Value>,
    (now, marks): (SystemTime, Option<&[String; 2]>),
    limit: usize,
) -> Result<String, Error> {
    let mut environment = environment.clone();
    environment.set_fuel(Some(FUEL + FUEL_PER_BYTE * size_of(context) as u64));
    environment.add_global(NOW, now.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()));
    environment.add_global(bounds::MAX_BYTES, limit);
    if let Some(marks) = marks {
        MARKS.iter().zip(marks).for_each(|(mark, text)| environment.add_global(*mark, text.clone()));
    }
    let mut output = Bounded { bytes: Vec::new(), limit };
    environment.get_template(name)?.render_captured_to(map_of(context), &mut output)?;
    String::from_utf8(output.bytes).map_err(|_| fail("the output is not UTF-8 text"))
}

struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::Error::other(format!("the output has more than {} bytes", self.limit)));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
