//! Deterministic automata of terms with intersections and complements: explored at once, so that none of their states
//! is a dead end.

use super::bytes::ByteSet;
use super::terms::{EMPTY, Node, Term, Terms};
use std::collections::{HashMap, HashSet};

/// No state.
const NONE: u32 = u32::MAX;
/// Steps of work for an automaton.
const MAX_WORK: u64 = 20_000_000;

/// An automaton over bytes; its first state is 0, and from every state one that accepts is reached.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Dfa {
    /// The class of each byte; bytes of a class lead to the same states.
    classes: Vec<u16>,
    /// The number of classes.
    width: usize,
    /// The next state, by state and class.
    next: Vec<u32>,
    accepting: Vec<bool>,
}

impl Dfa {
    pub(super) fn accepts(&self, state: u32) -> bool {
        self.accepting.get(state as usize).copied().unwrap_or(false)
    }

    /// Whether a state accepts the empty string alone.
    pub(super) fn is_end(&self, state: u32) -> bool {
        let row = self.next.chunks(self.width.max(1)).nth(state as usize);
        self.accepts(state) && row.is_some_and(|row| row.iter().all(|next| *next == NONE))
    }

    pub(super) fn next(&self, state: u32, byte: u8) -> Option<u32> {
        let class = self.classes.get(usize::from(byte))?;
        let next = self.next.get(state as usize * self.width + usize::from(*class))?;
        Some(*next).filter(|next| *next != NONE)
    }

    /// Whether nothing is accepted.
    pub(super) fn is_empty(&self) -> bool {
        self.accepting.is_empty()
    }

    /// An automaton from its parts: the next state by state and byte, and which states accept.
    pub(super) fn from_steps(states: usize, step: impl Fn(u32, u8) -> Option<u32>, accepting: Vec<bool>) -> Self {
        let classes = (0..=u8::MAX).map(u16::from).collect();
        let steps = (0..states as u32).flat_map(|state| (0..=u8::MAX).map(move |byte| (state, byte)));
        let next = steps.map(|(state, byte)| step(state, byte).unwrap_or(NONE)).collect();
        Dfa { classes, width: 256, next, accepting }.trimmed()
    }

    /// The automaton of a term, with at most `most` states, and work.
    pub(super) fn of(terms: &mut Terms, term: Term, most: usize) -> Option<Self> {
        let (classes, of_class) = classes(terms, term);
        let width = of_class.len();
        let mut numbers: HashMap<Term, u32> = HashMap::from([(term, 0)]);
        let (mut states, mut next, mut at) = (vec![term], Vec::new(), 0);
        let work = terms.work.saturating_add(MAX_WORK);
        while let Some(state) = states.get(at).copied() {
            if terms.work > work {
                return None;
            }
            at += 1;
            for byte in &of_class {
                let derived = terms.derive(state, *byte);
                if derived == EMPTY {
                    next.push(NONE);
                    continue;
                }
                let number = *numbers.entry(derived).or_insert(states.len() as u32);
                if number as usize == states.len() {
                    if states.len() == most {
                        return None;
                    }
                    states.push(derived);
                }
                next.push(number);
            }
        }
        let accepting = states.iter().map(|state| terms.is_nullable(*state)).collect();
        Some(Dfa { classes, width, next, accepting }.trimmed())
    }

    /// The same without states from which none that accepts is reached; without any where the first is one.
    fn trimmed(mut self) -> Self {
        let states = self.accepting.len();
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); states];
        for (from, row) in self.next.chunks(self.width.max(1)).enumerate() {
            for to in row.iter().filter(|to| **to != NONE) {
                before.get_mut(*to as usize).into_iter().for_each(|list| list.push(from as u32));
            }
        }
        let mut is_live = self.accepting.clone();
        let mut open: Vec<u32> = (0..states as u32).filter(|state| self.accepts(*state)).collect();
        while let Some(state) = open.pop() {
            for from in before.get(state as usize).into_iter().flatten() {
                if let Some(live) = is_live.get_mut(*from as usize).filter(|live| !**live) {
                    *live = true;
                    open.push(*from);
                }
            }
        }
        if is_live.first() != Some(&true) {
            return Dfa { classes: self.classes, width: self.width, next: Vec::new(), accepting: Vec::new() };
        }
        for to in &mut self.next {
            if !is_live.get(*to as usize).copied().unwrap_or(false) {
                *to = NONE;
            }
        }
        self
    }
}

/// The class of each byte, and a byte of each class: bytes that no part of a term tells from each other.
fn classes(terms: &Terms, term: Term) -> (Vec<u16>, Vec<u8>) {
    let (mut sets, mut seen, mut open): (HashSet<ByteSet>, HashSet<Term>, _) = Default::default();
    let mut by_automata: HashSet<u32> = HashSet::new();
    Vec::push(&mut open, term);
    while let Some(term) = open.pop() {
        if !seen.insert(term) {
            continue;
        }
        match terms.node(term) {
            Node::Empty | Node::Epsilon => {}
            Node::Bytes(set) => {
                sets.insert(*set);
            }
            Node::Text(text, offset) => {
                let bytes = text.get(*offset as usize..).unwrap_or_default();
                sets.extend(bytes.iter().map(|byte| ByteSet::of(&[*byte])));
            }
            Node::Sequence(first, second) | Node::Both(first, second) => open.extend([*first, *second]),
            Node::Either(all) => open.extend_from_slice(all),
            Node::Repeat(inner, ..) | Node::Not(inner) => open.push(*inner),
            Node::Rule(rule) => open.extend(terms.rules.get(*rule as usize)),
            Node::State(automaton, _) => {
                by_automata.insert(*automaton);
            }
        }
    }
    let automata: Vec<_> = by_automata.iter().filter_map(|number| terms.automata.get(*number as usize)).collect();
    let (mut classes, mut of_class, mut known) = (Vec::with_capacity(256), Vec::new(), HashMap::new());
    for byte in 0..=u8::MAX {
        let of_sets = sets.iter().map(|set| u16::from(set.has(byte)));
        let of_automata =
            automata.iter().map(|automaton| automaton.classes.get(usize::from(byte)).copied().unwrap_or(0));
        let signature: Vec<u16> = of_sets.chain(of_automata).collect();
        let class = *known.entry(signature).or_insert(of_class.len() as u16);
        if usize::from(class) == of_class.len() {
            of_class.push(byte);
        }
        classes.push(class);
    }
    (classes, of_class)
}
