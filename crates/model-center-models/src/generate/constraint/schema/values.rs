//! Strings, numbers, and values that are listed.

use super::super::bytes::CharSet;
use super::super::json::string_of;
use super::super::numbers::{self, Bound};
use super::super::regex::{self, Spelling, char_term};
use super::super::terms::Term;
use super::{Compiler, TYPES, refused};
use crate::Result;
use model_center_base::file::printable;
use serde_json::{Map, Value};

/// Values that are listed.
const MAX_LISTED: usize = 4096;
/// States of an automaton of a pattern with lengths.
const MAX_STATES: usize = 8192;
/// The largest `multipleOf`.
const MAX_MULTIPLE: u32 = 1000;
/// Days of months from the year 1 on; a 29th of February is left out.
const DATE: &str = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-\
                    (?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|\
                    (?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
const TIME: &str =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
const OCTET: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";

/// The expression of a format.
fn format_pattern(name: &str) -> Option<String> {
    Some(match name {
        "date" => DATE.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("{DATE}T{TIME}"),
        "uuid" => "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}".to_owned(),
        "ipv4" => format!("{OCTET}(?:\\.{OCTET}){{3}}"),
        "email" => {
            "[A-Za-z0-9_+-]+(?:\\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*(?:\\.[A-Za-z0-9]+)+".to_owned()
        }
        _ => return None,
    })
}

impl Compiler<'_> {
    pub(super) fn string(&mut self, fields: &Map<String, Value>, pointer: &str) -> Result<Term> {
        let least = self.count_of(fields, "minLength", pointer)?.unwrap_or(0);
        let most = self.count_of(fields, "maxLength", pointer)?;
        if most.is_some_and(|most| most < least) {
            return Err(refused(pointer, "\"minLength\" is above \"maxLength\"", "correct one of the two"));
        }
        let text = |name: &str| match fields.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(refused(pointer, format!("{name:?} is not a text"), "correct it")),
        };
        let (pattern, format) = (text("pattern")?, text("format")?);
        let mut all = Vec::new();
        if let Some(pattern) = pattern {
            let term = regex::term(self.terms, pattern, (Spelling::Json, true));
            all.push(term.map_err(|reason| {
                let reason = format!("the pattern {:?}: {reason}", printable(pattern, 60));
                refused(pointer, reason, "change the pattern")
            })?);
        }
        if let Some(name) = format {
            let known = format_pattern(name).ok_or_else(|| {
                let reason = format!("the format {:?} is not supported", printable(name, 60));
                refused(pointer, reason, "use date, time, date-time, uuid, ipv4 or email, or a pattern")
            })?;
            let term = regex::term(self.terms, &known, (Spelling::Json, false));
            all.push(term.map_err(|reason| refused(pointer, reason, "report this"))?);
        }
        if all.is_empty() {
            return Ok(string_of(self.terms, self.json.char, (least, most)));
        }
        if (least, most) != (0, None) {
            let char = char_term(self.terms, &CharSet::all(), Spelling::Json);
            all.push(self.terms.repeat(char, least, most));
        }
        let inner = match all.as_slice() {
            [one] => *one,
            _ => {
                let both = all.iter().copied().reduce(|one, other| self.terms.both(one, other));
                let both = both.unwrap_or(super::super::terms::EMPTY);
                self.terms.automaton(both, MAX_STATES).ok_or_else(|| {
                    let reason = "the pattern with these lengths or this format needs too many states";
                    refused(pointer, reason, "put the lengths into the pattern")
                })?
            }
        };
        Ok(string_of(self.terms, inner, (1, Some(1))))
    }

    pub(super) fn number(&mut self, is_integer: bool, fields: &Map<String, Value>, pointer: &str) -> Result<Term> {
        let bound = |name: &str, is_exclusive: bool| {
            let Some(value) = fields.get(name) else { return Ok(None) };
            let Value::Number(number) = value else {
                return Err(refused(pointer, format!("{name:?} is not a number"), "correct it"));
            };
            Bound::of(number, is_exclusive).map(Some).ok_or_else(|| {
                refused(pointer, format!("{name:?} has more than 15 digits"), "give a number with fewer")
            })
        };
        let least = [bound("minimum", false)?, bound("exclusiveMinimum", true)?];
        let most = [bound("maximum", false)?, bound("exclusiveMaximum", true)?];
        let [least, most] = [least, most].map(|bounds| bounds.into_iter().flatten().collect::<Vec<_>>());
        let multiple = match fields.get("multipleOf") {
            None => None,
            Some(value) => {
                let multiple =
                    value.as_f64().filter(|n| n.fract() == 0.0 && (1.0..=f64::from(MAX_MULTIPLE)).contains(n));
                let multiple = multiple.filter(|multiple| is_integer || *multiple == 1.0);
                Some(multiple.ok_or_else(|| {
                    let reason = format!("\"multipleOf\" is supported for integers, from 1 to {MAX_MULTIPLE}");
                    refused(pointer, reason, "leave it out, or check the result for it")
                })? as u32)
            }
        };
        // A number that is a multiple of 1 is an integer.
        let is_integer = is_integer || multiple.is_some();
        if least.is_empty() && most.is_empty() && multiple.is_none_or(|multiple| multiple == 1) {
            return Ok(if is_integer { self.json.integer } else { self.json.number });
        }
        let term = numbers::within(self.terms, self.json, (is_integer, multiple), (&least, &most));
        term.map_err(|reason| refused(pointer, reason, "correct the bounds"))
    }

    /// Values of `enum` or `const` that are of the schema's type.
    pub(super) fn listed_values(
        &mut self,
        (name, listed): (&str, &Value),
        fields: &Map<String, Value>,
        pointer: &str,
    ) -> Result<Term> {
        let values = match (name, listed) {
            ("const", value) => std::slice::from_ref(value),
            (_, Value::Array(values)) if !values.is_empty() && values.len() <= MAX_LISTED => values.as_slice(),
            _ => {
                let reason = format!("\"enum\" is not a list of 1 to {MAX_LISTED} values");
                return Err(refused(pointer, reason, "correct it"));
            }
        };
        let types = match fields.get("type") {
            None => TYPES.to_vec(),
            Some(_) => super::types(fields, pointer)?,
        };
        let texts: Vec<String> = values.iter().filter(|value| is_of(value, &types)).map(Value::to_string).collect();
        if texts.is_empty() {
            return Err(refused(pointer, format!("no value of {name:?} is of its type"), "correct one of the two"));
        }
        let texts: Vec<Term> = texts.iter().map(|text| self.terms.text(text.as_bytes())).collect();
        Ok(self.terms.either(texts))
    }
}

/// Whether a value is of one of these types.
pub(super) fn is_of(value: &Value, types: &[&str]) -> bool {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) => {
            let is_integer = number.as_f64().is_some_and(|number| number.fract() == 0.0);
            if is_integer && types.contains(&"integer") { "integer" } else { "number" }
        }
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    types.contains(&kind)
}
