//! Filters of lists, mappings and other sequences.

use minijinja::value::Tuple;
use minijinja::{Error, State, Value};

use super::{Args, attribute_of, attribute_or, flag, generator, str_of};
use crate::tokenizer::chat::bounds::{ITEM_BYTES, check_size};
use crate::tokenizer::chat::python::{
    Type, access, compare, fail, iterate, length, lists, operators, required, size_argument,
};

pub(super) fn length_of(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("length", [])?;
    length(&value).map(Value::from)
}

pub(super) fn list(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("list", [])?;
    iterate(&value).map(Value::from)
}

pub(super) fn first(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("first", [])?;
    match Type::of(&value) {
        Type::Generator => Ok(value.try_iter()?.next().unwrap_or_default()),
        _ => Ok(iterate(&value)?.into_iter().next().unwrap_or_default()),
    }
}

pub(super) fn last(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("last", [])?;
    match Type::of(&value) {
        kind @ Type::Generator => Err(fail(format!("'{}' object is not reversible", kind.name()))),
        _ => Ok(iterate(&value)?.pop().unwrap_or_default()),
    }
}

/// A text backwards, or a generator of the values of anything else.
pub(super) fn reverse(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("reverse", [])?;
    if let Some(text) = value.as_str() {
        return Ok(operators::text(text.chars().rev().collect(), value.is_safe()));
    }
    let mut items = iterate(&value)?;
    items.reverse();
    // What has no order of its own becomes a list.
    Ok(if Type::of(&value) == Type::Generator { Value::from(items) } else { generator(items) })
}

pub(super) fn default(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [default, boolean] = args.bind("default", ["default_value", "boolean"])?;
    let is_missing = value.is_undefined() || (flag(boolean) && !value.is_true());
    Ok(if is_missing { default.unwrap_or_else(|| Value::from("")) } else { value })
}

pub(super) fn attr(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [name] = args.bind("attr", ["name"])?;
    let name = required(name, "attr", "name")?;
    access::attribute_alone(&value, name.as_str().ok_or_else(|| fail("attr takes a text"))?)
}

pub(super) fn items(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("items", [])?;
    match Type::of(&value) {
        Type::Undefined => Ok(generator(Vec::new())),
        Type::Dict => {
            let pairs = lists::pairs(&value)?.into_iter().map(|(key, field)| Value::from(Tuple::from([key, field])));
            Ok(generator(pairs.collect()))
        }
        _ => Err(fail("Can only get item pairs from a mapping.")),
    }
}

/// `join(d, attribute)`.
pub(super) fn join(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [separator, attribute] = args.bind("join", ["d", "attribute"])?;
    let separator = separator.map_or(Ok(String::new()), |separator| str_of(state, &separator))?;
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let mut out = String::new();
    for (at, item) in iterate(&value)?.into_iter().enumerate() {
        let item = attribute.as_ref().map_or_else(|| Ok(item.clone()), |attribute| attribute_of(&item, attribute))?;
        out += if at > 0 { &separator } else { "" };
        out += &str_of(state, &item)?;
        check_size(state, out.len())?;
    }
    Ok(Value::from(out))
}

/// Key by which values are compared: a text without its case, unless case counts.
fn key_of(item: &Value, attribute: Option<&Value>, keeps_case: bool) -> Result<Value, Error> {
    let key = attribute.map_or_else(|| Ok(item.clone()), |attribute| attribute_of(item, attribute))?;
    Ok(folded(key, keeps_case))
}

fn folded(key: Value, keeps_case: bool) -> Value {
    match key.as_str() {
        Some(text) if !keeps_case => Value::from(text.to_lowercase()),
        _ => key,
    }
}

/// `sort(reverse, case_sensitive, attribute)`, whose attribute may be several with commas.
pub(super) fn sort(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [reverse, case, attribute] = args.bind("sort", ["reverse", "case_sensitive", "attribute"])?;
    let keeps_case = flag(case);
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let several: Vec<Option<Value>> = match attribute.as_ref().and_then(Value::as_str) {
        Some(text) => text.split(',').map(|one| Some(Value::from(one))).collect(),
        None => vec![attribute],
    };
    let mut keyed = Vec::new();
    for item in iterate(&value)? {
        let keys = several.iter().map(|one| key_of(&item, one.as_ref(), keeps_case));
        keyed.push((Value::from(keys.collect::<Result<Vec<_>, _>>()?), item));
    }
    compare::sort(&mut keyed, flag(reverse))?;
    Ok(keyed.into_iter().map(|(_, item)| item).collect::<Vec<_>>().into())
}

