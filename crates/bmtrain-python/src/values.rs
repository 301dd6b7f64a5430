//! Python values as JSON's and TOML's, and back: settings, lines of metrics, columns of records.

use crate::error::{argument, type_name};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};
use serde_json::{Number, Value};

/// How deep lists and dictionaries may be nested.
const MAX_DEPTH: usize = 64;

/// Why a Python value is none of JSON.
enum Unfit {
    Refused {
        reason: String,
        fix: &'static str,
    },
    /// Exception of its own code.
    Raised(PyErr),
}

impl From<PyErr> for Unfit {
    fn from(raised: PyErr) -> Self {
        Unfit::Raised(raised)
    }
}

impl Unfit {
    fn new(reason: impl Into<String>, fix: &'static str) -> Self {
        Unfit::Refused { reason: reason.into(), fix }
    }

    /// The exception; `error` makes one of reason and fix.
    fn into_exception(self, error: impl FnOnce(String, &str) -> PyErr) -> PyErr {
        match self {
            Unfit::Refused { reason, fix } => error(reason, fix),
            Unfit::Raised(raised) => raised,
        }
    }
}

/// A Python value as JSON has it; `place` is for messages.
pub(crate) fn to_json(place: &str, object: &Bound<'_, PyAny>) -> PyResult<Value> {
    to_json_or(object, |reason, fix| argument(place, reason, fix))
}

/// The same; `error` makes the exception of a value that JSON does not have, of reason and fix.
pub(crate) fn to_json_or(object: &Bound<'_, PyAny>, error: impl FnOnce(String, &str) -> PyErr) -> PyResult<Value> {
    nested(object, 0).map_err(|unfit| unfit.into_exception(error))
}

fn nested(object: &Bound<'_, PyAny>, depth: usize) -> Result<Value, Unfit> {
    if depth > MAX_DEPTH {
        return Err(Unfit::new(format!("it is nested more than {MAX_DEPTH} deep"), "give a flatter value"));
    }
    if object.is_none() {
        return Ok(Value::Null);
    }
    // Truth values are integers to Python.
    if let Ok(flag) = object.cast::<PyBool>() {
        return Ok(Value::Bool(flag.is_true()));
    }
    if let Ok(text) = object.cast::<PyString>() {
        return Ok(Value::String(text.to_cow()?.into_owned()));
    }
    if object.cast::<PyInt>().is_ok() {
        let wide = |_| Unfit::new("it has an integer of more than 64 bits", "give a smaller one, or a text");
        return object.extract::<i64>().map(Value::from).map_err(wide);
    }
    if object.cast::<PyFloat>().is_ok() {
        let value: f64 = object.extract()?;
        let number = Number::from_f64(value).map(Value::Number);
        return number.ok_or_else(|| Unfit::new(format!("{value} is not finite"), "give a finite number"));
    }
    if object.cast::<PyList>().is_ok() || object.cast::<PyTuple>().is_ok() {
        let items = object.try_iter()?.map(|item| nested(&item?, depth + 1));
        return items.collect::<Result<Vec<_>, Unfit>>().map(Value::Array);
    }
    if let Ok(mapping) = object.cast::<PyMapping>() {
        let entry = |pair: Bound<'_, PyAny>| {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
            let key = key.cast::<PyString>().map_err(|_| Unfit::new("a key is not text", "give names as keys"))?;
            Ok((key.to_cow()?.into_owned(), nested(&value, depth + 1)?))
        };
        return mapping.items()?.iter().map(entry).collect::<Result<_, Unfit>>().map(Value::Object);
    }
    // Paths.
    if let Ok(path) = object.call_method0("__fspath__") {
        return nested(&path, depth + 1);
    }
    // Numbers of NumPy and others that convert themselves.
    if let Ok(item) = object.call_method0("item") {
        return nested(&item, depth + 1);
    }
    let reason = format!("it has a value of type {}", type_name(object));
    Err(Unfit::new(reason, "give texts, numbers, truth values, lists or dicts"))
}

/// The settings of a dictionary as `PREFIXkey=value`; nested dictionaries have dotted keys.
pub(crate) fn settings(prefix: &str, values: &Bound<'_, PyDict>) -> PyResult<Vec<String>> {
    let mut lines = Vec::new();
    for (key, value) in values {
        let table = if prefix.is_empty() { "settings" } else { prefix.trim_end_matches('.') };
        let name = key.extract::<String>().map_err(|_| argument(table, "a key is not text", "give names as keys"))?;
        let key = format!("{prefix}{name}");
        let value = to_json(&key, &value)?;
        flatten(&key, value, &mut lines)?;
    }
    Ok(lines)
}

fn flatten(key: &str, value: Value, lines: &mut Vec<String>) -> PyResult<()> {
    if let Value::Object(entries) = value {
        return entries.into_iter().try_for_each(|(name, value)| flatten(&format!("{key}.{name}"), value, lines));
    }
    let wrong = |reason: String| argument(key, reason, "give a text, a number, a truth value, a list or a dict");
    if value.is_null() {
        return Err(wrong("it is None".to_owned()));
    }
    let value = toml::Value::try_from(value).map_err(|error| wrong(error.to_string()))?;
    lines.push(format!("{key}={value}"));
    Ok(())
}

/// A JSON value as Python has it.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(flag) => PyBool::new(py, *flag).to_owned().into_any(),
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => whole.into_pyobject(py)?.into_any(),
            (None, Some(whole)) => whole.into_pyobject(py)?.into_any(),
            (None, None) => PyFloat::new(py, number.as_f64().unwrap_or(f64::NAN)).into_any(),
        },
        Value::Array(items) => {
            let items = items.iter().map(|item| to_python(py, item)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, items)?.into_any()
        }
        Value::Object(entries) => {
            let dict = PyDict::new(py);
            entries.iter().try_for_each(|(key, value)| dict.set_item(key, to_python(py, value)?))?;
            dict.into_any()
        }
    })
}
