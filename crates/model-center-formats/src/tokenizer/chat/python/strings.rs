//! The methods of Python's texts.

use minijinja::value::Tuple;
use minijinja::{Error, State, Value};

use super::operators::text;
use super::{
    Args, Type, fail, format, iterate, not_supported, required, size_argument, split, text as python_text,
    text_argument,
};
use crate::tokenizer::chat::bounds::check_size;

/// White space by Python, which has four separators more than Unicode's property.
pub(in super::super) fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
}

pub(in super::super) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// A method of a text; of one that is marked safe, the result is too.
pub(super) fn method(state: &State<'_, '_>, value: &Value, name: &str, args: Args) -> Result<Value, Error> {
    let word = value.as_str().unwrap_or_default();
    let is_safe = value.is_safe();
    if is_safe && matches!(name, "join" | "replace" | "format" | "format_map") {
        return Err(not_supported(&format!("{name} of a text that is marked safe")));
    }
    let of = format!("str.{name}()");
    let made = |out: String| Ok(text(out, is_safe));
    let list = |parts: Vec<String>| Ok(parts.into_iter().map(|part| text(part, is_safe)).collect::<Vec<_>>());
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [letters] = args.bind(&of, [""])?;
            made(stripped(word, name, letters)?.to_owned())
        }
        "split" | "rsplit" => {
            let [separator, most] = args.bind(&of, ["sep", "maxsplit"])?;
            let most = most.map(|most| size_argument(&most, &of)).transpose()?;
            let most = most.and_then(|most| usize::try_from(most).ok());
            let parts = match separator.filter(|separator| !separator.is_none()) {
                None => split::at_spaces(word, most, name == "rsplit"),
                Some(separator) => {
                    split::at_text(word, not_empty(text_argument(&separator, &of)?)?, most, name == "rsplit")
                }
            };
            list(parts).map(Value::from)
        }
        "partition" | "rpartition" => {
            let [separator] = args.bind(&of, [""])?;
            let separator = required(separator, &of, "sep")?;
            let parts = split::around(word, not_empty(text_argument(&separator, &of)?)?, name == "rpartition");
            Ok(Value::from(Tuple::from(list(parts.to_vec())?)))
        }
        "splitlines" => {
            let [keeps] = args.bind(&of, ["keepends"])?;
            list(split::lines(word, keeps.is_some_and(|keeps| keeps.is_true()))).map(Value::from)
        }
        "join" => join(state, word, args),
        "replace" => {
            let [old, new, count] = args.bind(&of, ["", "", "count"])?;
            let (old, new) = (required(old, &of, "old")?, required(new, &of, "new")?);
            let count = count.map_or(Ok(-1), |count| size_argument(&count, &of))?;
            made(replaced(state, word, text_argument(&old, &of)?, text_argument(&new, &of)?, count)?)
        }
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count" => search(word, name, args),
        "removeprefix" | "removesuffix" => {
            let [part] = args.bind(&of, [""])?;
            let part = required(part, &of, "text")?;
            let part = text_argument(&part, &of)?;
            let rest = if name == "removeprefix" { word.strip_prefix(part) } else { word.strip_suffix(part) };
            made(rest.unwrap_or(word).to_owned())
        }
        "center" | "ljust" | "rjust" => {
            let [width, fill] = args.bind(&of, ["", ""])?;
            let width = size_argument(&required(width, &of, "width")?, &of)?;
            let fill = fill.map_or(Ok(' '), |fill| one_letter(&fill, &of))?;
            made(padded(state, word, name, width, fill)?)
        }
        "zfill" => {
            let [width] = args.bind(&of, [""])?;
            let width = size_argument(&required(width, &of, "width")?, &of)?;
            check_size(state, usize::try_from(width).unwrap_or(0))?;
            let sign = usize::from(word.starts_with(['+', '-']));
            let zeros = usize::try_from(width).unwrap_or(0).saturating_sub(word.chars().count());
            made(format!("{}{}{}", &word[..sign], "0".repeat(zeros), &word[sign..]))
        }
        "expandtabs" => {
            let [size] = args.bind(&of, ["tabsize"])?;
            let size = size.map_or(Ok(8), |size| size_argument(&size, &of))?;
            let tabs = word.matches('\t').count().saturating_mul(usize::try_from(size).unwrap_or(0));
            check_size(state, word.len().saturating_add(tabs))?;
            made(split::expanded(word, size))
        }
        "format" => format::format(state, word, args).map(Value::from),
        "format_map" => {
            let [fields] = args.bind(&of, [""])?;
            let fields = super::lists::pairs(&required(fields, &of, "mapping")?)?;
            let named = fields.into_iter().filter_map(|(key, value)| Some((key.as_str()?.to_owned(), value)));
            let args = Args { positional: Vec::new(), named: named.collect() };
            format::format(state, word, args).map(Value::from)
        }
        "encode" | "maketrans" | "translate" => Err(not_supported(&of)),
        _ => {
            let [] = args.bind(&of, [])?;
            match cased(word, name)? {
                Some(out) => made(out),
                None => is(word, name).map(Value::from),
            }
        }
    }
}

