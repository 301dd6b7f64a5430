//! The column of a value in a line of JSON, for errors that point at it.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// The column (characters from 1) of the value at a dotted path in a line of valid JSON; 1 if there is none.
pub(super) fn value_column(text: &str, path: &str) -> usize {
    let byte = value_byte(text, 0, path).unwrap_or(0);
    text.get(..byte).map_or(1, |before| before.chars().count() + 1)
}

fn value_byte(text: &str, object: usize, path: &str) -> Option<usize> {
    let skip = |at: usize, set: &[u8]| at + text[at..].bytes().take_while(|byte| set.contains(byte)).count();
    let after = |at: usize| {
        let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<IgnoredAny>();
        values.next()?.ok()?;
        Some(at + values.byte_offset())
    };
    let (head, rest) = path.split_once('.').unwrap_or((path, ""));
    let mut found = None;
    let mut at = skip(object, b"{ \t\r\n");
    while text[at..].starts_with('"') {
        let end = after(at)?;
        let key = String::deserialize(&mut serde_json::Deserializer::from_str(&text[at..end])).ok()?;
        let value = skip(end, b": \t\r\n");
        // A repeated key counts with its last value, so the search goes on.
        if key == path {
            found = Some(value);
        } else if key == head && text[value..].starts_with('{') {
            found = value_byte(text, value, rest).or(Some(value));
        }
        at = skip(after(value)?, b", \t\r\n");
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_value_is_found_at_its_column() {
        let text = r#"{"é": "x,{}\\" , "b":[1,{"c":2}], "t": {"b":1, "s" : {"u": 7}}, "b": 3.5}"#;
        let at = |path| text.chars().skip(value_column(text, path) - 1).collect::<String>();
        assert!(at("é").starts_with("\"x,{}"));
        assert!(at("b").starts_with("3.5"), "the last of a repeated key");
        assert!(at("t").starts_with("{\"b\":1"));
        assert!(at("t.s").starts_with("{\"u\""));
        assert!(at("t.s.u").starts_with("7"));
        assert_eq!(value_column(text, "nothing"), 1);
        assert_eq!(value_column("{}", "a"), 1);
        assert_eq!(value_column("", "a"), 1);
    }
}
