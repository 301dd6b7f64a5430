//! Texts of a form: a regular expression, JSON, or JSON of a schema.
//!
//! [`Constraint`] masks the logits of tokens that no text of the form goes on with, and end tokens before a text is
//! complete. So every text is of the form, sampled or not, unless it ends early by its number of tokens.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | [`Grammar`] and [`Constraint`] |
//! | `terms.rs` | languages as terms with derivatives: a pushdown automaton over bytes |
//! | `bytes.rs` | sets of bytes, and characters in UTF-8 |
//! | `dfa.rs` | intersections and complements |
//! | `regex.rs`, `characters.rs` | regular expressions, kinds of characters in them |
//! | `json.rs`, `numbers.rs` | values of JSON, numbers within bounds |
//! | `schema/` | JSON Schema |
//! | `vocabulary.rs` | tokens by their bytes |
//! | `machine.rs` | the tokens that may follow, by state |
//!
//! Why terms with derivatives over bytes: ADR 61.

mod bytes;
mod characters;
mod dfa;
mod json;
mod machine;
mod numbers;
mod regex;
mod schema;
mod terms;
mod vocabulary;

pub use vocabulary::TokenTexts;

use crate::{Error, Result};
use json::Json;
use machine::Machine;
use model_center_base::file::printable;
use serde_json::Value;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use terms::{EMPTY, Term, Terms};

/// States of the automaton of a text that something is not in.
const MAX_STATES: usize = 4096;

/// The form of a text.
#[derive(Debug, Clone, PartialEq)]
pub enum Grammar {
    /// A text as it is.
    Text(String),
    /// A text that matches a regular expression as a whole.
    Regex(String),
    /// An object of JSON.
    JsonObject,
    /// A value of JSON that a schema allows.
    JsonSchema(Value),
    /// Any text without another in it.
    Without(String),
    /// One after the other.
    Sequence(Vec<Grammar>),
    /// One of several.
    Either(Vec<Grammar>),
    /// A form any number of times.
    Repeated(Box<Grammar>),
}

impl Grammar {
    /// Whether a constraint can be made of it, within the work that one constraint may need; `work` is what was done
    /// before, and has the work of this call added.
    pub fn is_supported(&self, work: &mut u64) -> bool {
        let mut terms = Terms::new();
        let json = Json::new(&mut terms);
        terms.work += *work;
        let is_supported = self.term(&mut terms, &json).is_ok_and(|term| term != EMPTY);
        *work = terms.work;
        is_supported
    }

    fn term(&self, terms: &mut Terms, json: &Json) -> Result<Term> {
        Ok(match self {
            Grammar::Text(text) => terms.text(text.as_bytes()),
            Grammar::Regex(pattern) => {
                let term = regex::term(terms, pattern, (regex::Spelling::Plain, false));
                term.map_err(|reason| {
                    let place = printable(pattern, 60);
                    Error::argument("regex", format!("{place:?}: {reason}"), "change the regular expression")
                })?
            }
            Grammar::JsonObject => json.object,
            Grammar::JsonSchema(schema) => schema::compile(terms, json, schema)?,
            Grammar::Without(text) => {
                let char = bytes::CharSet::all().term(terms);
                let (any, text) = (terms.repeat(char, 0, None), terms.text(text.as_bytes()));
                let with = terms.all(&[any, text, any]);
                let without = terms.not(with);
                let without = terms.both(any, without);
                let fix = "shorten it";
                let too_large = || Error::argument("grammar", "the text that is left out is too long", fix);
                terms.automaton(without, MAX_STATES).ok_or_else(too_large)?
            }
            Grammar::Sequence(all) => {
                let all = all.iter().map(|one| one.term(terms, json)).collect::<Result<Vec<_>>>()?;
                terms.all(&all)
            }
            Grammar::Either(all) => {
                let all = all.iter().map(|one| one.term(terms, json)).collect::<Result<Vec<_>>>()?;
                terms.either(all)
            }
            Grammar::Repeated(one) => {
                let one = one.term(terms, json)?;
                terms.repeat(one, 0, None)
            }
        })
    }
}

/// Continuations of some tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The text is not of the form yet.
    Open,
    /// The text is of the form, and may go on.
    Complete,
    /// The text is of the form, and nothing may follow.
    Final,
}

/// A form of texts for the tokens of a vocabulary. Sequences share it, with the masks that it remembers.
pub struct Constraint {
    grammar: Grammar,
    texts: Arc<TokenTexts>,
    machine: Mutex<Machine>,
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").field("grammar", &self.grammar).finish_non_exhaustive()
    }
}

impl PartialEq for Constraint {
    fn eq(&self, other: &Self) -> bool {
        self.grammar == other.grammar && (Arc::ptr_eq(&self.texts, &other.texts) || self.texts == other.texts)
    }
}

impl Constraint {
    /// The constraint of a form.
    ///
    /// # Errors
    /// [`Error::Argument`] for an expression or a schema with something that is not supported, or that no text matches.
    pub fn new(grammar: Grammar, texts: Arc<TokenTexts>) -> Result<Self> {
        let mut terms = Terms::new();
        let json = Json::new(&mut terms);
        let start = grammar.term(&mut terms, &json)?;
        if start == EMPTY {
            return Err(Error::argument("grammar", "no text is of this form", "correct it"));
        }
        Ok(Constraint { machine: Mutex::new(Machine::new(terms, start)), grammar, texts })
    }

    /// The form.
    pub fn grammar(&self) -> &Grammar {
        &self.grammar
    }

    /// Sets the logits `[V]` of what cannot follow `tokens` to minus infinity. `end_tokens` may follow a complete text.
    ///
    /// # Errors
    /// [`Error::Data`] where no token of the vocabulary can follow, or the work exceeds its limit.
    pub fn mask(&self, tokens: &[u32], end_tokens: &[u32], logits: &mut [f32]) -> Result<()> {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        machine.mask(&self.texts, tokens, end_tokens, logits)
    }

    /// Whether `tokens` are a text of the form.
    pub(crate) fn progress(&self, tokens: &[u32]) -> Result<Progress> {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        machine.progress(&self.texts, tokens)
    }
}
