//! What filters and methods of chat templates may make of their values.
//!
//! Defines [`measure`], and [`guard_filters`] and [`method`], which refuse a call before memory is taken for its
//! result. Called by [`super::environment`]. The library follows values within each other without a bound: one that
//! contains itself, which namespaces can, would use up the stack.

use std::sync::Arc;

use minijinja::value::{Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

/// The maximum nesting depth of containers.
const DEPTH: usize = 100;
/// More than a number takes.
const NUMBER_BYTES: usize = 32;
/// What an item of a list takes, at least.
const ITEM_BYTES: usize = 32;
/// The variable that carries the most bytes that a text may have.
pub(super) const LIMIT: &str = "__most_bytes";
/// The filters that make a text of their values, and those that make lists of a length that is asked for.
const FILTERS: [&str; 17] = [
    "batch",
    "capitalize",
    "e",
    "escape",
    "format",
    "indent",
    "join",
    "lines",
    "lower",
    "pprint",
    "replace",
    "slice",
    "split",
    "string",
    "title",
    "trim",
    "upper",
];

/// Puts bounds around the filters that could make much of little.
pub(super) fn guard_filters(environment: &mut Environment<'static>) {
    // As the library has them, for their names stand for others in the environment itself.
    let own = Arc::new(Environment::new());
    for name in FILTERS {
        let own = Arc::clone(&own);
        environment.add_filter(name, move |state: &mut State<'_, '_>, values: Rest<ValueOrKwargs>| {
            let values = values.into_values();
            check_result(state, name, &values)?;
            own.empty_state().apply_filter(name, &values)
        });
    }
}

/// A method of Python's, within bounds.
pub(super) fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    let values: Vec<Value> = match name {
        // The filter's first argument is the list; here it follows the separator.
        "join" => args.iter().chain([value]).cloned().collect(),
        "format" | "replace" => [value].into_iter().chain(args).cloned().collect(),
        _ => Vec::new(),
    };
    if !values.is_empty() {
        check_result(state, name, &values)?;
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// The most bytes that a text may have in this rendering.
pub(super) fn limit(state: &State<'_, '_>) -> usize {
    let limit = state.lookup(LIMIT).and_then(|limit| usize::try_from(limit).ok());
    limit.unwrap_or(super::environment::MAX_OUTPUT_BYTES)
}

/// Refuses a call whose result could have more bytes than any text may.
fn check_result(state: &State<'_, '_>, name: &str, values: &[Value]) -> Result<(), Error> {
    let limit = limit(state);
    let sizes = values.iter().map(|value| measure(value, limit)).collect::<Result<Vec<usize>, Error>>()?;
    let own = sizes.first().copied().unwrap_or(0);
    let others = sizes.iter().skip(1).fold(0, |sum: usize, size| sum.saturating_add(*size));
    let text = values.first().and_then(Value::as_str).unwrap_or_default();
    let most = match (name, values) {
        ("replace", [_, from, to, ..]) => {
            // Other values are converted to text first.
            let places = from.as_str().filter(|_| !text.is_empty()).map_or(own + 1, |from| text.matches(from).count());
            own.saturating_add(places.saturating_mul(to.as_str().map_or(others, str::len)))
        }
        ("join", [items, ..]) => own.saturating_add(items.len().unwrap_or(own).saturating_mul(others)),
        ("indent", _) => {
            let width = values.iter().map(largest_number).max().unwrap_or(0).max(4);
            let lines = if text.is_empty() { own } else { 1 + text.matches('\n').count() };
            own.saturating_add(lines.saturating_mul(width))
        }
        ("format", _) => {
            // Widths are in the format string or among the values.
            let fields = text.matches(['%', '{']).count();
            let wide = if text.contains('*') { values.iter().map(largest_number).max().unwrap_or(0) } else { 0 };
            let written = text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
            let written = written.map(|digits| digits.parse().unwrap_or(usize::MAX));
            let written = written.fold(0, |sum: usize, width| sum.saturating_add(width));
            // A number without an exponent has up to 309 digits before its point.
            let each = others.saturating_add(wide).saturating_add(320);
            own.saturating_add(written).saturating_add(fields.saturating_mul(each))
        }
        ("batch" | "slice", _) => {
            let count = values.iter().skip(1).map(largest_number).max().unwrap_or(0);
            own.saturating_add(count.saturating_mul(ITEM_BYTES))
        }
        _ => own,
    };
    if most > limit { Err(too_large(limit)) } else { Ok(()) }
}

/// The largest number that a value is or, as arguments with names are, has.
fn largest_number(value: &Value) -> usize {
    let number = |value: &Value| usize::try_from(value.clone()).unwrap_or(0);
    match value.kind() {
        ValueKind::Number => number(value),
        ValueKind::Map => {
            let fields = value.try_iter().into_iter().flatten().filter_map(|key| value.get_item(&key).ok());
            fields.map(|field| number(&field)).max().unwrap_or(0)
        }
        _ => 0,
    }
}

/// About how many bytes a value has as a text.
pub(super) fn measure(value: &Value, limit: usize) -> Result<usize, Error> {
    let mut size = 0;
    add(value, limit, 0, &mut size)?;
    Ok(size)
}

fn add(value: &Value, limit: usize, depth: usize, size: &mut usize) -> Result<(), Error> {
    if depth > DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "containers are nested too deep"));
    }
    *size += match value.kind() {
        ValueKind::String | ValueKind::Bytes => value.as_str().map(str::len).or_else(|| value.len()).unwrap_or(0),
        ValueKind::Number => NUMBER_BYTES,
        // At least its marks, so that going through things ends even if they hold nothing.
        _ => 2,
    };
    if *size > limit {
        return Err(too_large(limit));
    }
    match value.kind() {
        ValueKind::Map => {
            for key in value.try_iter()? {
                add(&key, limit, depth + 1, size)?;
                add(&value.get_item(&key)?, limit, depth + 1, size)?;
            }
        }
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                add(&item, limit, depth + 1, size)?;
            }
        }
        _ => {}
    }
    Ok(())
}

pub(super) fn too_large(limit: usize) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("the result would have more than {limit} bytes"))
}
