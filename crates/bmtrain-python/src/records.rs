//! Records of a Python iterable: the values of the columns that a task uses.
//!
//! Defines [`records`]. Other columns may hold anything: dates, images, missing values.

use crate::error::{raise, type_name};
use crate::values::to_json_or;
use model_center::Error;
use pyo3::prelude::*;
use pyo3::types::{PyMapping, PyString};
use serde_json::{Map, Value};

/// The records of an iterable of mappings, with the values of these columns, dotted paths among them; the other columns
/// are null. `name` is what messages call the records.
pub(crate) fn records(
    iterable: &Bound<'_, PyAny>,
    (name, columns): (&str, &[&str]),
) -> PyResult<Vec<Map<String, Value>>> {
    let items = iterable.try_iter().map_err(|_| {
        let reason = format!("they are of type {}, and not records to iterate over", type_name(iterable));
        raise(Error::data(
            name,
            reason,
            advice(iterable).unwrap_or("give dicts of the samples, such as a list of them"),
        ))
    })?;
    let record = |(number, item): (usize, PyResult<Bound<'_, PyAny>>)| {
        let item = item?;
        let mapping = item.cast::<PyMapping>().map_err(|_| no_record(iterable, &item, (name, number + 1)))?;
        Columns { place: format!("{name}, row {}", number + 1), path: String::new() }.of(mapping, columns)
    };
    items.enumerate().map(record).collect()
}

/// Where the columns of a mapping are, for messages.
struct Columns {
    place: String,
    /// Prefix of their names in a dotted path.
    path: String,
}

impl Columns {
    fn of<'c>(self, mapping: &Bound<'_, PyMapping>, columns: &[&'c str]) -> PyResult<Map<String, Value>> {
        let entry = |pair: Bound<'_, PyAny>| {
            let (key, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
            let key = match key.cast::<PyString>() {
                Ok(key) => key.to_cow()?.into_owned(),
                Err(_) => key.str()?.to_cow()?.into_owned(),
            };
            let inner = |column: &'c str| column.strip_prefix(key.as_str())?.strip_prefix('.');
            let inside: Vec<&str> = columns.iter().copied().filter_map(inner).collect();
            let is_used = columns.contains(&key.as_str());
            let value = match value.cast::<PyMapping>() {
                _ if !is_used && inside.is_empty() => Value::Null,
                Ok(mapping) if !is_used => {
                    let path = format!("{}{key}.", self.path);
                    Value::Object(Columns { place: self.place.clone(), path }.of(mapping, &inside)?)
                }
                _ => to_json_or(&value, |reason, fix| {
                    let place = format!("{}, column {:?}", self.place, format!("{}{key}", self.path));
                    let is_missing = value.extract().is_ok_and(f64::is_nan);
                    let fix = if is_missing { "give a value, or leave the record out (df.dropna)" } else { fix };
                    raise(Error::data(place, reason, fix))
                })?,
            };
            Ok((key, value))
        };
        mapping.items()?.iter().map(entry).collect()
    }
}

/// The error of an item that is not a record.
fn no_record(iterable: &Bound<'_, PyAny>, item: &Bound<'_, PyAny>, (name, number): (&str, usize)) -> PyErr {
    if let Some(fix) = advice(iterable) {
        let reason = format!("they are of type {}, which does not iterate over records", type_name(iterable));
        return raise(Error::data(name, reason, fix));
    }
    let fix = "give a dict of each sample, such as {\"text\": ..., \"label\": ...}; of a DataFrame df, \
               df.to_dict(\"records\")";
    raise(Error::data(format!("{name}, row {number}"), format!("it is of type {}", type_name(item)), fix))
}

/// How tables that iterate over something else give their records.
fn advice(iterable: &Bound<'_, PyAny>) -> Option<&'static str> {
    let has = |name: &str| iterable.hasattr(name).unwrap_or(false);
    if has("to_dicts") {
        Some("give df.to_dicts(), with the table as df")
    } else if has("to_dict") && has("columns") {
        Some("give df.to_dict(\"records\"), with the table as df")
    } else if has("to_pylist") {
        Some("give table.to_pylist(), with the table as table")
    } else if iterable.cast::<PyMapping>().is_ok() {
        Some("give a list with a dict of each sample")
    } else {
        None
    }
}
