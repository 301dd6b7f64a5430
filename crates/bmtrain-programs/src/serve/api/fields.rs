//! The fields of a request's object: each is read by name, and unknown ones are refused.

use super::ApiError;
use serde_json::{Map, Value};

/// Fields without an effect on results.
const HARMLESS: [&str; 7] =
    ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"];

/// The fields that are left; null is as good as absent.
#[derive(Debug)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    /// Reads an object.
    pub(super) fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let value = serde_json::from_slice(body);
        match value.map_err(|error| ApiError::invalid(format!("the body is not JSON: {error}")))? {
            Value::Object(fields) => Ok(Fields(fields.into_iter().filter(|(_, value)| !value.is_null()).collect())),
            _ => Err(ApiError::invalid("the body is not a JSON object")),
        }
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name)
    }

    /// A field that has to be there.
    pub(super) fn required(&mut self, name: &str) -> Result<Value, ApiError> {
        self.take(name).ok_or_else(|| ApiError::field(name, format!("the field {name:?} is missing")))
    }

    pub(super) fn text(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiError::field(name, format!("{name:?} is not a text"))),
        }
    }

    pub(super) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        self.flag_or(name, false)
    }

    pub(super) fn flag_or(&mut self, name: &str, default: bool) -> Result<bool, ApiError> {
        match self.take(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(ApiError::field(name, format!("{name:?} is not true or false"))),
        }
    }

    /// An integer up to `most`.
    pub(super) fn count(&mut self, name: &str, most: usize) -> Result<Option<usize>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let count = value.as_u64().and_then(|count| usize::try_from(count).ok()).filter(|count| *count <= most);
        match count {
            Some(count) => Ok(Some(count)),
            None => Err(ApiError::field(name, format!("{name:?} is not an integer from 0 to {most}"))),
        }
    }

    pub(super) fn number(&mut self, name: &str) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_f64().map(|number| number as f32).filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| ApiError::field(name, format!("{name:?} is not a number")))
    }

    /// A number from `least` to `most`.
    pub(super) fn number_within(&mut self, name: &str, (least, most): (f32, f32)) -> Result<Option<f32>, ApiError> {
        match self.number(name)? {
            Some(number) if !(least..=most).contains(&number) => {
                Err(ApiError::field(name, format!("{name:?} is not a number from {least} to {most}")))
            }
            number => Ok(number),
        }
    }

    /// A field that is not supported, except for values without an effect.
    pub(super) fn neutral(&mut self, name: &str, is_neutral: impl Fn(&Value) -> bool) -> Result<(), ApiError> {
        match self.take(name) {
            Some(value) if !is_neutral(&value) => Err(ApiError::unsupported(name)),
            _ => Ok(()),
        }
    }

    /// Refuses fields that are left and have an effect.
    pub(super) fn finish(self) -> Result<(), ApiError> {
        let unknown = self.0.keys().find(|name| !HARMLESS.contains(&name.as_str()));
        unknown.map_or(Ok(()), |name| Err(ApiError::unsupported(name)))
    }
}

/// Whether a value has nothing in it.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(flag) => !flag,
        _ => false,
    }
}

/// A text or a list of texts.
pub(super) fn texts(name: &str, value: Value, most: usize) -> Result<Vec<String>, ApiError> {
    let wrong = || ApiError::field(name, format!("{name:?} is not a text or a list of 1 to {most} texts"));
    match value {
        Value::String(text) => Ok(vec![text]),
        Value::Array(items) if (1..=most).contains(&items.len()) => {
            let text = |item: Value| item.as_str().map(str::to_owned).ok_or_else(wrong);
            items.into_iter().map(text).collect()
        }
        _ => Err(wrong()),
    }
}

/// Prompts or inputs.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Inputs {
    Texts(Vec<String>),
    Tokens(Vec<Vec<u32>>),
}

