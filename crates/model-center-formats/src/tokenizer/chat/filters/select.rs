//! `map`, `select` and their like.

use minijinja::{Error, State, Value};

use super::{Args, apply, attribute_of, attribute_or, generator};
use crate::tokenizer::chat::python::{fail, iterate};
use crate::tokenizer::chat::tests;

/// `map(filter, ...)` or `map(attribute=..., default=...)`.
pub(super) fn map(state: &mut State<'_, '_>, value: Value, mut args: Args) -> Result<Value, Error> {
    if !value.is_true() {
        return Ok(generator(Vec::new()));
    }
    let items = iterate(&value)?;
    let is_attribute = args.positional.is_empty() && args.named.iter().any(|(name, _)| name == "attribute");
    if is_attribute {
        let [attribute, default] = args.bind("map", ["attribute", "default"])?;
        let attribute = attribute.unwrap_or_default();
        let found = items.iter().map(|item| attribute_or(item, &attribute, default.as_ref()));
        return Ok(generator(found.collect::<Result<_, _>>()?));
    }
    if args.positional.is_empty() {
        return Err(fail("map requires a filter argument"));
    }
    let name = args.positional.remove(0);
    let name = name.as_str().ok_or_else(|| fail("the name of a filter is a text"))?;
    let found = items.into_iter().map(|item| apply(state, name, item, args.clone()));
    let found = found.collect::<Result<_, _>>()?;
    Ok(generator(found))
}

pub(super) fn select(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    filtered(state, &value, args, false, true)
}

pub(super) fn reject(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    filtered(state, &value, args, false, false)
}

pub(super) fn selectattr(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    filtered(state, &value, args, true, true)
}

pub(super) fn rejectattr(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    filtered(state, &value, args, true, false)
}

fn filtered(
    state: &mut State<'_, '_>,
    value: &Value,
    mut args: Args,
    of_attribute: bool,
    wanted: bool,
) -> Result<Value, Error> {
    if !value.is_true() {
        return Ok(generator(Vec::new()));
    }
    let mut next = || if args.positional.is_empty() { None } else { Some(args.positional.remove(0)) };
    let attribute = match of_attribute {
        true => Some(next().ok_or_else(|| fail("Missing parameter for attribute name"))?),
        false => None,
    };
    let test = next();
    let mut kept = Vec::new();
    for item in iterate(value)? {
        let subject =
            attribute.as_ref().map_or_else(|| Ok(item.clone()), |attribute| attribute_of(&item, attribute))?;
        let holds = match &test {
            None => subject.is_true(),
            Some(test) => {
                let name = test.as_str().ok_or_else(|| fail("the name of a test is a text"))?;
                tests::holds(state, name, &subject, args.clone())?
            }
        };
        if holds == wanted {
            kept.push(item);
        }
    }
    Ok(generator(kept))
}
