//! JSON Schema as terms.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | [`compile`]: references, alternatives, types |
//! | `objects.rs` | objects and arrays |
//! | `values.rs` | strings, numbers, and values that are listed |
//! | `apart.rs` | whether two schemas have no value in common, for `oneOf` |
//!
//! The texts are a part of the values that a schema allows: properties come in its order, and each character of a
//! string with a pattern is written in one way. A keyword that is not supported is refused by name; `docs/serve.md`
//! lists what is.

mod apart;
mod objects;
mod values;

use super::json::Json;
use super::terms::{EMPTY, Node, Term, Terms};
use crate::{Error, Result};
use model_center_base::file::printable;
use serde_json::{Map, Value};
use std::cell::Cell;
use std::collections::HashMap;

/// References that lead to each other without a bracket between them.
const MAX_CHAIN: usize = 32;
/// Subschemas, counting one again for each reference that leads to another place.
const MAX_SCHEMAS: usize = 20_000;
/// Steps of work of all schemas together, as for the automata of bounds and lengths: about a second.
const MAX_WORK: u64 = 100_000_000;
/// Keywords that change no result.
const ANNOTATIONS: [&str; 15] = [
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "$anchor",
    "title",
    "description",
    "default",
    "example",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "discriminator",
];
const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
/// The keywords of each type besides, from which a type is known where none is stated.
const OF_OBJECTS: [&str; 5] = ["properties", "required", "additionalProperties", "minProperties", "maxProperties"];
const OF_ARRAYS: [&str; 4] = ["items", "prefixItems", "minItems", "maxItems"];
const OF_STRINGS: [&str; 4] = ["pattern", "minLength", "maxLength", "format"];
const OF_NUMBERS: [&str; 5] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"];

/// The texts of the values that a schema allows.
///
/// # Errors
/// [`Error::Argument`] with the place in the schema for what is not supported, or allows no value.
pub(super) fn compile(terms: &mut Terms, json: &Json, schema: &Value) -> Result<Term> {
    let (rules, comparisons) = (HashMap::new(), Cell::new(apart::MAX_COMPARISONS));
    let mut compiler = Compiler { terms, json, root: schema, rules, open: Vec::new(), count: 0, comparisons };
    let term = compiler.schema(schema, "#")?;
    while let Some((rule, pointer)) = compiler.open.pop() {
        let target = compiler.target(&pointer)?;
        let body = compiler.schema(target, &pointer)?;
        if let Some(place) = compiler.terms.rules.get_mut(rule as usize) {
            *place = body;
        }
    }
    compiler.check_rules(term)?;
    Ok(term)
}

fn refused(pointer: &str, reason: impl std::fmt::Display, fix: &str) -> Error {
    Error::argument("json_schema", format!("at {}, {reason}", printable(pointer, 120)), fix)
}

struct Compiler<'c> {
    terms: &'c mut Terms,
    json: &'c Json,
    root: &'c Value,
    /// By the pointers that references have: the number and the term.
    rules: HashMap<String, (u32, Term)>,
    /// Rules without a term yet.
    open: Vec<(u32, String)>,
    count: usize,
    /// Comparisons of schemas that are left.
    comparisons: Cell<usize>,
}

impl<'c> Compiler<'c> {
    fn schema(&mut self, schema: &'c Value, pointer: &str) -> Result<Term> {
        self.count += 1;
        if self.count > MAX_SCHEMAS {
            return Err(refused(pointer, format!("there are more than {MAX_SCHEMAS} schemas"), "give a smaller one"));
        }
        if self.terms.work > MAX_WORK {
            return Err(refused(pointer, "the schema needs too much work", "give a smaller one, with fewer bounds"));
        }
        let fields = match schema {
            Value::Bool(true) => return Ok(self.json.any),
            Value::Bool(false) => return Ok(EMPTY),
            Value::Object(fields) => fields,
            _ => return Err(refused(pointer, "the schema is not an object, true or false", "correct it")),
        };
        let is_other = |name: &&String| !ANNOTATIONS.contains(&name.as_str()) && !name.starts_with("x-");
        let names: Vec<&str> = fields.keys().filter(is_other).map(String::as_str).collect();
        let alone =
            |name: &str, beside: &[&str]| match names.iter().find(|other| **other != name && !beside.contains(other)) {
                None => Ok(()),
                Some(other) => {
                    let reason = format!("{:?} beside {name:?} is not supported", printable(other, 60));
                    Err(refused(pointer, reason, "state it in the other schema"))
                }
            };
        if fields.contains_key("$id") && pointer != "#" {
            let reason = "an \"$id\" within the schema, which changes what references mean, is not supported";
            return Err(refused(pointer, reason, "leave it out, and refer to the place as #/$defs/Name"));
        }
        if let Some(reference) = fields.get("$ref") {
            alone("$ref", &[])?;
            return self.reference(reference, pointer);
        }
        for name in ["anyOf", "oneOf", "allOf"] {
            if let Some(branches) = fields.get(name) {
                alone(name, &["type"])?;
                return self.branches((name, branches), fields.get("type"), pointer);
            }
        }
        for name in ["enum", "const"] {
            if let Some(listed) = fields.get(name) {
                alone(name, &["type"])?;
                return self.listed_values((name, listed), fields, pointer);
            }
        }
        let types = types(fields, pointer)?;
        self.check_keywords(&names, &types, pointer)?;
        let all = types.iter().map(|kind| self.of_type(kind, fields, pointer)).collect::<Result<Vec<_>>>()?;
        Ok(self.terms.either(all))
    }

