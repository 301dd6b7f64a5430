//! The JSON schema of recipes, by which editors complete and check keys, from the declarations of the keys.
//!
//! Defines `recipe_schema`, which the `finetune` program prints and `docs/recipe.schema.json` holds, and [`Shape`],
//! what a reader states of the values of a key.

use super::kinds::Range;
use super::reader::Declared;
use serde_json::{Map, Value, json};

/// The values that a key has, as far as a schema can state it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Shape {
    /// True or false.
    Flag,
    /// A whole number from one to another; none above what TOML has.
    Integer(u64, Option<u64>),
    /// A number.
    Number(Range),
    /// One of these texts.
    Choice(Vec<String>),
    /// A text.
    Text,
    /// A text of a form, as a regular expression.
    Pattern(String),
    /// A list of values.
    List(Box<Shape>),
    /// This number of values.
    Tuple(Box<Shape>, usize),
    /// A table with these keys; without any, of keys that have values of the shape in the second place.
    Table(&'static [&'static str], Option<Box<Shape>>),
    /// One of several shapes.
    Either(Vec<Shape>),
    /// Anything.
    Any,
}

impl Shape {
    fn schema(&self) -> Value {
        match self {
            Shape::Flag => json!({ "type": "boolean" }),
            Shape::Integer(least, most) => {
                let mut schema = json!({ "type": "integer", "minimum": least });
                if let Some(most) = most {
                    schema["maximum"] = json!(most);
                }
                schema
            }
            Shape::Number(range) => match range {
                Range::Above(low) => json!({ "type": "number", "exclusiveMinimum": low }),
                Range::AtLeast(low) => json!({ "type": "number", "minimum": low }),
                Range::Within(low, high) => json!({ "type": "number", "minimum": low, "maximum": high }),
                Range::Below(low, high) => json!({ "type": "number", "minimum": low, "exclusiveMaximum": high }),
            },
            Shape::Choice(names) => json!({ "type": "string", "enum": names }),
            Shape::Text => json!({ "type": "string" }),
            Shape::Pattern(pattern) => json!({ "type": "string", "pattern": pattern }),
            Shape::List(of) => json!({ "type": "array", "items": of.schema() }),
            Shape::Tuple(of, count) => {
                json!({ "type": "array", "items": of.schema(), "minItems": count, "maxItems": count })
            }
            Shape::Table(names, None) => {
                let properties: Map<String, Value> = names.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
                json!({ "type": "object", "properties": properties, "additionalProperties": false })
            }
            Shape::Table(_, Some(of)) => json!({ "type": "object", "additionalProperties": of.schema() }),
            Shape::Either(shapes) => json!({ "anyOf": shapes.iter().map(Shape::schema).collect::<Vec<Value>>() }),
            Shape::Any => json!({}),
        }
    }
}

/// The schema of recipes, JSON Schema of draft 2020-12. No key is required: the command line may set it.
pub(crate) fn recipe_schema(all: &[Declared]) -> Value {
    let mut schema = table("A recipe of finetune and pretrain: docs/settings.md.");
    for declared in all {
        let mut path = declared.row.key.split('.').collect::<Vec<_>>();
        let Some(name) = path.pop() else { continue };
        let mut at = &mut schema;
        for part in path {
            let tables = &mut at["properties"];
            if tables.get(part).is_none() {
                tables[part] = table("");
            }
            at = &mut tables[part];
        }
        at["properties"][name] = property(declared);
    }
    let head = json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Recipe" });
    let (Value::Object(mut all), Value::Object(rest)) = (head, schema) else { return Value::Null };
    all.extend(rest);
    Value::Object(all)
}

fn table(description: &str) -> Value {
    let mut table = json!({ "type": "object", "additionalProperties": false, "properties": {} });
    if !description.is_empty() {
        table["description"] = json!(description);
    }
    table
}

fn property(declared: &Declared) -> Value {
    let mut property = declared.shape.schema();
    // What a schema cannot state is in words; a default that depends on other keys is in no other form.
    let Declared { row, wanted, default, .. } = declared;
    property["description"] = json!(format!("{} Value: {wanted}. Default: {default}.", row.text()));
    if let Some(default) = default.strip_prefix('`').and_then(|rest| rest.strip_suffix('`'))
        && let Ok(table) = toml::from_str::<toml::Table>(&format!("value = {default}"))
        && let Some(value) = table.get("value")
        && let Ok(value) = serde_json::to_value(value)
    {
        property["default"] = value;
    }
    property
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{keys, recipe_schema};
    use model_center_data::OwnData;

    fn property(path: &str) -> Value {
        let schema = recipe_schema(OwnData::default());
        let pointer: String = path.split('.').map(|part| format!("/properties/{part}")).collect();
        schema.pointer(&pointer).unwrap_or_else(|| panic!("{path} is not in the schema")).clone()
    }

    #[test]
    fn kinds_ranges_and_defaults_are_those_of_the_declarations() {
        let batch = property("train.batch_size");
        assert_eq!((&batch["type"], &batch["minimum"], &batch["default"]), (&json!("integer"), &json!(1), &json!(32)));
        assert_eq!(property("train.lr")["exclusiveMinimum"], json!(0.0));
        assert_eq!(property("parallel.zero")["maximum"], json!(3));
        assert!(property("train.schedule")["enum"].as_array().unwrap().contains(&json!("cosine")));
        assert_eq!(property("train.betas")["minItems"], json!(2));
        assert_eq!(property("train.early_stop.patience")["type"], json!("integer"));
        assert_eq!(property("data.labels")["items"]["type"], json!("string"));
        assert!(property("train.warmup")["anyOf"].is_array());
        assert!(property("train.lr")["description"].as_str().unwrap().starts_with("Peak learning rate"));
    }

    #[test]
    fn defaults_that_depend_on_other_keys_are_in_words_alone() {
        for (key, words) in [
            ("train.betas", "of `lion` `[0.9, 0.99]`"),
            ("train.micro_batch_size", "`train.batch_size` / data ranks"),
            ("eval.every", "for `pretrain` `\"1000 steps\"`"),
            ("eval.metric", "follows `data.task`"),
            ("save.which", "with `data.eval`"),
        ] {
            let property = property(key);
            let text = property["description"].as_str().unwrap();
            assert!(text.contains(words) && property.get("default").is_none(), "{key}: {property}");
        }
        assert_eq!(property("train.betas")["minItems"], json!(2));
    }

    #[test]
    fn every_key_is_in_the_schema_and_nearly_every_one_has_a_type() {
        let all = keys::declared(OwnData::default());
        let untyped: Vec<&str> = all.iter().filter(|one| one.shape == Shape::Any).map(|one| one.row.key).collect();
        assert!(20 * untyped.len() < all.len(), "state their shape with Reader::shape: {untyped:?}");
        for one in &all {
            assert!(property(one.row.key)["description"].is_string(), "{}", one.row.key);
        }
        assert_eq!(recipe_schema(OwnData::default())["additionalProperties"], json!(false));
    }
}