impl Inputs {
    /// A text, a list of texts, token ids, or a list of lists of token ids.
    pub(super) fn of(name: &str, value: Value, most: usize) -> Result<Self, ApiError> {
        let wrong = || {
            let forms = "a text, a list of texts, a list of token ids, or a list of such lists";
            ApiError::field(name, format!("{name:?} is not {forms}, with 1 to {most} of them"))
        };
        let items = match value {
            Value::String(text) => return Ok(Inputs::Texts(vec![text])),
            Value::Array(items) if !items.is_empty() => items,
            _ => return Err(wrong()),
        };
        if items.iter().all(Value::is_u64) {
            return Ok(Inputs::Tokens(vec![ids(&items).ok_or_else(wrong)?]));
        }
        if items.len() > most {
            return Err(wrong());
        }
        if items.iter().all(Value::is_string) {
            return texts(name, Value::Array(items), most).map(Inputs::Texts);
        }
        let rows = items.iter().map(|item| item.as_array().and_then(|item| ids(item)).ok_or_else(wrong));
        rows.collect::<Result<_, _>>().map(Inputs::Tokens)
    }
}

fn ids(items: &[Value]) -> Option<Vec<u32>> {
    items.iter().map(|item| item.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
}

#[cfg(test)]
mod tests {
    use super::{Fields, Inputs, is_empty};
    use serde_json::json;

    #[test]
    fn fields_are_read_by_name_and_unknown_ones_refused() {
        let body = json!({"a": 3, "b": null, "user": "me", "c": "x", "penalty": 0.0, "tools": [], "t": 0.5});
        let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        assert_eq!(
            (fields.count("a", 3), fields.count("b", 3), fields.number("t")),
            (Ok(Some(3)), Ok(None), Ok(Some(0.5)))
        );
        assert!(fields.neutral("penalty", |value| *value == 0.0).is_ok() && fields.neutral("tools", is_empty).is_ok());
        let error = fields.finish().unwrap_err();
        assert!(error.status == 400 && error.json().contains(r#""param":"c""#), "{error:?}");
        let parse = |text: &str| Fields::parse(text.as_bytes());
        for wrong in ["", "[1]", "3", "{\"a\": 1", "{\"a\": 1} x"] {
            assert_eq!(parse(wrong).unwrap_err().status, 400, "{wrong}");
        }
        // Deep nesting is an error, not an end of the thread's stack.
        assert!(parse(&"[".repeat(100_000)).is_err());
        let read = |text: &str| parse(text).unwrap();
        assert!(read(r#"{"a": 4}"#).count("a", 3).is_err() && read(r#"{"a": -1}"#).count("a", 3).is_err());
        assert!(read(r#"{"a": 1.5}"#).count("a", 3).is_err() && read(r#"{"a": "1"}"#).number("a").is_err());
        assert!(read(r#"{"a": 1e300}"#).number("a").is_err() && read(r#"{"a": 1}"#).text("a").is_err());
        assert_eq!(read(r#"{"a": 2.0}"#).number_within("a", (-2.0, 2.0)), Ok(Some(2.0)));
        assert!(read(r#"{"a": 2.1}"#).number_within("a", (-2.0, 2.0)).is_err());
        assert_eq!((read("{}").flag_or("a", true), read(r#"{"a": false}"#).flag_or("a", true)), (Ok(true), Ok(false)));
        assert!(read(r#"{"a": 1}"#).flag("a").is_err() && read("{}").required("a").is_err());
        assert!(read(r#"{"a": 0.1}"#).neutral("a", is_empty).is_err());
    }

    #[test]
    fn prompts_have_four_forms() {
        let of = |value| Inputs::of("prompt", value, 2);
        assert_eq!(of(json!("a")), Ok(Inputs::Texts(vec!["a".into()])));
        assert_eq!(of(json!(["a", "b"])), Ok(Inputs::Texts(vec!["a".into(), "b".into()])));
        assert_eq!(of(json!([1, 2, 3])), Ok(Inputs::Tokens(vec![vec![1, 2, 3]])));
        assert_eq!(of(json!([[1], [2, 3]])), Ok(Inputs::Tokens(vec![vec![1], vec![2, 3]])));
        for wrong in [json!([]), json!(3), json!(["a", 1]), json!([1, -1]), json!([[1], [2], [3]]), json!([1.5])] {
            assert_eq!(of(wrong.clone()).unwrap_err().status, 400, "{wrong}");
        }
    }
}
