//! Languages of byte strings as terms, and their derivatives: what may follow a byte.
//!
//! A term is interned, so that equal terms have equal numbers and a number is a state of an automaton over bytes. The
//! derivative of a term by a byte is the language of what follows that byte. Rules refer to themselves through other
//! terms; the sequence that a derivative is left with is the stack of a pushdown automaton. Counted repetitions stay
//! counters, so that `a{1000}` has no thousand copies until they are reached.
//!
//! Source: Brzozowski, "Derivatives of Regular Expressions", 1964.

use super::bytes::ByteSet;
use super::dfa::Dfa;
use std::collections::HashMap;
use std::sync::Arc;

/// The number of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Term(pub(super) u32);

/// No string.
pub(super) const EMPTY: Term = Term(0);
/// The empty string alone.
pub(super) const EPSILON: Term = Term(1);

/// A term by its parts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Node {
    Empty,
    Epsilon,
    /// A byte of a set.
    Bytes(ByteSet),
    /// The bytes of a text from an offset on.
    Text(Arc<[u8]>, u32),
    /// One after the other; the first is not a sequence.
    Sequence(Term, Term),
    /// One of several, in ascending order.
    Either(Arc<[Term]>),
    /// A term from a least to a most number of times.
    Repeat(Term, u32, Option<u32>),
    /// A rule by its number.
    Rule(u32),
    /// A state of an automaton from which a string is accepted.
    State(u32, u32),
    /// Intersection; in automata that are made of it alone ([`Dfa`]).
    Both(Term, Term),
    /// All strings that are not in a term; as `Both`.
    Not(Term),
}

impl Node {
    /// Parts beyond what each term has.
    fn parts(&self) -> usize {
        match self {
            Node::Either(all) => all.len(),
            _ => 0,
        }
    }
}

/// All terms.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    nodes: Vec<Node>,
    /// Whether the empty string is in a term.
    nullable: Vec<bool>,
    known: HashMap<Node, Term>,
    /// The terms of rules; none has the empty string.
    pub(super) rules: Vec<Term>,
    pub(super) automata: Vec<Arc<Dfa>>,
    /// Steps of work so far, for limits.
    pub(super) work: u64,
    /// Parts of all alternatives, which have any number.
    parts: usize,
}

impl Terms {
    pub(super) fn new() -> Self {
        let (nodes, known) = (Vec::new(), HashMap::new());
        let (nullable, rules, automata) = (Vec::new(), Vec::new(), Vec::new());
        let mut terms = Terms { nodes, nullable, known, rules, automata, work: 0, parts: 0 };
        terms.intern(Node::Empty);
        terms.intern(Node::Epsilon);
        terms
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The memory of all terms, in parts of terms.
    pub(super) fn size(&self) -> usize {
        self.nodes.len() + self.parts
    }

    /// Forgets all terms from a number on; none of the others has them.
    pub(super) fn truncate(&mut self, len: usize) {
        for node in self.nodes.drain(len.min(self.nodes.len())..) {
            self.parts -= node.parts();
            self.known.remove(&node);
        }
        self.nullable.truncate(len);
    }

    pub(super) fn node(&self, term: Term) -> &Node {
        self.nodes.get(term.0 as usize).unwrap_or(&Node::Empty)
    }

    /// Whether each term has a string, with the rules that have one.
    pub(super) fn with_an_end(&self, rules: &[bool]) -> Vec<bool> {
        let mut found: Vec<bool> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            // The parts of a term come before it.
            let of = |term: &Term| found.get(term.0 as usize).copied().unwrap_or(false);
            let has_end = match node {
                Node::Empty => false,
                Node::Rule(rule) => rules.get(*rule as usize).copied().unwrap_or(false),
                Node::Either(all) => all.iter().any(of),
                Node::Sequence(first, second) => of(first) && of(second),
                Node::Repeat(inner, least, _) => *least == 0 || of(inner),
                Node::Epsilon | Node::Bytes(_) | Node::Text(..) | Node::State(..) | Node::Both(..) | Node::Not(_) => {
                    true
                }
            };
            found.push(has_end);
        }
        found
    }

    /// Whether the empty string is in a term.
    pub(super) fn is_nullable(&self, term: Term) -> bool {
        self.nullable.get(term.0 as usize).copied().unwrap_or(false)
    }