    /// Refuses keywords that are not supported, or are of no type of the schema.
    fn check_keywords(&self, names: &[&str], types: &[&str], pointer: &str) -> Result<()> {
        for name in names.iter().filter(|name| **name != "type") {
            let of_types: &[&str] = match *name {
                name if OF_OBJECTS.contains(&name) => &["object"],
                name if OF_ARRAYS.contains(&name) => &["array"],
                name if OF_STRINGS.contains(&name) => &["string"],
                name if OF_NUMBERS.contains(&name) => &["integer", "number"],
                other => {
                    let reason = format!("the keyword {:?} is not supported", printable(other, 60));
                    return Err(refused(pointer, reason, "leave it out, or check the result for it"));
                }
            };
            if !of_types.iter().any(|kind| types.contains(kind)) {
                let reason = format!("{name:?} has no effect on the type {}", types.join(" or "));
                return Err(refused(pointer, reason, "leave it out, or correct the type"));
            }
        }
        Ok(())
    }

    fn of_type(&mut self, kind: &str, fields: &'c Map<String, Value>, pointer: &str) -> Result<Term> {
        match kind {
            "null" => Ok(self.json.null),
            "boolean" => Ok(self.json.boolean),
            "integer" | "number" => self.number(kind == "integer", fields, pointer),
            "string" => self.string(fields, pointer),
            "array" => self.array(fields, pointer),
            _ => self.object(fields, pointer),
        }
    }

    /// The rule of a reference within the schema.
    fn reference(&mut self, reference: &'c Value, pointer: &str) -> Result<Term> {
        let fix = "refer to a place of this schema, such as #/$defs/Name";
        let name = reference.as_str().filter(|name| *name == "#" || name.starts_with("#/"));
        let name =
            name.ok_or_else(|| refused(pointer, format!("$ref is {}", printable(&reference.to_string(), 60)), fix))?;
        if let Some((_, term)) = self.rules.get(name) {
            return Ok(*term);
        }
        self.target(name)?;
        let (rule, term) = self.terms.new_rule();
        self.rules.insert(name.to_owned(), (rule, term));
        self.open.push((rule, name.to_owned()));
        Ok(term)
    }

