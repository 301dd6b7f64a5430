//! The filters of Jinja and of transformers' environment, and those that stand for operators.
//!
//! Defines [`FILTERS`] and [`add`]. The library's own filters are not used: they accept and return other values.

mod numbers;
mod select;
mod sequences;
pub mod texts;

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use super::json::to_json;
use super::python::{
    Args, Type, access, compare, fail, iterate, lists, not_supported, number, objects, operators, text, undefined,
};
use super::tests;
use super::translate::PREFIX;

/// A filter: the rendering, what is filtered, the arguments.
type Filter = fn(&mut State<'_, '_>, Value, Args) -> Result<Value, Error>;

/// Those that templates can name.
const FILTERS: [(&str, Filter); 48] = [
    ("abs", numbers::abs),
    ("attr", sequences::attr),
    ("batch", sequences::batch),
    ("capitalize", texts::capitalize),
    ("center", texts::center),
    ("count", sequences::length_of),
    ("d", sequences::default),
    ("default", sequences::default),
    ("dictsort", sequences::dictsort),
    ("e", texts::escape),
    ("escape", texts::escape),
    ("filesizeformat", numbers::file_size),
    ("first", sequences::first),
    ("float", numbers::float),
    ("forceescape", texts::force_escape),
    ("format", texts::format),
    ("groupby", sequences::groupby),
    ("indent", texts::indent),
    ("int", numbers::int),
    ("items", sequences::items),
    ("join", sequences::join),
    ("last", sequences::last),
    ("length", sequences::length_of),
    ("list", sequences::list),
    ("lower", texts::lower),
    ("map", select::map),
    ("max", sequences::max),
    ("min", sequences::min),
    ("reject", select::reject),
    ("rejectattr", select::rejectattr),
    ("replace", texts::replace),
    ("reverse", sequences::reverse),
    ("round", numbers::round),
    ("safe", texts::safe),
    ("select", select::select),
    ("selectattr", select::selectattr),
    ("slice", sequences::slice),
    ("sort", sequences::sort),
    ("string", texts::string),
    ("sum", sequences::sum),
    ("title", texts::title),
    ("tojson", to_json),
    ("trim", texts::trim),
    ("truncate", texts::truncate),
    ("unique", sequences::unique),
    ("upper", texts::upper),
    ("urlencode", texts::url_encode),
    ("wordcount", texts::word_count),
];

/// Those that Jinja has besides: what is random, wraps lines or makes HTML.
const REFUSED: [&str; 6] = ["pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"];

/// Whether Jinja has a filter of this name.
pub(super) fn is_filter(name: &str) -> bool {
    REFUSED.contains(&name) || FILTERS.iter().any(|(own, _)| *own == name)
}

/// Calls a filter that a template names in a text.
fn apply(state: &mut State<'_, '_>, name: &str, value: Value, args: Args) -> Result<Value, Error> {
    if REFUSED.contains(&name) {
        return Err(not_supported(&format!("the filter {name}")));
    }
    match FILTERS.iter().find(|(own, _)| *own == name) {
        Some((_, filter)) => filter(state, value, args),
        None => Err(fail(format!("there is no filter named {name}"))),
    }
}