    fn intern(&mut self, node: Node) -> Term {
        if let Some(known) = self.known.get(&node) {
            return *known;
        }
        let nullable = match &node {
            Node::Empty | Node::Bytes(_) | Node::Text(..) | Node::Rule(_) => false,
            Node::Epsilon => true,
            Node::Sequence(first, second) | Node::Both(first, second) => {
                self.is_nullable(*first) && self.is_nullable(*second)
            }
            Node::Either(terms) => terms.iter().any(|term| self.is_nullable(*term)),
            Node::Repeat(term, least, _) => *least == 0 || self.is_nullable(*term),
            Node::State(automaton, state) => {
                self.automata.get(*automaton as usize).is_some_and(|automaton| automaton.accepts(*state))
            }
            Node::Not(term) => !self.is_nullable(*term),
        };
        let term = Term(self.nodes.len() as u32);
        self.parts += node.parts();
        self.nodes.push(node.clone());
        self.nullable.push(nullable);
        self.known.insert(node, term);
        self.work += 1;
        term
    }

    /// A byte of a set.
    pub(super) fn bytes(&mut self, set: ByteSet) -> Term {
        if set.is_empty() { EMPTY } else { self.intern(Node::Bytes(set)) }
    }

    /// The bytes of a text.
    pub(super) fn text(&mut self, text: &[u8]) -> Term {
        self.text_from(&Arc::from(text), 0)
    }

    fn text_from(&mut self, text: &Arc<[u8]>, offset: u32) -> Term {
        match text.get(offset as usize..) {
            Some([_, ..]) => self.intern(Node::Text(Arc::clone(text), offset)),
            _ => EPSILON,
        }
    }

    /// One after the other.
    pub(super) fn sequence(&mut self, first: Term, second: Term) -> Term {
        if first == EMPTY || second == EMPTY {
            return EMPTY;
        }
        if second == EPSILON {
            return first;
        }
        // Nested to the right, so that equal sequences are equal terms.
        let (mut parts, mut rest) = (Vec::new(), first);
        while let Node::Sequence(head, tail) = self.node(rest) {
            parts.push(*head);
            rest = *tail;
        }
        if rest != EPSILON {
            parts.push(rest);
        }
        parts.into_iter().rev().fold(second, |tail, head| self.intern(Node::Sequence(head, tail)))
    }

    pub(super) fn all(&mut self, terms: &[Term]) -> Term {
        terms.iter().rev().fold(EPSILON, |tail, term| self.sequence(*term, tail))
    }

    /// One of several.
    pub(super) fn either(&mut self, terms: impl IntoIterator<Item = Term>) -> Term {
        let (mut flat, mut set) = (Vec::new(), ByteSet::default());
        for term in terms {
            match self.node(term) {
                Node::Empty => {}
                Node::Bytes(bytes) => set = set.or(bytes),
                Node::Either(inner) => flat.extend_from_slice(inner),
                _ => flat.push(term),
            }
        }
        let is_set = |terms: &Terms, term: &Term| matches!(terms.node(*term), Node::Bytes(_));
        for term in flat.iter().filter(|term| is_set(self, term)) {
            if let Node::Bytes(bytes) = self.node(*term) {
                set = set.or(bytes);
            }
        }
        flat.retain(|term| !is_set(self, term));
        flat.extend(Some(self.bytes(set)).filter(|term| *term != EMPTY));
        flat.sort_unstable();
        flat.dedup();
        self.work += flat.len() as u64;
        match flat.as_slice() {
            [] => EMPTY,
            [one] => *one,
            _ => self.intern(Node::Either(flat.into())),
        }
    }

    /// A term or nothing.
    pub(super) fn optional(&mut self, term: Term) -> Term {
        self.either([EPSILON, term])
    }

    /// A term from a least to a most number of times.
    pub(super) fn repeat(&mut self, term: Term, least: u32, most: Option<u32>) -> Term {
        if most == Some(0) || term == EPSILON {
            return EPSILON;
        }
        if term == EMPTY {
            return if least == 0 { EPSILON } else { EMPTY };
        }
        if (least, most) == (1, Some(1)) {
            return term;
        }
        if let Node::Repeat(_, 0, None) = self.node(term) {
            return term;
        }
        // Fewer times with the empty string in the place of others.
        let least = if self.is_nullable(term) { 0 } else { least };
        self.intern(Node::Repeat(term, least, most))
    }

