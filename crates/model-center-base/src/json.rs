//! JSON objects out of foreign files: no name twice, bounded size, errors with line and column; and their text form.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::file::printable;
use crate::{Error, Result};

/// Values in one file. A value needs up to about 100 bytes of memory but may be 2 bytes of text.
const MAX_VALUES: usize = 500_000;

/// Parse a JSON object.
///
/// # Errors
/// [`Error::Model`] with line and column for anything that is not one object of at most [`MAX_VALUES`] values with
/// distinct names, nested at most 128 deep.
pub fn parse_object(text: &str, place: &str) -> Result<Map<String, Value>> {
    let budget = Cell::new(MAX_VALUES);
    let mut json = serde_json::Deserializer::from_str(text);
    let value = Strict { budget: &budget }.deserialize(&mut json).and_then(|value| json.end().map(|()| value));
    match value {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Error::model(place, "this is not a JSON object", "the file starts with { and ends with }")),
        Err(e) => Err(Error::model(
            format!("{place}:{}:{}", e.line(), e.column()),
            format!("invalid JSON: {}", printable(&e.to_string(), 300)),
            "correct the file, or download it again",
        )),
    }
}

/// Indented text with sorted keys and a final newline, as `transformers` writes it.
pub fn to_text(map: &Map<String, Value>) -> String {
    let mut sorted = map.clone();
    sorted.sort_keys();
    let mut text = serde_json::to_string_pretty(&sorted).unwrap_or_default();
    text.push('\n');
    text
}

/// The JSON number of a single-precision value: the shortest decimal that reads back as it, not its long double form.
pub fn number(value: f32) -> Value {
    let shortest: f64 = value.to_string().parse().unwrap_or(f64::from(value));
    Number::from_f64(shortest).map_or(Value::Null, Value::Number)
}

/// Like [`Value`]'s own reader, but a name that appears twice is an error and memory is bounded.
#[derive(Clone, Copy)]
struct Strict<'a> {
    budget: &'a Cell<usize>,
}

impl Strict<'_> {
    fn spend<E: serde::de::Error>(self) -> Result<(), E> {
        match self.budget.get().checked_sub(1) {
            Some(rest) => self.budget.set(rest),
            None => return Err(E::custom(format_args!("more than {MAX_VALUES} values"))),
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.spend()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the name \"{}\" appears twice", printable(&key, 80))));
            }
            let value = access.next_value_seed(self)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_found_with_line_and_column() {
        let twice = parse_object("{\n \"a\": 1,\n \"a\": 2}", "x.json").unwrap_err().to_string();
        assert!(twice.contains("appears twice") && twice.contains("x.json:3:"), "{twice}");
        assert!(parse_object("[]", "x").unwrap_err().to_string().contains("not a JSON object"));
        assert!(parse_object("{} x", "x").is_err());
        assert!(parse_object(&format!("{{\"a\":{}", "[".repeat(100_000)), "x").is_err());
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(MAX_VALUES));
        assert!(parse_object(&many, "x").unwrap_err().to_string().contains("more than"));
    }

    #[test]
    fn single_precision_values_are_written_short_and_read_back_equal() {
        for value in [1e-12f32, 0.1, 0.02, 1.0, -1e4, f32::MIN_POSITIVE, 16777217.0] {
            let written = number(value);
            assert_eq!(written.as_f64().unwrap() as f32, value);
        }
        assert_eq!(number(0.1).to_string(), "0.1");
        assert_eq!(number(1e-12).to_string(), "1e-12");
    }
}
