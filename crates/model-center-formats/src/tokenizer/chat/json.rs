//! The `tojson` filter of chat templates, which spells JSON as Python's `json.dumps` does.
//!
//! Defines [`to_json`]. The filter that the library has escapes what HTML gives a meaning.

use minijinja::{Error, State, Value};

use super::bounds::{DEPTH, limit, too_large};
use super::python::{Args, Type, compare, fail, iterate, lists, number, size_argument};

/// JSON with `, ` and `: ` between things, or one thing a line with `indent`. Takes `ensure_ascii`, `indent`,
/// `separators` and `sort_keys` as transformers' filter does.
pub(super) fn to_json(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [ascii, indent, separators, sort_keys] =
        args.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let limit = limit(state);
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => match indent.as_str() {
            Some(text) => Some(text.to_owned()),
            None => {
                let width = usize::try_from(size_argument(&indent, "tojson")?).unwrap_or(0);
                if width > limit {
                    return Err(too_large(limit));
                }
                Some(" ".repeat(width))
            }
        },
    };
    let [item, key] = match separators.filter(|separators| !separators.is_none()) {
        Some(separators) => {
            let texts: Option<Vec<String>> =
                iterate(&separators)?.iter().map(|text| text.as_str().map(str::to_owned)).collect();
            let two = texts.and_then(|texts| <[String; 2]>::try_from(texts).ok());
            two.ok_or_else(|| fail("separators are two texts"))?
        }
        None => [if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()],
    };
    let [ascii, sort_keys] = [ascii, sort_keys].map(|option| option.is_some_and(|option| option.is_true()));
    let mut writer = Writer { out: String::new(), indent, item, key, sort_keys, ascii, limit };
    writer.write(&value, 0)?;
    Ok(Value::from(writer.out))
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
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH {
            return Err(fail("containers are nested too deep"));
        }
        // Spaces and signs between things can be many more than these.
        if self.out.len() > self.limit {
            return Err(too_large(self.limit));
        }
        match Type::of(value) {
            Type::Str => self.text(value.as_str().unwrap_or_default()),
            Type::List | Type::Tuple => {
                let items: Vec<Value> = value.try_iter()?.collect();
                for (at, item) in items.iter().enumerate() {
                    self.begin(at, "[", depth);
                    self.write(item, depth + 1)?;
                }
                self.end(items.is_empty(), ["[]", "]"], depth);
            }
            Type::Dict => {
                let mut fields = lists::pairs(value)?;
                if self.sort_keys {
                    compare::sort(&mut fields, false)?;
                }
                for (at, (key, field)) in fields.iter().enumerate() {
                    self.begin(at, "{", depth);
                    let key = match Type::of(key) {
                        Type::Str => key.as_str().unwrap_or_default().to_owned(),
                        _ => self.plain(key).ok_or_else(|| {
                            let found = Type::of(key).name();
                            fail(format!("keys must be str, int, float, bool or None, not {found}"))
                        })?,
                    };
                    self.text(&key);
                    self.out += &self.key;
                    self.write(field, depth + 1)?;
                }
                self.end(fields.is_empty(), ["{}", "}"], depth);
            }
            kind => {
                let plain = self.plain(value);
                let plain =
                    plain.ok_or_else(|| fail(format!("Object of type {} is not JSON serializable", kind.name())))?;
                self.out += &plain;
            }
        }
        Ok(())
    }

    /// JSON of a value that is neither a text nor has parts.
    fn plain(&self, value: &Value) -> Option<String> {
        match Type::of(value) {
            Type::None => Some("null".into()),
            Type::Bool => Some(if value.is_true() { "true" } else { "false" }.into()),
            Type::Int => Some(value.to_string()),
            Type::Float => Some(match f64::try_from(value.clone()).ok()? {
                number if number.is_nan() => "NaN".into(),
                number if number.is_infinite() => if number < 0.0 { "-Infinity" } else { "Infinity" }.into(),
                number => number::float_text(number),
            }),
            _ => None,
        }
    }

    fn begin(&mut self, at: usize, open: &str, depth: usize) {
        self.out += if at == 0 { open } else { &self.item };
        self.line(depth + 1);
    }

    fn end(&mut self, is_empty: bool, [empty, close]: [&str; 2], depth: usize) {
        if is_empty {
            self.out += empty;
            return;
        }
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