    /// A rule whose term is set later.
    pub(super) fn new_rule(&mut self) -> (u32, Term) {
        let number = self.rules.len() as u32;
        self.rules.push(EMPTY);
        (number, self.intern(Node::Rule(number)))
    }

    /// Intersection; for [`Terms::automaton`] alone.
    pub(super) fn both(&mut self, first: Term, second: Term) -> Term {
        if first == EMPTY || second == EMPTY {
            return EMPTY;
        }
        if first == second {
            return first;
        }
        self.intern(Node::Both(first.min(second), first.max(second)))
    }

    /// All other strings; for [`Terms::automaton`] alone.
    pub(super) fn not(&mut self, term: Term) -> Term {
        if let Node::Not(inner) = self.node(term) {
            return *inner;
        }
        self.intern(Node::Not(term))
    }

    /// A term without `Both`, `Not` and dead ends, as an automaton of at most `most` states; `None` if it needs more.
    pub(super) fn automaton(&mut self, term: Term, most: usize) -> Option<Term> {
        let automaton = Dfa::of(self, term, most)?;
        Some(self.state(automaton))
    }

    /// The strings that an automaton accepts.
    pub(super) fn state(&mut self, automaton: Dfa) -> Term {
        if automaton.is_empty() {
            return EMPTY;
        }
        self.automata.push(Arc::new(automaton));
        self.intern(Node::State(self.automata.len() as u32 - 1, 0))
    }

    /// Continuation after a byte.
    pub(super) fn derive(&mut self, term: Term, byte: u8) -> Term {
        let (mut found, mut rest) = (Vec::new(), term);
        loop {
            let Node::Sequence(head, tail) = *self.node(rest) else {
                found.push(self.derive_one(rest, byte));
                break;
            };
            let derived = self.derive_one(head, byte);
            if derived != EMPTY {
                found.push(self.sequence(derived, tail));
            }
            if !self.is_nullable(head) {
                break;
            }
            rest = tail;
        }
        match found.as_slice() {
            [one] => *one,
            _ => self.either(found),
        }
    }

    /// The same of a term that is not a sequence.
    fn derive_one(&mut self, term: Term, byte: u8) -> Term {
        self.work += 1;
        match self.node(term).clone() {
            Node::Empty | Node::Epsilon => EMPTY,
            Node::Bytes(set) => {
                if set.has(byte) {
                    EPSILON
                } else {
                    EMPTY
                }
            }
            Node::Text(text, offset) => match text.get(offset as usize) == Some(&byte) {
                true => self.text_from(&text, offset + 1),
                false => EMPTY,
            },
            Node::Sequence(..) => self.derive(term, byte),
            Node::Either(terms) => {
                let derived: Vec<Term> = terms.iter().map(|term| self.derive(*term, byte)).collect();
                self.either(derived)
            }
            Node::Repeat(inner, least, most) => match self.derive(inner, byte) {
                EMPTY => EMPTY,
                derived => {
                    let rest = self.repeat(inner, least.saturating_sub(1), most.map(|most| most - 1));
                    self.sequence(derived, rest)
                }
            },
            Node::Rule(rule) => {
                let body = self.rules.get(rule as usize).copied().unwrap_or(EMPTY);
                self.derive(body, byte)
            }
            Node::State(automaton, state) => {
                let next = self.automata.get(automaton as usize).and_then(|automaton| automaton.next(state, byte));
                let is_end = |next: u32| self.automata.get(automaton as usize).is_some_and(|own| own.is_end(next));
                match next {
                    None => EMPTY,
                    // Equal strings are equal terms, so that a text that cannot go on is known to be one.
                    Some(next) if is_end(next) => EPSILON,
                    Some(next) => self.intern(Node::State(automaton, next)),
                }
            }
            Node::Both(first, second) => match self.derive(first, byte) {
                EMPTY => EMPTY,
                first => {
                    let second = self.derive(second, byte);
                    self.both(first, second)
                }
            },
            Node::Not(inner) => {
                let derived = self.derive(inner, byte);
                self.not(derived)
            }
        }
    }
}

#[cfg(test)]
mod tests;