/// Puts all filters into an environment.
pub(super) fn add(environment: &mut Environment<'static>) {
    for name in FILTERS.iter().map(|(name, _)| *name).chain(REFUSED) {
        environment.add_filter(name, move |state: &mut State<'_, '_>, value: Value, values: Rest<ValueOrKwargs>| {
            apply(state, name, value, Args::new(values.into_values()))
        });
    }
    for name in ["add", "sub", "mul", "div", "floordiv", "mod", "pow"] {
        environment.add_filter(format!("{PREFIX}{name}"), move |state: &State<'_, '_>, left: &Value, right: &Value| {
            operators::binary(state, name, left, right)
        });
    }
    for (name, is_negative) in [("neg", true), ("pos", false)] {
        let signed = move |value: &Value| operators::signed(value, is_negative);
        environment.add_filter(format!("{PREFIX}{name}"), signed);
    }
    let named = |name: &str| format!("{PREFIX}{name}");
    environment.add_filter(named("concat"), |state: &State<'_, '_>, first: &Value, rest: Rest<Value>| {
        operators::concat(state, first, &rest)
    });
    environment.add_filter(named("compare"), |first: &Value, rest: Rest<Value>| compare::chain(first, &rest));
    environment.add_filter(named("attribute"), |value: &Value, name: &str| access::attribute(value, name));
    environment.add_filter(named("item"), |value: &Value, key: &Value| access::item(value, key));
    environment.add_filter(named("slice"), |value: &Value, start: Value, stop: Value, step: Value| {
        access::slice(value, [start, stop, step])
    });
    environment.add_filter(
        named("method"),
        |state: &mut State<'_, '_>, value: &Value, name: &str, values: Rest<ValueOrKwargs>| {
            access::method(state, value, name, values.into_values())
        },
    );
    environment.add_filter(named("call"), |state: &mut State<'_, '_>, value: &Value, values: Rest<ValueOrKwargs>| {
        access::call(state, value, values.into_values())
    });
    environment.add_filter(named("number"), |spelled: &str| {
        number::parse_float(spelled).ok_or_else(|| fail("this is not a number"))
    });
    environment.add_filter(named("dict"), |keys: Vec<Value>, values: Vec<Value>| {
        lists::from_pairs(keys.into_iter().zip(values).collect())
    });
    // What a loop goes through: a text by its characters, as a generator all that is left of it.
    environment.add_filter(named("items"), |value: Value| match Type::of(&value) {
        Type::List | Type::Tuple | Type::Dict | Type::Range | Type::View | Type::Generator => Ok(value),
        _ => iterate(&value).map(Value::from),
    });
    // An argument of a macro that has a default: the library cannot tell one that is undefined from one that lacks.
    environment.add_filter(named("given"), |value: Value| match value.is_undefined() {
        true => Err(not_supported("an undefined argument of a macro that has a default for it")),
        false => Ok(value),
    });
    environment
        .add_filter(named("missing"), |_: Value, what: &str| Err::<Value, _>(fail(format!("there is no {what}"))));
    environment.add_filter(named("plain"), |wanted: &Value| match wanted.is_true() {
        true => Err(fail("autoescape is not supported in chat templates")),
        false => Ok(""),
    });
    tests::add(environment);
}

/// Text on which a filter works.
fn str_of(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    text::str_of(state, value)
}

/// One whose result is marked safe if the value is.
fn same_safety(value: &Value, text: String) -> Value {
    operators::text(text, value.is_safe())
}

/// A getter of an attribute such as `function.name` or `0.role`: items first, then attributes.
fn attribute_of(value: &Value, attribute: &Value) -> Result<Value, Error> {
    let Some(path) = attribute.as_str() else { return access::item(value, attribute) };
    let mut found = value.clone();
    for part in path.split('.') {
        let is_number = !part.is_empty() && part.chars().all(|digit| digit.is_ascii_digit());
        let key = match part.parse::<i64>() {
            Ok(number) if is_number => Value::from(number),
            _ => Value::from(part),
        };
        found = access::item(&found, &key)?;
    }
    Ok(found)
}

/// As [`attribute_of`], with the default of those that are not there.
fn attribute_or(value: &Value, attribute: &Value, default: Option<&Value>) -> Result<Value, Error> {
    let Some(default) = default.filter(|default| !default.is_none()) else { return attribute_of(value, attribute) };
    let Some(path) = attribute.as_str() else {
        let found = access::item(value, attribute)?;
        return Ok(if found.is_undefined() { default.clone() } else { found });
    };
    let mut found = value.clone();
    for part in path.split('.') {
        found = attribute_of(&found, &Value::from(part))?;
        if found.is_undefined() {
            found = default.clone();
        }
    }
    Ok(found)
}

/// Whether an option is set.
fn flag(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.is_true())
}

/// The filters that return generators.
fn generator(items: Vec<Value>) -> Value {
    objects::Generator::value(items)
}

/// Refuses a value that is not there.
fn defined(value: &Value) -> Result<(), Error> {
    if value.is_undefined() { Err(undefined()) } else { Ok(()) }
}