/// `dictsort(case_sensitive, by, reverse)`.
pub(super) fn dictsort(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [case, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    let by_value = match by.as_ref().map(|by| by.as_str().unwrap_or_default()) {
        None | Some("key") => false,
        Some("value") => true,
        _ => return Err(fail("You can only sort by either \"key\" or \"value\"")),
    };
    if Type::of(&value) != Type::Dict {
        return Err(fail(format!("'{}' object has no attribute 'items'", Type::of(&value).name())));
    }
    let keeps_case = flag(case);
    let pairs = lists::pairs(&value)?.into_iter();
    let mut keyed: Vec<(Value, Value)> = pairs
        .map(|(key, field)| {
            let by = folded(if by_value { field.clone() } else { key.clone() }, keeps_case);
            (by, Value::from(Tuple::from([key, field])))
        })
        .collect();
    compare::sort(&mut keyed, flag(reverse))?;
    Ok(keyed.into_iter().map(|(_, pair)| pair).collect::<Vec<_>>().into())
}

pub(super) fn unique(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [case, attribute] = args.bind("unique", ["case_sensitive", "attribute"])?;
    let keeps_case = flag(case);
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let (mut seen, mut kept): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    for item in iterate(&value)? {
        let key = key_of(&item, attribute.as_ref(), keeps_case)?;
        compare::check_key(&key)?;
        let mut is_new = true;
        for other in &seen {
            is_new &= !compare::equals(other, &key)?;
        }
        if is_new {
            seen.push(key);
            kept.push(item);
        }
    }
    Ok(generator(kept))
}

pub(super) fn min(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    extreme(&value, args, "<")
}

pub(super) fn max(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    extreme(&value, args, ">")
}

fn extreme(value: &Value, args: Args, sign: &str) -> Result<Value, Error> {
    let [case, attribute] = args.bind("min and max", ["case_sensitive", "attribute"])?;
    let keeps_case = flag(case);
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let mut best: Option<(Value, Value)> = None;
    for item in iterate(value)? {
        let key = key_of(&item, attribute.as_ref(), keeps_case)?;
        let is_better = best.as_ref().map_or(Ok(true), |(best, _)| compare::holds(&key, sign, best))?;
        if is_better {
            best = Some((key, item));
        }
    }
    Ok(best.map(|(_, item)| item).unwrap_or_default())
}

/// `sum(attribute, start)`.
pub(super) fn sum(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"])?;
    let attribute = attribute.filter(|attribute| !attribute.is_none());
    let mut sum = start.unwrap_or_else(|| Value::from(0));
    if sum.as_str().is_some() {
        return Err(fail("sum() can't sum strings [use ''.join(seq) instead]"));
    }
    for item in iterate(&value)? {
        let item = attribute.as_ref().map_or_else(|| Ok(item.clone()), |attribute| attribute_of(&item, attribute))?;
        sum = operators::binary(state, "add", &sum, &item)?;
    }
    Ok(sum)
}

/// `groupby(attribute, default, case_sensitive)`.
pub(super) fn groupby(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [attribute, default, case] = args.bind("groupby", ["attribute", "default", "case_sensitive"])?;
    let attribute = required(attribute, "groupby", "attribute")?;
    let keeps_case = flag(case);
    let mut keyed = Vec::new();
    for item in iterate(&value)? {
        keyed.push((folded(attribute_or(&item, &attribute, default.as_ref())?, keeps_case), item));
    }
    compare::sort(&mut keyed, false)?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in keyed {
        match groups.last_mut() {
            Some((own, items)) if compare::equals(own, &key)? => items.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let mut out = Vec::new();
    for (key, items) in groups {
        // With its case, as the first item has it.
        let key = match items.first() {
            Some(item) if !keeps_case => attribute_or(item, &attribute, default.as_ref())?,
            _ => key,
        };
        out.push(Value::from(Tuple::from([key, Value::from(items)])));
    }
    Ok(Value::from(out))
}

/// `batch(linecount, fill_with)`.
pub(super) fn batch(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [count, fill] = args.bind("batch", ["linecount", "fill_with"])?;
    let count = size_argument(&required(count, "batch", "linecount")?, "batch")?;
    let items = iterate(&value)?;
    let count = usize::try_from(count).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| fail("batch takes a count of at least 1"))?;
    let fill = fill.filter(|fill| !fill.is_none());
    if fill.is_some() && !items.is_empty() {
        check_size(state, count.saturating_mul(ITEM_BYTES))?;
    }
    let mut batches: Vec<Vec<Value>> = items.chunks(count).map(<[Value]>::to_vec).collect();
    if let (Some(last), Some(fill)) = (batches.last_mut(), fill) {
        last.resize(count, fill);
    }
    Ok(generator(batches.into_iter().map(Value::from).collect()))
}

/// `slice(slices, fill_with)`.
pub(super) fn slice(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [count, fill] = args.bind("slice", ["slices", "fill_with"])?;
    let count = size_argument(&required(count, "slice", "slices")?, "slice")?;
    let count = usize::try_from(count).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| fail("slice takes a count of at least 1"))?;
    check_size(state, count.saturating_mul(ITEM_BYTES))?;
    let items = iterate(&value)?;
    let (each, longer) = (items.len() / count, items.len() % count);
    let fill = fill.filter(|fill| !fill.is_none());
    let (mut rest, mut slices) = (items.as_slice(), Vec::new());
    for number in 0..count {
        let (own, behind) = rest.split_at(each + usize::from(number < longer));
        let mut own = own.to_vec();
        own.extend(fill.clone().filter(|_| number >= longer));
        slices.push(Value::from(own));
        rest = behind;
    }
    Ok(generator(slices))
}
