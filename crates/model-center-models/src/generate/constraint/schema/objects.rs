//! Objects and arrays.

use super::super::bytes::CharSet;
use super::super::json::string_of;
use super::super::regex::{Spelling, char_term};
use super::super::terms::{EMPTY, EPSILON, Term};
use super::{Compiler, refused};
use crate::Result;
use model_center_base::file::printable;
use serde_json::{Map, Value};

/// Properties of an object, and items with schemas of their own.
const MAX_PROPERTIES: usize = 512;
/// States of the automaton of names that further properties may have.
const MAX_NAME_STATES: usize = 20_000;

/// A property: its member of the object, and whether it is required.
type Property = (Term, bool);

impl<'c> Compiler<'c> {
    /// A count of a keyword.
    pub(super) fn count_of(&self, fields: &Map<String, Value>, name: &str, pointer: &str) -> Result<Option<u32>> {
        let Some(value) = fields.get(name) else { return Ok(None) };
        // 3.0 is an integer in JSON Schema.
        let count = value.as_u64().or(value.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0).map(|n| n as u64));
        let count = count.and_then(|count| u32::try_from(count).ok());
        count.map(Some).ok_or_else(|| refused(pointer, format!("{name:?} is not a count"), "give 0 or more"))
    }

    /// Objects: the properties in the order of the schema, then further ones.
    pub(super) fn object(&mut self, fields: &'c Map<String, Value>, pointer: &str) -> Result<Term> {
        let none = Map::new();
        let properties = match fields.get("properties") {
            None => None,
            Some(Value::Object(properties)) => Some(properties),
            Some(_) => return Err(refused(pointer, "\"properties\" is not an object", "correct it")),
        };
        let required = required(fields, pointer)?;
        // Names that are required and not described are further properties.
        let described = properties.iter().flat_map(|properties| properties.keys().map(String::as_str));
        let mut names: Vec<&str> = described.collect();
        names.extend(required.iter().filter(|name| !properties.unwrap_or(&none).contains_key(**name)));
        if names.len() > MAX_PROPERTIES {
            return Err(refused(pointer, format!("there are more than {MAX_PROPERTIES} properties"), "give fewer"));
        }
        // Where they are not mentioned, further ones are generated if no property is described.
        let others = match (fields.get("additionalProperties"), properties) {
            (Some(Value::Bool(false)), _) => EMPTY,
            (Some(schema), _) => self.schema(schema, &format!("{pointer}/additionalProperties"))?,
            (None, Some(properties)) if !properties.is_empty() => EMPTY,
            (None, _) => self.json.any,
        };
        let mut members: Vec<Property> = Vec::with_capacity(names.len());
        for name in &names {
            let value = match properties.and_then(|properties| properties.get(*name)) {
                Some(schema) => self.schema(schema, &format!("{pointer}/properties/{name}"))?,
                None if fields.contains_key("additionalProperties") => others,
                None => self.json.any,
            };
            let is_required = required.contains(name);
            if value == EMPTY && is_required {
                let reason = format!("the property {:?} is required, and no value is allowed", printable(name, 60));
                return Err(refused(pointer, reason, "correct one of the two"));
            }
            let name = self.terms.text(Value::from(*name).to_string().as_bytes());
            members.push((self.json.member(self.terms, name, value), is_required));
        }
        self.check_number_of_properties(fields, &members, others != EMPTY, pointer)?;
        let other = match others {
            EMPTY => EMPTY,
            value => {
                let name = self.other_name(&names, pointer)?;
                self.json.member(self.terms, name, value)
            }
        };
        Ok(self.object_of(&members, other))
    }

    /// An object of these properties, and then of others.
    fn object_of(&mut self, members: &[Property], other: Term) -> Term {
        let json = self.json;
        let (open, close) = (self.terms.text(b"{"), self.terms.text(b"}"));
        let further_other = json.further(self.terms, other);
        let more = self.terms.repeat(further_other, 0, None);
        let end = self.terms.sequence(json.gap, close);
        // What may follow a property, and what may follow none.
        let mut after = self.terms.sequence(more, end);
        let first_other = self.terms.all(&[json.gap, other, after]);
        let empty = self.terms.sequence(json.gap, close);
        let mut before = self.terms.either([empty, first_other]);
        for (member, is_required) in members.iter().rev() {
            let first = self.terms.all(&[json.gap, *member, after]);
            let further = json.further(self.terms, *member);
            let further = self.terms.sequence(further, after);
            if *is_required {
                (before, after) = (first, further);
            } else {
                before = self.terms.either([first, before]);
                after = self.terms.either([further, after]);
            }
        }
        self.terms.sequence(open, before)
    }

    /// A name of a further property: one that no property has, spelled without escapes.
    fn other_name(&mut self, names: &[&str], pointer: &str) -> Result<Term> {
        if names.is_empty() {
            return Ok(self.json.string);
        }
        let plain = CharSet::all().without(&CharSet::new(vec![(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]));
        let char = char_term(self.terms, &plain, Spelling::Plain);
        let any = string_of(self.terms, char, (0, None));
        let own: Vec<Term> =
            names.iter().map(|name| self.terms.text(Value::from(*name).to_string().as_bytes())).collect();
        let own = self.terms.either(own);
        let others = self.terms.not(own);
        let others = self.terms.both(any, others);
        self.terms.automaton(others, MAX_NAME_STATES).ok_or_else(|| {
            refused(pointer, "the names of its properties are too long", "set additionalProperties to false")
        })
    }

    /// `minProperties` and `maxProperties`, which are followed where they have no effect.
    fn check_number_of_properties(
        &self,
        fields: &Map<String, Value>,
        members: &[Property],
        has_others: bool,
        pointer: &str,
    ) -> Result<()> {
        let least = self.count_of(fields, "minProperties", pointer)?;
        let most = self.count_of(fields, "maxProperties", pointer)?;
        let required = members.iter().filter(|(_, is_required)| *is_required).count();
        let fix = "require properties by name, and set additionalProperties to false";
        if least.is_some_and(|least| least as usize > required) {
            return Err(refused(pointer, "\"minProperties\" above the number of required ones is not supported", fix));
        }
        if most.is_some_and(|most| has_others || (most as usize) < members.len()) {
            return Err(refused(pointer, "\"maxProperties\" below the number of possible ones is not supported", fix));
        }
        Ok(())
    }

    pub(super) fn array(&mut self, fields: &'c Map<String, Value>, pointer: &str) -> Result<Term> {
        let least = self.count_of(fields, "minItems", pointer)?.unwrap_or(0);
        let most = self.count_of(fields, "maxItems", pointer)?;
        if most.is_some_and(|most| most < least) {
            return Err(refused(pointer, "\"minItems\" is above \"maxItems\"", "correct one of the two"));
        }
        let first = match fields.get("prefixItems") {
            None => Vec::new(),
            Some(Value::Array(items)) if items.len() <= MAX_PROPERTIES => {
                let schema = |(at, item): (usize, &'c Value)| self.schema(item, &format!("{pointer}/prefixItems/{at}"));
                items.iter().enumerate().map(schema).collect::<Result<Vec<_>>>()?
            }
            Some(_) => {
                let reason = format!("\"prefixItems\" is not a list of at most {MAX_PROPERTIES} schemas");
                return Err(refused(pointer, reason, "correct it"));
            }
        };
        let item = match fields.get("items") {
            None => self.json.any,
            Some(Value::Array(_)) => {
                return Err(refused(pointer, "\"items\" as a list is not supported", "name the list \"prefixItems\""));
            }
            Some(schema) => self.schema(schema, &format!("{pointer}/items"))?,
        };
        if first.is_empty() {
            return match item {
                EMPTY if least > 0 => Ok(EMPTY),
                EMPTY => Ok(self.json.listed(self.terms, (b"[", b"]"), EPSILON, (0, Some(0)))),
                item => Ok(self.json.listed(self.terms, (b"[", b"]"), item, (least, most))),
            };
        }
        Ok(self.tuple(&first, item, (least, most)))
    }

    /// An array whose first items have schemas of their own.
    fn tuple(&mut self, first: &[Term], item: Term, (least, most): (u32, Option<u32>)) -> Term {
        let json = self.json;
        let (open, close) = (self.terms.text(b"["), self.terms.text(b"]"));
        let end = self.terms.sequence(json.gap, close);
        let own = first.len() as u32;
        let further = json.further(self.terms, item);
        let (more_least, more_most) = (least.saturating_sub(own), most.map(|most| most.saturating_sub(own)));
        let more = self.terms.repeat(further, more_least, more_most);
        let mut rest = self.terms.sequence(more, end);
        for (at, item) in (0..own).zip(first).rev() {
            let item = match at {
                0 => self.terms.sequence(json.gap, *item),
                _ => json.further(self.terms, *item),
            };
            let with = self.terms.sequence(item, rest);
            let with = if most.is_some_and(|most| most <= at) { EMPTY } else { with };
            rest = if at >= least { self.terms.either([end, with]) } else { with };
        }
        self.terms.sequence(open, rest)
    }
}

fn required<'f>(fields: &'f Map<String, Value>, pointer: &str) -> Result<Vec<&'f str>> {
    let wrong = || refused(pointer, "\"required\" is not a list of names", "correct it");
    match fields.get("required") {
        None => Ok(Vec::new()),
        Some(Value::Array(names)) => {
            let mut names = names.iter().map(|name| name.as_str().ok_or_else(wrong)).collect::<Result<Vec<_>>>()?;
            let mut seen = std::collections::HashSet::new();
            names.retain(|name| seen.insert(*name));
            Ok(names)
        }
        Some(_) => Err(wrong()),
    }
}
