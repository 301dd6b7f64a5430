//! Schemas of JSON, and whether a value is valid under one.

use serde_json::{Value, json};

/// Whether a value is of a schema, for the keywords that these tests have.
pub fn is_valid(value: &Value, schema: &Value, root: &Value) -> bool {
    let of = |value: &Value, schema: &Value| is_valid(value, schema, root);
    let Some(fields) = schema.as_object() else { return *schema == true };
    let number = value.as_f64();
    let length = value.as_str().map(|text| text.chars().count());
    let items = value.as_array();
    let object = value.as_object();
    let properties = fields.get("properties").and_then(Value::as_object);
    fields.iter().all(|(name, own)| match name.as_str() {
        "$ref" => of(value, root.pointer(own.as_str().unwrap().trim_start_matches('#')).unwrap()),
        "anyOf" => own.as_array().unwrap().iter().any(|schema| of(value, schema)),
        "enum" => own.as_array().unwrap().contains(value),
        "const" => own == value,
        "type" => match own.as_str().unwrap() {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("{other}"),
        },
        "minimum" => number.is_none_or(|number| number >= own.as_f64().unwrap()),
        "maximum" => number.is_none_or(|number| number <= own.as_f64().unwrap()),
        "exclusiveMaximum" => number.is_none_or(|number| number < own.as_f64().unwrap()),
        "multipleOf" => number.is_none_or(|number| number % own.as_f64().unwrap() == 0.0),
        "minLength" => length.is_none_or(|length| length as u64 >= own.as_u64().unwrap()),
        "maxLength" => length.is_none_or(|length| length as u64 <= own.as_u64().unwrap()),
        "pattern" => {
            own == "^[a-c]+$"
                && value.as_str().is_none_or(|text| !text.is_empty() && text.bytes().all(|b| b"abc".contains(&b)))
        }
        "minItems" => items.is_none_or(|items| items.len() as u64 >= own.as_u64().unwrap()),
        "maxItems" => items.is_none_or(|items| items.len() as u64 <= own.as_u64().unwrap()),
        "items" => items.is_none_or(|items| {
            let first = fields.get("prefixItems").map_or(0, |first| first.as_array().unwrap().len());
            items.iter().skip(first).all(|item| of(item, own))
        }),
        "prefixItems" => {
            items.is_none_or(|items| items.iter().zip(own.as_array().unwrap()).all(|(item, own)| of(item, own)))
        }
        "properties" => object.is_none_or(|object| {
            own.as_object().unwrap().iter().all(|(name, own)| object.get(name).is_none_or(|value| of(value, own)))
        }),
        "required" => object.is_none_or(|object| {
            own.as_array().unwrap().iter().all(|name| object.contains_key(name.as_str().unwrap()))
        }),
        "additionalProperties" => object.is_none_or(|object| {
            let others = object.iter().filter(|(name, _)| !properties.is_some_and(|own| own.contains_key(*name)));
            others.into_iter().all(|(_, value)| of(value, own))
        }),
        "$defs" => true,
        other => panic!("{other}"),
    })
}

pub fn schemas() -> [Value; 4] {
    [
        json!({
            "type": "object", "required": ["name", "tags"], "additionalProperties": false,
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 6},
                "age": {"type": "integer", "minimum": 0, "maximum": 120},
                "tags": {"type": "array", "items": {"enum": ["a", "bc", 7]}, "minItems": 1, "maxItems": 3},
            },
        }),
        json!({
            "$ref": "#/$defs/list",
            "$defs": {"list": {
                "type": "object", "required": ["value", "next"], "additionalProperties": false,
                "properties": {
                    "value": {"type": "integer", "minimum": -9, "maximum": 9, "multipleOf": 3},
                    "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]},
                },
            }},
        }),
        json!({
            "type": "array", "minItems": 2, "maxItems": 4,
            "prefixItems": [{"const": {"k": [1, null]}}, {"type": "boolean"}],
            "items": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 2},
        }),
        json!({
            "type": "object", "required": ["id"], "additionalProperties": {"type": "null"},
            "properties": {"id": {"type": "string", "pattern": "^[a-c]+$", "minLength": 2, "maxLength": 5}},
        }),
    ]
}
