//! The `tojson` filter of chat templates, which spells JSON as Python's `json.dumps` does.
//!
//! Defines [`to_json`]. The filter that the library has escapes what HTML gives a meaning.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind, State};

use super::bounds::{limit, measure, too_large};

/// JSON with `, ` and `: ` between things, or one thing a line with `indent`. Takes `indent`, `separators`, `sort_keys`
/// and `ensure_ascii` as transformers' filter does.
pub(super) fn to_json(state: &State<'_, '_>, value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<Value> = options.get("indent")?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => match indent.as_str() {
            Some(text) => Some(text.to_owned()),
            None => Some(" ".repeat(usize::try_from(indent)?.min(64))),
        },
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let [item, key] = match separators.map(<[String; 2]>::try_from) {
        Some(Ok(separators)) => separators,
        Some(Err(_)) => return Err(Error::new(ErrorKind::InvalidOperation, "separators are two texts")),
        None => [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()],
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    options.assert_all_used()?;
    // Before the library goes through it, which has no bound.
    let limit = limit(state);
    measure(value, limit)?;
    let value = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, "this cannot be JSON").with_source(error))?;
    let mut writer = Writer { out: String::new(), indent, item, key, sort_keys, ascii, limit };
    writer.write(&value, 0)?;
    Ok(writer.out)
}

struct Writer {
    out: String,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
    ascii: bool,
    limit: usize,
}

impl Writer {
    fn write(&mut self, value: &serde_json::Value, depth: usize) -> Result<(), Error> {
        // Depth is bounded by what was measured; spaces and signs between things can be many more than these.
        if self.out.len() > self.limit {
            return Err(too_large(self.limit));
        }
        match value {
            serde_json::Value::String(text) => self.text(text),
            serde_json::Value::Array(items) if !items.is_empty() => {
                for (at, item) in items.iter().enumerate() {
                    self.begin(at, "[", depth);
                    self.write(item, depth + 1)?;
                }
                self.end("]", depth);
            }
            serde_json::Value::Object(fields) if !fields.is_empty() => {
                let mut fields: Vec<_> = fields.iter().collect();
                if self.sort_keys {
                    fields.sort_by_key(|(key, _)| *key);
                }
                for (at, (key, field)) in fields.into_iter().enumerate() {
                    self.begin(at, "{", depth);
                    self.text(key);
                    self.out += &self.key;
                    self.write(field, depth + 1)?;
                }
                self.end("}", depth);
            }
            other => self.out += &other.to_string(),
        }
        Ok(())
    }

    fn begin(&mut self, at: usize, open: &str, depth: usize) {
        self.out += if at == 0 { open } else { &self.item };
        self.line(depth + 1);
    }

    fn end(&mut self, close: &str, depth: usize) {
        self.line(depth);
        self.out += close;
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out += &indent.repeat(depth);
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out += "\\\"",
                '\\' => self.out += "\\\\",
                '\n' => self.out += "\\n",
                '\r' => self.out += "\\r",
                '\t' => self.out += "\\t",
                '\u{8}' => self.out += "\\b",
                '\u{c}' => self.out += "\\f",
                c if c < ' ' || (self.ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out += &format!("\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}