fn not_empty(separator: &str) -> Result<&str, Error> {
    if separator.is_empty() { Err(fail("empty separator")) } else { Ok(separator) }
}

fn one_letter(value: &Value, of: &str) -> Result<char, Error> {
    let mut letters = text_argument(value, of)?.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) => Ok(letter),
        _ => Err(fail(format!("{of}: what is filled with is one character"))),
    }
}

/// Without the letters, or white space, at its ends.
pub(in super::super) fn stripped<'a>(word: &'a str, name: &str, letters: Option<Value>) -> Result<&'a str, Error> {
    let letters = letters.filter(|letters| !letters.is_none());
    let letters = letters.as_ref().map(|letters| text_argument(letters, name)).transpose()?;
    let is_outside = |letter: char| letters.map_or_else(|| is_space(letter), |letters| letters.contains(letter));
    let word = if name == "rstrip" { word } else { word.trim_start_matches(is_outside) };
    Ok(if name == "lstrip" { word } else { word.trim_end_matches(is_outside) })
}

/// `replace`, with at most `count` places, or all if it is negative.
pub(in super::super) fn replaced(
    state: &State<'_, '_>,
    word: &str,
    old: &str,
    new: &str,
    count: i64,
) -> Result<String, Error> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let places = if old.is_empty() { word.chars().count() + 1 } else { word.matches(old).count() }.min(count);
    check_size(state, word.len().saturating_add(places.saturating_mul(new.len())))?;
    Ok(word.replacen(old, new, count))
}

fn join(state: &State<'_, '_>, separator: &str, args: Args) -> Result<Value, Error> {
    let [items] = args.bind("str.join()", [""])?;
    let mut out = String::new();
    for (at, item) in iterate(&required(items, "str.join()", "iterable")?)?.iter().enumerate() {
        let Some(part) = item.as_str() else {
            let found = Type::of(item).name();
            return Err(fail(format!("sequence item {at}: expected str instance, {found} found")));
        };
        out += if at > 0 { separator } else { "" };
        out += part;
        check_size(state, out.len())?;
    }
    Ok(Value::from(out))
}

/// A text filled up to a width; `name` tells at which side.
pub(in super::super) fn padded(
    state: &State<'_, '_>,
    word: &str,
    name: &str,
    width: i64,
    fill: char,
) -> Result<String, Error> {
    let (length, width) = (word.chars().count(), usize::try_from(width).unwrap_or(0));
    let missing = width.saturating_sub(length);
    check_size(state, word.len().saturating_add(missing.saturating_mul(fill.len_utf8())))?;
    let left = match name {
        "ljust" => 0,
        "rjust" => missing,
        // Of an odd number the larger half, if the width is odd.
        _ => missing / 2 + (missing & width & 1),
    };
    let side = |count: usize| fill.to_string().repeat(count);
    Ok(format!("{}{word}{}", side(left), side(missing - left)))
}

