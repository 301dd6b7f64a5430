//! YAML as a tree of JSON values with the lines of its keys.
//!
//! Defines [`parse`]. A parser gives events, and the tree is built here without recursion, so that depth and size have
//! bounds. Anchors, aliases and tags are refused: no trainer's documentation has them, and aliases can make a small
//! file a large tree.

use crate::{Error, Result};
use model_center_base::file::printable;
use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::{Map, Number, Value};
use std::collections::BTreeMap;

/// The deepest nesting.
const MAX_DEPTH: usize = 32;
/// The most values.
const MAX_VALUES: usize = 100_000;

/// A mapping of YAML.
#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    pub(super) map: Map<String, Value>,
    /// Lines of the keys of `map`.
    pub(super) lines: BTreeMap<String, usize>,
}

/// A collection that is open.
enum Open {
    List(Vec<Value>),
    /// With the key whose value is next.
    Table(Map<String, Value>, Option<String>),
}

/// Reads a text; `place` names it in errors.
///
/// # Errors
/// [`Error::Model`] with line and column: malformed YAML, several documents, aliases, tags, a key twice, a document
/// that is not a mapping.
pub(super) fn parse(text: &str, place: &str) -> Result<Tree> {
    let at = |line: usize, column: usize| format!("{place}:{line}:{column}");
    let wrong =
        |span: &Span, reason: &str, fix: &str| Error::model(at(span.start.line(), span.start.col() + 1), reason, fix);
    let mut tree = Tree::default();
    let (mut open, mut done, mut values): (Vec<Open>, Option<Value>, usize) = (Vec::new(), None, 0);
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| {
            let place = at(error.marker().line(), error.marker().col() + 1);
            Error::model(place, format!("not valid YAML: {}", printable(error.info(), 200)), "correct the line")
        })?;
        values += 1;
        if values > MAX_VALUES || open.len() > MAX_DEPTH {
            return Err(wrong(&span, "more values or deeper nesting than any configuration", "is this the file?"));
        }
        let is_refused = match &event {
            Event::Scalar(_, _, anchor, tag) => *anchor > 0 || tag.is_some(),
            Event::SequenceStart(anchor, tag) | Event::MappingStart(anchor, tag) => *anchor > 0 || tag.is_some(),
            Event::Alias(_) => true,
            _ => false,
        };
        if is_refused {
            return Err(wrong(&span, "anchors, aliases and tags are not read", "write the value in full"));
        }
        let value = match event {
            Event::SequenceStart(..) => {
                open.push(Open::List(Vec::new()));
                continue;
            }
            Event::MappingStart(..) => {
                open.push(Open::Table(Map::new(), None));
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::List(items)) => Value::Array(items),
                Some(Open::Table(map, _)) => Value::Object(map),
                None => continue,
            },
            Event::Scalar(text, style, ..) => scalar(&text, style),
            Event::DocumentStart(_) if done.is_some() => {
                return Err(wrong(&span, "the file has several documents", "keep one, without ---"));
            }
            _ => continue,
        };
        match open.last_mut() {
            None => done = Some(value),
            Some(Open::List(items)) => items.push(value),
            Some(Open::Table(map, key)) => match key.take() {
                Some(key) => {
                    map.insert(key, value);
                }
                None => {
                    let name = match &value {
                        Value::String(text) => text.clone(),
                        Value::Number(_) | Value::Bool(_) => value.to_string(),
                        _ => return Err(wrong(&span, "a key is a text", "write NAME: VALUE")),
                    };
                    if map.contains_key(&name) {
                        let reason = format!("{} is set twice", printable(&name, 60));
                        return Err(wrong(&span, &reason, "keep one of the two"));
                    }
                    *key = Some(name.clone());
                    if open.len() == 1 {
                        tree.lines.insert(name, span.start.line());
                    }
                }
            },
        }
    }
    match done {
        Some(Value::Object(map)) => Ok(Tree { map, ..tree }),
        _ => {
            Err(Error::model(place, "the file is not a mapping of keys to values", "give the trainer's configuration"))
        }
    }
}

/// A scalar as YAML 1.2 reads it, and the further truth values of YAML 1.1, which such files have.
fn scalar(text: &str, style: ScalarStyle) -> Value {
    if style != ScalarStyle::Plain {
        return Value::String(text.to_owned());
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "on" | "On" => return Value::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "off" | "Off" => return Value::Bool(false),
        _ => {}
    }
    let plain = text.replace('_', "");
    let is_number = plain.trim_start_matches(['-', '+']).starts_with(|c: char| c.is_ascii_digit() || c == '.');
    if !is_number || text.starts_with('_') {
        return Value::String(text.to_owned());
    }
    if let Ok(whole) = plain.trim_start_matches('+').parse::<i64>() {
        return Value::from(whole);
    }
    let number = plain.parse::<f64>().ok().filter(|number| number.is_finite());
    number.and_then(Number::from_f64).map_or_else(|| Value::String(text.to_owned()), Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn mappings_lists_and_scalars_are_read_as_trainers_mean_them() {
        let text = "# a comment\nbase: models/x  # why\nlr: 2e-4\nsteps: 1_000\nflag: yes\nnone:\nquoted: \"1e-3\"\n\
            list: [a, 1, 0.5]\nsets:\n  - path: a.jsonl\n    type: alpaca\n  - path: b\n    type:\n      field: q\n\
            text: |\n  one\n  two\n";
        let tree = parse(text, "c.yml").unwrap();
        let expected = json!({
            "base": "models/x", "lr": 2e-4, "steps": 1000, "flag": true, "none": null, "quoted": "1e-3",
            "list": ["a", 1, 0.5],
            "sets": [{ "path": "a.jsonl", "type": "alpaca" }, { "path": "b", "type": { "field": "q" } }],
            "text": "one\ntwo\n",
        });
        assert_eq!(Value::Object(tree.map), expected);
        assert_eq!((tree.lines["lr"], tree.lines["sets"]), (3, 9));
    }

    #[test]
    fn what_is_malformed_or_made_to_harm_is_refused_with_its_place() {
        for (text, place, reason) in [
            ("a: 1\na: 2\n", "c.yml:2:1", "a is set twice"),
            ("a: &x 1\nb: *x\n", "c.yml:1:", "anchors, aliases"),
            ("a: !!python/object:os.system x\n", "c.yml:1:", "tags"),
            ("a: [1, 2\n", "c.yml:", "not valid YAML"),
            ("a: 1\n---\nb: 2\n", "c.yml:2:", "several documents"),
            ("- a\n- b\n", "c.yml", "not a mapping"),
            ("", "c.yml", "not a mapping"),
        ] {
            let error = parse(text, "c.yml").unwrap_err().to_string();
            assert!(error.starts_with(place) && error.contains(reason), "{text:?}: {error}");
        }
        let deep = |levels: usize| format!("a: {}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse(&deep(40), "c.yml").unwrap_err().to_string().contains("nesting"));
        // The parser has a limit of its own.
        assert!(parse(&deep(50_000), "c.yml").is_err());
    }
}
