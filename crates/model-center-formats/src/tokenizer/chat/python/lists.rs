//! Methods of lists, tuples and ranges, and how dictionaries are made.

use minijinja::{Error, Value};

use super::{Args, Type, compare, fail, iterate, length, number, required};

/// A method that changes nothing.
pub(super) fn method(value: &Value, name: &str, args: Args) -> Result<Value, Error> {
    let kind = Type::of(value);
    let of = format!("{}.{name}()", kind.name());
    match name {
        "copy" => {
            let [] = args.bind(&of, [])?;
            Ok(Value::from(iterate(value)?))
        }
        "count" => {
            let [wanted] = args.bind(&of, [""])?;
            let wanted = required(wanted, &of, "value")?;
            let mut count = 0;
            for item in value.try_iter()? {
                count += u64::from(compare::equals(&item, &wanted)?);
            }
            Ok(Value::from(count))
        }
        _ => {
            let [wanted, start, stop] = args.bind(&of, ["", "", ""])?;
            let wanted = required(wanted, &of, "value")?;
            let count = length(value)? as i128;
            let place = |bound: Option<Value>, otherwise: i128| {
                let bound = bound.as_ref().and_then(number::whole).unwrap_or(otherwise);
                if bound < 0 { (bound + count).max(0) } else { bound.min(count) }
            };
            let (start, stop) = (place(start, 0), place(stop, count));
            for (at, item) in value.try_iter()?.enumerate() {
                let is_within = (start..stop).contains(&(at as i128));
                if is_within && compare::equals(&item, &wanted)? {
                    return Ok(Value::from(at));
                }
            }
            Err(fail(format!("{of}: the value is not in the {}", kind.name())))
        }
    }
}

/// The keys and values of a dictionary.
pub(in super::super) fn pairs(value: &Value) -> Result<Vec<(Value, Value)>, Error> {
    value.try_iter()?.map(|key| value.get_item(&key).map(|field| (key, field))).collect()
}

/// `dict(value, name=...)`: of a dictionary or of pairs.
pub(in super::super) fn dict(args: Args) -> Result<Value, Error> {
    let mut all = Vec::new();
    if args.positional.len() > 1 {
        return Err(fail(format!("dict expected at most 1 argument, got {}", args.positional.len())));
    }
    if let Some(value) = args.positional.first() {
        all = match Type::of(value) {
            Type::Dict => pairs(value)?,
            _ => iterate(value)?.iter().map(pair).collect::<Result<_, _>>()?,
        };
    }
    all.extend(args.named.into_iter().map(|(name, value)| (Value::from(name), value)));
    from_pairs(all)
}

fn pair(value: &Value) -> Result<(Value, Value), Error> {
    match <[Value; 2]>::try_from(iterate(value)?) {
        Ok([key, value]) => Ok((key, value)),
        Err(items) => Err(fail(format!("a pair of a key and its value has {} items", items.len()))),
    }
}

/// A dictionary; an error where a key cannot be one.
pub(in super::super) fn from_pairs(all: Vec<(Value, Value)>) -> Result<Value, Error> {
    let mut made: Vec<(Value, Value)> = Vec::new();
    for (key, value) in all {
        compare::check_key(&key)?;
        // Texts are equal only to texts; of numbers the first spelling of a key stays.
        let same = match number::Number::of(&key) {
            Some(_) => made.iter_mut().find(|(own, _)| compare::equals(own, &key).unwrap_or(false)),
            None => None,
        };
        match same {
            Some((_, own)) => *own = value,
            None => made.push((key, value)),
        }
    }
    Ok(Value::from_pairs(made))
}

pub(super) fn from_keys(keys: Value, value: Value) -> Result<Value, Error> {
    from_pairs(iterate(&keys)?.into_iter().map(|key| (key, value.clone())).collect())
}