/// The methods that look for a text between two places.
fn search(word: &str, name: &str, args: Args) -> Result<Value, Error> {
    let of = format!("str.{name}()");
    let [wanted, start, stop] = args.bind(&of, ["", "", ""])?;
    let wanted = required(wanted, &of, "sub")?;
    let length = word.chars().count() as i64;
    let place = |bound: Option<Value>, otherwise: i64| match bound.filter(|bound| !bound.is_none()) {
        None => Ok(otherwise),
        Some(bound) => {
            let bound = size_argument(&bound, &of)?;
            Ok::<i64, Error>(if bound < 0 { bound.saturating_add(length).max(0) } else { bound })
        }
    };
    let (start, stop) = (place(start, 0)?, place(stop, length)?.min(length));
    let is_outside = start > stop || start > length;
    let offset = |place: i64| word.char_indices().nth(place as usize).map_or(word.len(), |(at, _)| at);
    let part = if is_outside { "" } else { &word[offset(start)..offset(stop)] };
    if matches!(name, "startswith" | "endswith") {
        let matches = |wanted: &str| {
            !is_outside && if name == "startswith" { part.starts_with(wanted) } else { part.ends_with(wanted) }
        };
        if Type::of(&wanted) != Type::Tuple {
            return Ok(Value::from(matches(text_argument(&wanted, &of)?)));
        }
        for one in wanted.try_iter()? {
            if matches(text_argument(&one, &of)?) {
                return Ok(Value::from(true));
            }
        }
        return Ok(Value::from(false));
    }
    let wanted = text_argument(&wanted, &of)?;
    if name == "count" {
        let count = match wanted.is_empty() {
            true => part.chars().count() + 1,
            false => part.matches(wanted).count(),
        };
        return Ok(Value::from(if is_outside { 0 } else { count }));
    }
    let found = if name.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) };
    match found.filter(|_| !is_outside).and_then(|at| part.get(..at)) {
        Some(before) => Ok(Value::from(start + before.chars().count() as i64)),
        None if name.ends_with("index") => Err(fail("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

/// The methods that change the case.
fn cased(word: &str, name: &str) -> Result<Option<String>, Error> {
    Ok(Some(match name {
        "lower" => word.to_lowercase(),
        "upper" => word.to_uppercase(),
        "casefold" if word.is_ascii() => word.to_lowercase(),
        "casefold" => return Err(not_supported("str.casefold() of letters beyond ASCII")),
        "capitalize" => capitalized(word),
        "swapcase" => {
            let swap = |letter: char| match letter.is_uppercase() {
                true => letter.to_lowercase().collect::<String>(),
                false => letter.to_uppercase().collect(),
            };
            word.chars().map(swap).collect()
        }
        "title" => {
            let (mut out, mut is_within) = (String::new(), false);
            for letter in word.chars() {
                if is_within {
                    out.extend(letter.to_lowercase());
                } else {
                    out += &title(letter);
                }
                is_within = letter.is_lowercase() || letter.is_uppercase();
            }
            out
        }
        _ => return Ok(None),
    }))
}

/// `capitalize`.
pub(in super::super) fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(title).unwrap_or_default();
    first + &letters.as_str().to_lowercase()
}

/// A letter as the first of a title: of those that stand for two, only the first becomes large.
fn title(letter: char) -> String {
    match letter {
        'ß' => "Ss".into(),
        'Ǆ'..='ǆ' => "ǅ".into(),
        'Ǉ'..='ǉ' => "ǈ".into(),
        'Ǌ'..='ǌ' => "ǋ".into(),
        'Ǳ'..='ǳ' => "ǲ".into(),
        letter => letter.to_uppercase().collect(),
    }
}

/// The methods that ask of what characters a text consists.
pub(in super::super) fn is(word: &str, name: &str) -> Result<bool, Error> {
    let all = |holds: fn(char) -> bool| Ok(!word.is_empty() && word.chars().all(holds));
    let has_case = || word.chars().any(|letter| letter.is_lowercase() || letter.is_uppercase());
    match name {
        "islower" => Ok(has_case() && !word.chars().any(char::is_uppercase)),
        "isupper" => Ok(has_case() && !word.chars().any(char::is_lowercase)),
        "istitle" => {
            let (mut is_within, mut has_any) = (false, false);
            for letter in word.chars() {
                let is_right = match (letter.is_uppercase(), letter.is_lowercase()) {
                    (true, _) => !is_within,
                    (_, true) => is_within,
                    _ => true,
                };
                if !is_right {
                    return Ok(false);
                }
                is_within = letter.is_uppercase() || letter.is_lowercase();
                has_any |= is_within;
            }
            Ok(has_any)
        }
        "isspace" => all(is_space),
        "isascii" => Ok(word.is_ascii()),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isprintable" => Ok(word.chars().all(python_text::is_printable)),
        "isidentifier" => {
            let starts = |letter: char| letter.is_alphabetic() || letter == '_';
            let continues = |letter: char| letter.is_alphanumeric() || letter == '_';
            Ok(word.starts_with(starts) && word.chars().all(continues))
        }
        // Which numbers of other scripts are digits is a table that is not here.
        _ if word.chars().any(|letter| !letter.is_ascii() && letter.is_numeric()) => {
            Err(not_supported(&format!("str.{name}() of numerals beyond ASCII")))
        }
        _ => all(|letter| letter.is_ascii_digit()),
    }
}
