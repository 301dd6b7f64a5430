//! Regular expressions as terms.
//!
//! Supported is what Python's `re` and ECMA 262 have in common and mean alike: characters, `.`, classes, groups,
//! alternatives, repetitions, and anchors at the ends. `\d`, `\w` and `\s` are of ASCII; `\D`, `\W` and `\S` are
//! characters that are none of these in Unicode either.

mod parser;
#[cfg(test)]
mod tests;

use self::parser::parse;
use super::bytes::CharSet;
use super::terms::{EPSILON, Term, Terms};
use std::collections::HashMap;

/// The longest expression, in bytes.
pub(super) const MAX_PATTERN: usize = 16 << 10;
/// Steps of work for an expression, besides what was done before.
const MAX_WORK: u64 = 20_000_000;

/// How characters are written in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// As themselves.
    Plain,
    /// Within a string of JSON, each in one way.
    Json,
}

/// Why an expression cannot be used.
type Refused = String;

/// A part of an expression.
#[derive(Debug, Clone, PartialEq)]
enum Ast {
    Chars(CharSet),
    Sequence(Vec<Ast>),
    Either(Vec<Ast>),
    Repeat(Box<Ast>, u32, Option<u32>),
    Start,
    End,
}

/// The texts that match an expression as a whole; with `is_search` those that have a match.
pub(super) fn term(terms: &mut Terms, pattern: &str, (spelling, is_search): (Spelling, bool)) -> Result<Term, Refused> {
    if pattern.len() > MAX_PATTERN {
        return Err(format!("it has {} bytes, more than {MAX_PATTERN}", pattern.len()));
    }
    let mut branches = Vec::new();
    flatten(parse(pattern)?, &mut branches);
    let limit = terms.work.saturating_add(MAX_WORK);
    let mut speller = Speller { terms, spelling, sets: HashMap::new(), limit };
    let any = speller.set(&CharSet::all());
    let any = speller.terms.repeat(any, 0, None);
    let mut found = Vec::new();
    for mut parts in branches {
        let starts = parts.iter().take_while(|part| **part == Ast::Start).count();
        parts.drain(..starts);
        let ends = parts.iter().rev().take_while(|part| **part == Ast::End).count();
        parts.truncate(parts.len() - ends);
        let inner = speller.spell(&Ast::Sequence(parts))?;
        let around = |is_open: bool| if is_search && is_open { any } else { EPSILON };
        found.push(speller.terms.all(&[around(starts == 0), inner, around(ends == 0)]));
    }
    Ok(speller.terms.either(found))
}

/// The alternatives of an expression, also of one in a group, as sequences.
fn flatten(ast: Ast, branches: &mut Vec<Vec<Ast>>) {
    match ast {
        Ast::Either(all) => all.into_iter().for_each(|branch| flatten(branch, branches)),
        Ast::Sequence(mut parts) => match (parts.len(), parts.pop()) {
            (1, Some(one @ (Ast::Either(_) | Ast::Sequence(_)))) => flatten(one, branches),
            (_, last) => {
                parts.extend(last);
                branches.push(parts);
            }
        },
        one => branches.push(vec![one]),
    }
}

/// The bytes of a character.
fn spelled(c: char, spelling: Spelling) -> Vec<u8> {
    let mut text = match spelling {
        Spelling::Plain => return c.to_string().into_bytes(),
        Spelling::Json => serde_json::Value::from(c.to_string()).to_string().into_bytes(),
    };
    // Without the quotation marks.
    text.pop();
    text.drain(..1);
    text
}

/// A character of a set.
pub(super) fn char_term(terms: &mut Terms, set: &CharSet, spelling: Spelling) -> Term {
    if spelling == Spelling::Plain {
        return set.term(terms);
    }
    let escaped = CharSet::new(vec![(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]);
    let mut found = vec![set.without(&escaped).term(terms)];
    for c in set.and(&escaped).chars() {
        found.push(terms.text(&spelled(c, spelling)));
    }
    terms.either(found)
}

/// Makes terms of expressions.
struct Speller<'t> {
    terms: &'t mut Terms,
    spelling: Spelling,
    /// The terms of sets of characters: the ones of Unicode have hundreds of ranges.
    sets: HashMap<CharSet, Term>,
    /// The work at which an expression is refused.
    limit: u64,
}

impl Speller<'_> {
    fn set(&mut self, set: &CharSet) -> Term {
        if let Some(known) = self.sets.get(set) {
            return *known;
        }
        let term = char_term(self.terms, set, self.spelling);
        self.sets.insert(set.clone(), term);
        term
    }

    fn spell(&mut self, ast: &Ast) -> Result<Term, Refused> {
        if self.terms.work > self.limit {
            return Err("it needs too much work".into());
        }
        match ast {
            Ast::Chars(set) => Ok(match set.single() {
                Some(c) => self.terms.text(&spelled(c, self.spelling)),
                None => self.set(set),
            }),
            Ast::Sequence(parts) => {
                let (mut found, mut run) = (Vec::new(), Vec::new());
                for part in parts {
                    match part {
                        Ast::Chars(set) if set.single().is_some() => {
                            run.extend(set.single().into_iter().flat_map(|c| spelled(c, self.spelling)));
                        }
                        _ => {
                            found.push(self.terms.text(&std::mem::take(&mut run)));
                            found.push(self.spell(part)?);
                        }
                    }
                }
                found.push(self.terms.text(&run));
                Ok(self.terms.all(&found))
            }
            Ast::Either(all) => {
                let all = all.iter().map(|ast| self.spell(ast)).collect::<Result<Vec<_>, _>>()?;
                Ok(self.terms.either(all))
            }
            Ast::Repeat(inner, least, most) => {
                let inner = self.spell(inner)?;
                Ok(self.terms.repeat(inner, *least, *most))
            }
            Ast::Start | Ast::End => Err("an anchor is not at an end of the expression".into()),
        }
    }
}
