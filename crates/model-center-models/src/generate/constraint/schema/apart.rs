//! Whether two schemas have no value in common, as far as it is seen without comparing their texts: by type, by listed
//! values, or by a required property that has other values in each.

use super::values::is_of;
use super::{Compiler, TYPES, types};
use serde_json::{Map, Value};

/// References that are followed.
const MAX_REFERENCES: usize = 8;
/// Comparisons of all schemas together.
pub(super) const MAX_COMPARISONS: usize = 4_000_000;

impl Compiler<'_> {
    pub(super) fn are_apart(&self, one: &Value, other: &Value, depth: usize) -> bool {
        if depth > MAX_REFERENCES || !self.may_compare(1) {
            return false;
        }
        let (Some(one), Some(other)) = (self.followed(one), self.followed(other)) else { return false };
        match (listed(one), listed(other)) {
            (Some(values), Some(others)) => {
                if !self.may_compare(values.len().saturating_mul(others.len())) {
                    return false;
                }
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

    /// Whether further comparisons are within the limit.
    fn may_compare(&self, count: usize) -> bool {
        let left = self.comparisons.get().checked_sub(count);
        self.comparisons.set(left.unwrap_or(0));
        left.is_some()
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
        let properties = |fields| Map::get(fields, "properties").and_then(Value::as_object);
        let required = |fields| Map::get(fields, "required").and_then(Value::as_array);
        let (Some(values), Some(others)) = (properties(one), properties(other)) else { return false };
        let (Some(names), Some(other_names)) = (required(one), required(other)) else { return false };
        if !self.may_compare(names.len().saturating_mul(other_names.len())) {
            return false;
        }
        let shared = names.iter().filter(|name| other_names.contains(name)).filter_map(Value::as_str);
        let mut pairs = shared.filter_map(|name| Some((values.get(name)?, others.get(name)?)));
        pairs.any(|(value, other)| self.are_apart(value, other, depth + 1))
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

/// The types of a schema, an integer being a number. All where it is not seen: keywords of a type allow every value of
/// the others.
fn with_integers(fields: &Map<String, Value>) -> Vec<&str> {
    const ALTERNATIVES: [&str; 3] = ["anyOf", "oneOf", "allOf"];
    if !fields.contains_key("type") || ALTERNATIVES.iter().any(|name| fields.contains_key(*name)) {
        return TYPES.to_vec();
    }
    let mut kinds = types(fields, "#").unwrap_or_else(|_| TYPES.to_vec());
    if kinds.contains(&"number") && !kinds.contains(&"integer") {
        kinds.push("integer");
    }
    kinds
}
