//! The form that a request asks texts to have: `response_format` of OpenAI's API, and vLLM's names.

use super::ApiError;
use super::fields::Fields;
use model_center_models::generate::Grammar;
use serde_json::{Map, Value};

/// Texts of a choice.
const MAX_CHOICES: usize = 1024;

/// Reads the form, if there is one.
pub(super) fn read(fields: &mut Fields) -> Result<Option<(&'static str, Grammar)>, ApiError> {
    let mut found = Vec::new();
    if let Some(format) = fields.take("response_format") {
        found.extend(response_format(format)?.map(|grammar| ("response_format", grammar)));
    }
    if let Some(outputs) = fields.take("structured_outputs") {
        found.push(("structured_outputs", structured_outputs(outputs)?));
    }
    for (name, kind) in [("guided_json", "json"), ("guided_regex", "regex"), ("guided_choice", "choice")] {
        if let Some(value) = fields.take(name) {
            found.push((name, of_kind(name, kind, value)?));
        }
    }
    match found.len() {
        0 | 1 => Ok(found.pop()),
        _ => {
            let [(first, _), (name, _), ..] = found.as_slice() else { return Ok(None) };
            Err(ApiError::field(name, format!("{name:?} and {first:?} both state the form of texts")))
        }
    }
}

fn response_format(format: Value) -> Result<Option<Grammar>, ApiError> {
    let name = "response_format";
    let wrong = |reason: &str| ApiError::field(name, format!("{name:?} {reason}"));
    let Value::Object(mut format) = format else { return Err(wrong("is not an object")) };
    let kind = format.remove("type");
    let schema = format.remove("json_schema");
    only(name, &format)?;
    match (kind.as_ref().and_then(Value::as_str), schema) {
        (Some("text"), None) => Ok(None),
        (Some("json_object"), None) => Ok(Some(Grammar::JsonObject)),
        (Some("json_schema"), Some(Value::Object(mut described))) => {
            let Some(schema) = described.remove("schema").filter(|schema| !schema.is_null()) else {
                return Err(wrong("has a \"json_schema\" without a \"schema\""));
            };
            // Every text is of the schema, strict or not.
            if described.remove("strict").is_some_and(|strict| !(strict.is_boolean() || strict.is_null())) {
                return Err(wrong("has a \"strict\" that is neither true nor false"));
            }
            ["name", "description"].iter().for_each(|name| drop(described.remove(*name)));
            only("response_format.json_schema", &described)?;
            Ok(Some(Grammar::JsonSchema(schema)))
        }
        (Some("json_schema"), _) => Err(wrong("has no object \"json_schema\"")),
        (Some("text" | "json_object"), Some(_)) => Err(wrong("has a schema, and is of another type")),
        (Some(other), _) => Err(wrong(&format!("has the unknown type {other:?}"))),
        (None, _) => Err(wrong("has no \"type\"")),
    }
}

/// Refuses fields that are left, by name.
fn only(name: &str, left: &Map<String, Value>) -> Result<(), ApiError> {
    match left.iter().find(|(_, value)| !value.is_null()) {
        Some((field, _)) => Err(ApiError::unsupported(&format!("{name}.{field}"))),
        None => Ok(()),
    }
}

fn structured_outputs(outputs: Value) -> Result<Grammar, ApiError> {
    let name = "structured_outputs";
    let wrong = |reason: &str| ApiError::field(name, format!("{name:?} {reason}"));
    let Value::Object(outputs) = outputs else { return Err(wrong("is not an object")) };
    let mut given = outputs.into_iter().filter(|(_, value)| !value.is_null());
    let (Some((kind, value)), None) = (given.next(), given.next()) else {
        return Err(wrong("has to state one form: json, regex, choice or json_object"));
    };
    of_kind(name, &kind, value)
}

fn of_kind(name: &str, kind: &str, value: Value) -> Result<Grammar, ApiError> {
    let wrong = |reason: &str| ApiError::field(name, format!("{name:?} {reason}"));
    match (kind, value) {
        ("json", schema @ (Value::Object(_) | Value::Bool(_))) => Ok(Grammar::JsonSchema(schema)),
        ("json", Value::String(text)) => match serde_json::from_str(&text) {
            Ok(schema) => Ok(Grammar::JsonSchema(schema)),
            Err(error) => Err(wrong(&format!("is not JSON: {error}"))),
        },
        ("json", _) => Err(wrong("is not a schema")),
        ("regex", Value::String(pattern)) => Ok(Grammar::Regex(pattern)),
        ("regex", _) => Err(wrong("is not a regular expression")),
        ("json_object", Value::Bool(true)) => Ok(Grammar::JsonObject),
        ("choice", Value::Array(texts)) if (1..=MAX_CHOICES).contains(&texts.len()) => {
            let text = |text: Value| match text {
                Value::String(text) if !text.is_empty() => Ok(Grammar::Text(text)),
                _ => Err(wrong("has a choice that is not a text, or empty")),
            };
            Ok(Grammar::Either(texts.into_iter().map(text).collect::<Result<_, _>>()?))
        }
        ("choice", _) => Err(wrong(&format!("is not a list of 1 to {MAX_CHOICES} texts"))),
        (kind, _) => Err(ApiError::unsupported(&format!("{name}.{kind}"))),
    }
}