    /// The schema at a pointer (RFC 6901).
    fn target(&self, pointer: &str) -> Result<&'c Value> {
        let mut target = self.root;
        for part in pointer.split('/').skip(1) {
            let name = decoded(part).replace("~1", "/").replace("~0", "~");
            let found = match target {
                Value::Object(fields) => fields.get(&name),
                Value::Array(items) => name.parse::<usize>().ok().and_then(|at| items.get(at)),
                _ => None,
            };
            target = found.ok_or_else(|| refused(pointer, "there is no schema", "correct the $ref"))?;
        }
        Ok(target)
    }

    fn branches(
        &mut self,
        (name, branches): (&str, &'c Value),
        kind: Option<&'c Value>,
        pointer: &str,
    ) -> Result<Term> {
        let branches = branches.as_array().filter(|branches| !branches.is_empty());
        let branches =
            branches.ok_or_else(|| refused(pointer, format!("{name:?} is not a list of schemas"), "correct it"))?;
        if name == "allOf" && branches.len() > 1 {
            return Err(refused(pointer, "\"allOf\" of several schemas is not supported", "write them as one schema"));
        }
        if let Some(kind) = kind {
            let is_same = |branch: &Value| branch.get("type") == Some(kind);
            if !branches.iter().all(is_same) {
                let reason = format!("\"type\" beside {name:?} is supported where each schema has the same");
                return Err(refused(pointer, reason, "state the type in each of them"));
            }
        }
        if name == "oneOf" {
            for (at, one) in branches.iter().enumerate() {
                if let Some(other) = branches.iter().skip(at + 1).position(|other| !self.are_apart(one, other, 0)) {
                    let reason =
                        format!("the schemas {at} and {} of \"oneOf\" may have values in common", at + 1 + other);
                    let fix = "use \"anyOf\", or give each a required property with a \"const\" of its own";
                    return Err(refused(pointer, reason, fix));
                }
            }
        }
        let all =
            branches.iter().enumerate().map(|(at, branch)| self.schema(branch, &format!("{pointer}/{name}/{at}")));
        let all = all.collect::<Result<Vec<_>>>()?;
        Ok(self.terms.either(all))
    }

    /// Refuses references that lead to themselves, or for ever on, and a schema without a value.
    fn check_rules(&self, start: Term) -> Result<()> {
        let mut bodies: Vec<(&str, Term)> = self
            .rules
            .iter()
            .filter_map(|(name, (rule, _))| Some((name.as_str(), *self.terms.rules.get(*rule as usize)?)))
            .collect();
        bodies.sort_unstable();
        let numbers: HashMap<u32, &str> = self.rules.iter().map(|(name, (rule, _))| (*rule, name.as_str())).collect();
        let mut work = self.terms.work;
        let check_work = |work: u64, name: &str| match work > MAX_WORK {
            true => Err(refused(name, "the schema needs too much work", "give a smaller one, with fewer references")),
            false => Ok(()),
        };
        for (name, body) in &bodies {
            let (mut chain, mut level) = (0, self.first_rules(*body));
            while !level.is_empty() {
                chain += 1;
                work += level.len() as u64;
                check_work(work, name)?;
                if chain > MAX_CHAIN {
                    let reason = "references lead to each other without a value between them";
                    return Err(refused(name, reason, "put them into an object or an array"));
                }
                let mut next: Vec<u32> = level
                    .iter()
                    .flat_map(|rule| self.first_rules(self.terms.rules.get(*rule as usize).copied().unwrap_or(EMPTY)))
                    .collect();
                next.sort_unstable();
                next.dedup();
                level = next;
            }
        }
        let finite = self.rules_with_an_end(&mut work, &check_work)?;
        if let Some(rule) = finite.iter().position(|is_finite| !is_finite) {
            let name = numbers.get(&(rule as u32)).copied().unwrap_or("#");
            return Err(refused(
                name,
                "no finite value is allowed",
                "let the recursion end, as by a property that is not required",
            ));
        }
        match start {
            EMPTY => Err(refused("#", "no value is allowed", "correct the schema")),
            _ => Ok(()),
        }
    }

    /// The rules with which a term may begin.
    fn first_rules(&self, term: Term) -> Vec<u32> {
        match self.terms.node(term) {
            Node::Rule(rule) => vec![*rule],
            Node::Either(all) => all.iter().flat_map(|term| self.first_rules(*term)).collect(),
            // What precedes the others of a sequence is never empty, as a value has a first byte.
            Node::Sequence(head, _) => self.first_rules(*head),
            _ => Vec::new(),
        }
    }

    /// Which rules have a string, of finite length.
    fn rules_with_an_end(&self, work: &mut u64, check: &dyn Fn(u64, &str) -> Result<()>) -> Result<Vec<bool>> {
        let mut finite = vec![false; self.terms.rules.len()];
        loop {
            *work += self.terms.len() as u64;
            check(*work, "#")?;
            let has_end = self.terms.with_an_end(&finite);
            let of_rule = |term: &Term| has_end.get(term.0 as usize).copied().unwrap_or(false);
            let next: Vec<bool> = self.terms.rules.iter().map(of_rule).collect();
            if next == finite {
                return Ok(finite);
            }
            finite = next;
        }
    }
}

/// A part of a reference without percent signs before two digits, as references are URIs.
fn decoded(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = after.get(if byte.is_some() { 2 } else { 0 }..).unwrap_or_default();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The types of a schema: as stated, or those that its keywords are of, or all.
fn types<'f>(fields: &'f Map<String, Value>, pointer: &str) -> Result<Vec<&'f str>> {
    let wrong = || refused(pointer, "\"type\" is not a type of JSON Schema or a list of them", "correct it");
    let known = |kind: &'f Value| kind.as_str().filter(|kind| TYPES.contains(kind)).ok_or_else(wrong);
    match fields.get("type") {
        Some(Value::Array(kinds)) if !kinds.is_empty() => kinds.iter().map(known).collect(),
        Some(kind) => Ok(vec![known(kind)?]),
        None => {
            let has = |names: &[&str]| names.iter().any(|name| fields.contains_key(*name));
            let of_keywords = [
                (has(&OF_OBJECTS), "object"),
                (has(&OF_ARRAYS), "array"),
                (has(&OF_STRINGS), "string"),
                (has(&OF_NUMBERS), "number"),
            ];
            let found: Vec<&str> = of_keywords.iter().filter(|(has, _)| *has).map(|(_, kind)| *kind).collect();
            Ok(if found.is_empty() { vec!["null", "boolean", "number", "string", "array", "object"] } else { found })
        }
    }
}
