//! The environment in which chat templates run, as transformers sets it up, with bounds.

use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, escape_formatter};
use serde_json::Map;

use super::bounds;
use super::civil_time::strftime;
use super::json::to_json;

/// Besides what the messages have, so much may be written.
pub(super) const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// Steps that a template may take, and further ones for each byte it is given: some templates go through texts by
/// character.
const FUEL: u64 = 2_000_000;
const FUEL_PER_BYTE: u64 = 20;
/// Blocks and calls within each other.
const DEPTH: usize = 200;
/// The variable that carries the time of a rendering to `strftime_now`.
const NOW: &str = "__seconds_since_1970";

/// The variables at the beginning and the end of what an assistant wrote, in templates that mark it: empty, but where
/// the places are asked for.
const MARKS: [&str; 2] = ["__generation_begin", "__generation_end"];

/// An environment without templates. It has no loader, so templates cannot read files or each other.
pub(super) fn new() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(DEPTH);
    environment.set_unknown_method_callback(bounds::method);
    bounds::guard_filters(&mut environment);
    environment.set_formatter(|output, state, value| {
        if matches!(value.kind(), ValueKind::Map | ValueKind::Seq | ValueKind::Iterable) {
            bounds::measure(value, bounds::limit(state))?;
        }
        escape_formatter(output, state, value)
    });
    // Building this fails only for delimiters that cannot be told apart, and these are the usual ones.
    if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
        environment.set_syntax(syntax);
    }
    MARKS.iter().for_each(|mark| environment.add_global(*mark, ""));
    environment.add_filter("tojson", to_json);
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |state: &State<'_, '_>, format: &str| -> Result<String, Error> {
        let seconds = state.lookup(NOW).and_then(|value| i64::try_from(value).ok()).unwrap_or(0);
        strftime(format, seconds).map_err(|reason| Error::new(ErrorKind::InvalidOperation, reason))
    });
    environment
}

/// What a context takes, about.
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
    environment.add_global(bounds::LIMIT, limit);
    if let Some(marks) = marks {
        MARKS.iter().zip(marks).for_each(|(mark, text)| environment.add_global(*mark, text.clone()));
    }
    let mut output = Bounded { bytes: Vec::new(), limit };
    environment.get_template(name)?.render_captured_to(Value::from(Serde(context)), &mut output)?;
    String::from_utf8(output.bytes).map_err(|_| Error::new(ErrorKind::InvalidOperation, "the output is not UTF-8 text"))
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

/// The template with `{% generation %}` as a block that is always there, and a variable at its beginning and its end;
/// and whether it has such a block. The tag is `transformers`' own: it marks an assistant's output and renders its
/// contents. White space around a tag is treated as around any other.
pub(super) fn with_generation_marks(template: &str) -> (String, bool) {
    let [begin, end] = MARKS;
    let mut out = String::with_capacity(template.len());
    let (mut rest, mut is_marked) = (template, false);
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out += before;
        let length = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, behind) = tag.split_at(length);
        let name = tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
        let (left, right) = tag.split_once(name).unwrap_or((tag, ""));
        match name {
            "generation" => {
                is_marked = true;
                out += &format!("{left}if true %}}{{{{ {begin} }}}}{{% if true{right}");
            }
            "endgeneration" => out += &format!("{left}endif %}}{{{{ {end} }}}}{{% endif{right}"),
            _ => out += tag,
        }
        rest = behind;
    }
    (out + rest, is_marked)
}
