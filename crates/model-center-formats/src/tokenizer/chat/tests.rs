//! The tests of Jinja: what `value is name` asks.

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, State, Value};

use super::filters::is_filter;
use super::python::number::Number;
use super::python::{Args, Type, compare, fail, operators, required, strings, text};
use super::translate::PREFIX;

const TESTS: [&str; 39] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// Whether Jinja has a test of this name.
pub(super) fn is_test(name: &str) -> bool {
    TESTS.contains(&name)
}

/// Puts the filters that stand for tests into an environment.
pub(super) fn add(environment: &mut Environment<'static>) {
    for name in TESTS {
        let test = move |state: &mut State<'_, '_>, value: &Value, values: Rest<ValueOrKwargs>| {
            holds(state, name, value, Args::new(values.into_values()))
        };
        environment.add_filter(format!("{PREFIX}is_{name}"), test);
    }
}

/// Whether a test holds.
pub(super) fn holds(state: &mut State<'_, '_>, name: &str, value: &Value, args: Args) -> Result<bool, Error> {
    let kind = Type::of(value);
    let sign = match name {
        "eq" | "equalto" | "==" => "==",
        "ne" | "!=" => "!=",
        "lt" | "lessthan" | "<" => "<",
        "le" | "<=" => "<=",
        "gt" | "greaterthan" | ">" => ">",
        "ge" | ">=" => ">=",
        "in" => "in",
        _ => "",
    };
    if !sign.is_empty() {
        let [other] = args.bind(name, ["other"])?;
        return compare::holds(value, sign, &required(other, name, "value")?);
    }
    let rest = |state: &State<'_, '_>, divisor: i64| operators::binary(state, "mod", value, &Value::from(divisor));
    match name {
        "divisibleby" => {
            let [number] = args.bind(name, ["num"])?;
            let rest = operators::binary(state, "mod", value, &required(number, name, "num")?)?;
            return compare::equals(&rest, &Value::from(0));
        }
        "sameas" => {
            let [other] = args.bind(name, ["other"])?;
            return same(value, &required(other, name, "other")?);
        }
        _ => {}
    }
    let [] = args.bind(name, [])?;
    Ok(match name {
        "odd" => compare::equals(&rest(state, 2)?, &Value::from(1))?,
        "even" => compare::equals(&rest(state, 2)?, &Value::from(0))?,
        "defined" => kind != Type::Undefined,
        "undefined" => kind == Type::Undefined,
        "filter" => value.as_str().is_some_and(is_filter),
        "test" => value.as_str().is_some_and(is_test),
        "none" => kind == Type::None,
        "boolean" => kind == Type::Bool,
        "false" => kind == Type::Bool && !value.is_true(),
        "true" => kind == Type::Bool && value.is_true(),
        "integer" => kind == Type::Int,
        "float" => kind == Type::Float,
        "lower" => strings::is(&text::str_of(state, value)?, "islower")?,
        "upper" => strings::is(&text::str_of(state, value)?, "isupper")?,
        "string" => kind == Type::Str,
        "mapping" => kind == Type::Dict,
        "number" => Number::of(value).is_some(),
        "sequence" => {
            matches!(kind, Type::Undefined | Type::Str | Type::List | Type::Tuple | Type::Dict | Type::Range)
        }
        "iterable" => !matches!(
            kind,
            Type::None
                | Type::Bool
                | Type::Int
                | Type::Float
                | Type::Namespace
                | Type::Macro
                | Type::Function
                | Type::Cycler
        ),
        "callable" => matches!(kind, Type::Undefined | Type::Loop | Type::Macro | Type::Function),
        "escaped" => value.is_safe(),
        _ => return Err(fail(format!("there is no test named {name}"))),
    })
}

/// Python's `is`, where it does not depend on what a version of Python keeps one object of.
fn same(value: &Value, other: &Value) -> Result<bool, Error> {
    match (Type::of(value), Type::of(other)) {
        (kind, other) if kind != other => Ok(false),
        (Type::None, _) => Ok(true),
        (Type::Bool, _) => Ok(value.is_true() == other.is_true()),
        (kind, _) => Err(fail(format!("sameas of two values of type {} is not supported", kind.name()))),
    }
}
