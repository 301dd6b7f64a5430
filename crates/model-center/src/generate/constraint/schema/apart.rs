//! Whether two schemas have no value in common, as far as it is seen without comparing their texts: by type, by listed
//! values, or by a required property that has other values in each.

use super::values::is_of;
use super::{Compiler, TYPES, types};
use serde_json::{Map, Value};

/// References that are followed.
const MAX_REFERENCES: usize = 8;

impl Compiler<'_> {
    pub(super) fn are_apart(&self, one: &Value, other: &Value, depth: usize) -> bool {
        if depth > MAX_REFERENCES {
            return false;
        }
        let (Some(one), Some(other)) = (self.followed(one), self.followed(other)) else { return false };
        match (listed(one), listed(other)) {
            (Some(values), Some(others)) => {
                !values.iter().any(|value| others.iter().any(|other| is_same(value, other)))
            }
            (Some(values), None) => !values.iter().any(|value| is_of(value, &with_integers(other))),
            (None, Some(others)) => !others.iter().any(|other| is_of(other, &with_integers(one))),
            (None, None) => {
                let (kinds, others) = (with_integers(one), with_integers(other));
                let common: Vec<&&str> = kinds.iter().filter(|kind| others.contains(*kind)).collect();
                common.is_empty() || (common == [&"object"] && self.have_apart_property(one, other, depth))
            }
        }
    }

    /// The schema that references lead to.
    fn followed<'v>(&'v self, mut schema: &'v Value) -> Option<&'v Map<String, Value>> {
        for _ in 0..MAX_REFERENCES {
            let fields = schema.as_object()?;
            let Some(reference) = fields.get("$ref") else { return Some(fields) };
            schema = self.target(reference.as_str()?).ok()?;
        }
        None
    }

    fn have_apart_property(&self, one: &Map<String, Value>, other: &Map<String, Value>, depth: usize) -> bool {
        let property = |fields: &Map<String, Value>, name: &str| fields.get("properties")?.get(name).cloned();
        let required = |fields: &Map<String, Value>, name: &str| {
            let names = fields.get("required").and_then(Value::as_array);
            names.is_some_and(|names| names.iter().any(|own| own == name))
        };
        let names = one.get("properties").and_then(Value::as_object).into_iter().flatten().map(|(name, _)| name);
        let mut shared = names.filter(|name| required(one, name) && required(other, name));
        shared.any(|name| match (property(one, name), property(other, name)) {
            (Some(value), Some(other)) => self.are_apart(&value, &other, depth + 1),
            _ => false,
        })
    }
}

fn listed(fields: &Map<String, Value>) -> Option<&[Value]> {
    match (fields.get("const"), fields.get("enum")) {
        (Some(value), _) => Some(std::slice::from_ref(value)),
        (None, Some(values)) => values.as_array().map(Vec::as_slice),
        (None, None) => None,
    }
}

/// Whether two values are the same in JSON Schema, where 1 and 1.0 are.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(_) | Value::Object(_), Value::Array(_) | Value::Object(_)) => true,
        _ => one == other,
    }
}

/// The types of a schema, an integer being a number. All where it is not seen.
fn with_integers(fields: &Map<String, Value>) -> Vec<&str> {
    const ALTERNATIVES: [&str; 3] = ["anyOf", "oneOf", "allOf"];
    if ALTERNATIVES.iter().any(|name| fields.contains_key(*name)) {
        return TYPES.to_vec();
    }
    let mut kinds = types(fields, "#").unwrap_or_else(|_| TYPES.to_vec());
    if kinds.contains(&"number") && !kinds.contains(&"integer") {
        kinds.push("integer");
    }
    kinds
}
