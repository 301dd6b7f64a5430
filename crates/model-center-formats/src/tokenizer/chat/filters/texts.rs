//! Filters of texts.

use minijinja::value::Tuple;
use minijinja::{Error, State, Value};

use super::{Args, defined, flag, same_safety, str_of};
use crate::tokenizer::chat::bounds::check_size;
use crate::tokenizer::chat::python::objects::escaped;
use crate::tokenizer::chat::python::split::lines;
use crate::tokenizer::chat::python::strings::{capitalized, is_space, padded, replaced, stripped};
use crate::tokenizer::chat::python::{
    Type, fail, iterate, length, lists, not_supported, operators, required, size_argument, text_argument,
};

pub(super) fn lower(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("lower", [])?;
    Ok(same_safety(&value, str_of(state, &value)?.to_lowercase()))
}

pub(super) fn upper(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("upper", [])?;
    Ok(same_safety(&value, str_of(state, &value)?.to_uppercase()))
}

pub(super) fn capitalize(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("capitalize", [])?;
    Ok(same_safety(&value, capitalized(&str_of(state, &value)?)))
}

/// Each word, after white space, a hyphen or an opening bracket, with a large letter.
pub(super) fn title(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("title", [])?;
    let text = str_of(state, &value)?;
    let (mut out, mut is_first) = (String::new(), true);
    for letter in text.chars() {
        let is_between = is_space(letter) || "-({[<".contains(letter);
        match is_first && !is_between {
            true => out.extend(letter.to_uppercase()),
            false => out.extend(letter.to_lowercase()),
        }
        is_first = is_between;
    }
    Ok(Value::from(out))
}

pub(super) fn trim(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [letters] = args.bind("trim", ["chars"])?;
    let text = str_of(state, &value)?;
    Ok(same_safety(&value, stripped(&text, "trim", letters)?.to_owned()))
}

pub(super) fn string(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("string", [])?;
    Ok(same_safety(&value, str_of(state, &value)?))
}

/// Marks a text as one that is not escaped where it meets another that is marked.
pub(super) fn safe(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("safe", [])?;
    Ok(Value::from_safe_string(str_of(state, &value)?))
}

pub(super) fn escape(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("escape", [])?;
    Ok(Value::from_safe_string(escaped(state, &value)?))
}

pub(super) fn force_escape(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("forceescape", [])?;
    let plain = Value::from(str_of(state, &value)?);
    Ok(Value::from_safe_string(escaped(state, &plain)?))
}

pub(super) fn replace(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [old, new, count] = args.bind("replace", ["old", "new", "count"])?;
    let (old, new) = (required(old, "replace", "old")?, required(new, "replace", "new")?);
    let count = count.filter(|count| !count.is_none()).map_or(Ok(-1), |count| size_argument(&count, "replace"))?;
    let (text, old, new) = (str_of(state, &value)?, str_of(state, &old)?, str_of(state, &new)?);
    replaced(state, &text, &old, &new, count).map(Value::from)
}

/// `format(values...)`: as `%`.
pub(super) fn format(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    if !args.positional.is_empty() && !args.named.is_empty() {
        return Err(fail("can't handle positional and keyword arguments at the same time"));
    }
    let values = match args.named.is_empty() {
        true => Value::from(Tuple::from(args.positional)),
        false => lists::dict(args)?,
    };
    let text = same_safety(&value, str_of(state, &value)?);
    operators::binary(state, "mod", &text, &values)
}

pub(super) fn center(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [width] = args.bind("center", ["width"])?;
    let width = width.map_or(Ok(80), |width| size_argument(&width, "center"))?;
    let text = str_of(state, &value)?;
    Ok(same_safety(&value, padded(state, &text, "center", width, ' ')?))
}

/// `indent(width, first, blank)`.
pub(super) fn indent(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [width, first, blank] = args.bind("indent", ["width", "first", "blank"])?;
    defined(&value)?;
    let text = text_argument(&value, "indent")?;
    let indention = match width {
        None => "    ".to_owned(),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = usize::try_from(size_argument(&width, "indent")?).unwrap_or(0);
                check_size(state, width)?;
                " ".repeat(width)
            }
        },
    };
    let all = lines(&format!("{text}\n"), false);
    check_size(state, text.len().saturating_add(all.len().saturating_mul(indention.len() + 1)))?;
    let has_blank = flag(blank);
    let mut out = String::new();
    for (at, line) in all.iter().enumerate() {
        if at > 0 {
            out.push('\n');
            out += if has_blank || !line.is_empty() { &indention } else { "" };
        }
        out += line;
    }
    let out = if flag(first) { indention + &out } else { out };
    Ok(same_safety(&value, out))
}

/// `truncate(length, killwords, end, leeway)`.
pub(super) fn truncate(_: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [most, kills, end, leeway] = args.bind("truncate", ["length", "killwords", "end", "leeway"])?;
    let most = most.map_or(Ok(255), |most| size_argument(&most, "truncate"))?;
    let end = end.unwrap_or_else(|| Value::from("..."));
    let end = text_argument(&end, "truncate")?;
    let leeway = leeway.filter(|leeway| !leeway.is_none());
    let leeway = leeway.map_or(Ok(5), |leeway| size_argument(&leeway, "truncate"))?;
    let room = most.checked_sub(end.chars().count() as i64).filter(|room| *room >= 0);
    let room = room.ok_or_else(|| fail("truncate: the length is shorter than the end"))?;
    if leeway < 0 {
        return Err(fail("truncate: the leeway is negative"));
    }
    if length(&value)? as i64 <= most.saturating_add(leeway) {
        return Ok(value);
    }
    let text = value.as_str().ok_or_else(|| fail(format!("truncate takes a text, not {}", Type::of(&value).name())))?;
    if value.is_safe() {
        return Err(not_supported("truncate of a text that is marked safe"));
    }
    let kept: String = text.chars().take(room as usize).collect();
    let kept = if flag(kills) { kept.as_str() } else { kept.rsplit_once(' ').map_or(kept.as_str(), |(kept, _)| kept) };
    Ok(Value::from(format!("{kept}{end}")))
}

pub(super) fn word_count(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("wordcount", [])?;
    let text = str_of(state, &value)?;
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    Ok(Value::from(words.filter(|word| !word.is_empty()).count()))
}

/// `urlencode`: a text, or the pairs of a dictionary or of a list.
pub(super) fn url_encode(state: &mut State<'_, '_>, value: Value, args: Args) -> Result<Value, Error> {
    let [] = args.bind("urlencode", [])?;
    let pairs = match Type::of(&value) {
        Type::Dict => lists::pairs(&value)?,
        Type::List | Type::Tuple | Type::View | Type::Generator | Type::Undefined => {
            let pair = |item: &Value| match <[Value; 2]>::try_from(iterate(item)?) {
                Ok([key, value]) => Ok((key, value)),
                Err(_) => Err(fail("urlencode takes pairs")),
            };
            iterate(&value)?.iter().map(pair).collect::<Result<_, _>>()?
        }
        _ => return Ok(Value::from(quoted(&str_of(state, &value)?, "/"))),
    };
    let mut out = Vec::new();
    for (key, value) in pairs {
        let [key, value] =
            [key, value].map(|part| str_of(state, &part).map(|part| quoted(&part, "").replace("%20", "+")));
        out.push(format!("{}={}", key?, value?));
    }
    Ok(Value::from(out.join("&")))
}

fn quoted(text: &str, safe: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => out.push(byte.into()),
            byte if safe.contains(char::from(byte)) => out.push(byte.into()),
            byte => out += &format!("%{byte:02X}"),
        }
    }
    out
}
