//! Python values as JSON's and TOML's, and back: records, settings, lines of metrics.

use crate::error::{argument, raise, type_name};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyMapping, PyString, PyTuple};
use serde_json::{Map, Number, Value};

/// How deep lists and dictionaries may be nested.
const MAX_DEPTH: usize = 64;

/// A Python value as JSON has it; `place` is for messages.
pub(crate) fn to_json(place: &str, object: &Bound<'_, PyAny>) -> PyResult<Value> {
    nested(place, object, 0)
}

fn nested(place: &str, object: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > MAX_DEPTH {
        return Err(argument(place, format!("it is nested more than {MAX_DEPTH} deep"), "give a flatter value"));
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
        return object.extract::<i64>().map(Value::from);
    }
    if object.cast::<PyFloat>().is_ok() {
        let value: f64 = object.extract()?;
        let number = Number::from_f64(value);
        return number
            .map(Value::Number)
            .ok_or_else(|| argument(place, format!("{value} is not finite"), "give a finite number"));
    }
    if object.cast::<PyList>().is_ok() || object.cast::<PyTuple>().is_ok() {
        let items = object.try_iter()?.map(|item| nested(place, &item?, depth + 1));
        return items.collect::<PyResult<Vec<_>>>().map(Value::Array);
    }
    if let Ok(mapping) = object.cast::<PyMapping>() {
        return object_of(place, mapping, depth).map(Value::Object);
    }
    // Numbers of NumPy and others that convert themselves.
    if let Ok(item) = object.call_method0("item") {
        return nested(place, &item, depth + 1);
    }
    let reason = format!("it has a value of type {}", type_name(object));
    Err(argument(place, reason, "give texts, numbers, truth values, lists or dicts"))
}

fn object_of(place: &str, mapping: &Bound<'_, PyMapping>, depth: usize) -> PyResult<Map<String, Value>> {
    let entry = |pair: Bound<'_, PyAny>| {
        let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
        let key = key.cast::<PyString>().map_err(|_| argument(place, "a key is not text", "give names as keys"))?;
        Ok((key.to_cow()?.into_owned(), nested(place, &value, depth + 1)?))
    };
    mapping.items()?.iter().map(entry).collect()
}

/// The records of an iterable of mappings.
pub(crate) fn records(iterable: &Bound<'_, PyAny>) -> PyResult<Vec<Map<String, Value>>> {
    let record = |(number, item): (usize, PyResult<Bound<'_, PyAny>>)| {
        let place = || format!("records, row {}", number + 1);
        let item = item?;
        let mapping = item.cast::<PyMapping>().map_err(|_| {
            let fix = "give a dict of each sample, such as {\"text\": ..., \"label\": ...}";
            raise(model_center::Error::data(place(), format!("it is of type {}", type_name(&item)), fix))
        })?;
        object_of(&place(), mapping, 0)
    };
    iterable.try_iter()?.enumerate().map(record).collect()
}

/// The settings of a dictionary as `PREFIXkey=value`; nested dictionaries have dotted keys.
pub(crate) fn settings(prefix: &str, values: &Bound<'_, PyDict>) -> PyResult<Vec<String>> {
    let mut lines = Vec::new();
    for (key, value) in values {
        let key = format!("{prefix}{}", key.extract::<String>()?);
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
