//! Terms, and the automata that are made of them.

use super::*;

impl Terms {
    /// Whether a string is in a term.
    pub(in super::super) fn accepts(&mut self, term: Term, text: &[u8]) -> bool {
        let last = text.iter().fold(term, |term, byte| self.derive(term, *byte));
        self.is_nullable(last)
    }
}

#[test]
fn derivatives_are_what_may_follow() {
    let mut terms = Terms::new();
    let (ab, c) = (terms.text(b"ab"), terms.text(b"c"));
    let repeated = terms.repeat(ab, 2, Some(3));
    let term = terms.sequence(repeated, c);
    for (text, is_in) in [("ababc", true), ("abababc", true), ("abc", false), ("ababababc", false), ("abab", false)] {
        assert_eq!(terms.accepts(term, text.as_bytes()), is_in, "{text}");
    }
    let either = terms.either([ab, c, ab]);
    let many = terms.repeat(either, 0, None);
    assert!(terms.accepts(many, b"") && terms.accepts(many, b"ccabc") && !terms.accepts(many, b"ca"));
    // The same language again is the same state.
    let after = terms.derive(many, b'c');
    assert_eq!(after, many);
}

#[test]
fn a_rule_is_a_stack() {
    let mut terms = Terms::new();
    // Brackets that match.
    let (number, rule) = terms.new_rule();
    let (open, close) = (terms.text(b"("), terms.text(b")"));
    let inner = terms.repeat(rule, 0, None);
    terms.rules[number as usize] = terms.all(&[open, inner, close]);
    for (text, is_in) in [("()", true), ("(()(()))", true), ("(()", false), ("())", false), ("", false)] {
        assert_eq!(terms.accepts(rule, text.as_bytes()), is_in, "{text}");
    }
}

#[test]
fn automata_have_no_dead_ends() {
    let mut terms = Terms::new();
    let letter = terms.bytes(ByteSet::range(b'a', b'z'));
    let (letters, taken) = (terms.repeat(letter, 1, Some(3)), terms.text(b"if"));
    let others = terms.not(taken);
    let both = terms.both(letters, others);
    let names = terms.automaton(both, 100).unwrap();
    for (text, is_in) in [("a", true), ("if", false), ("i", true), ("iff", true), ("ifff", false), ("", false)] {
        assert_eq!(terms.accepts(names, text.as_bytes()), is_in, "{text}");
    }
    let one = terms.both(taken, letters);
    let one = terms.automaton(one, 100).unwrap();
    // `a` leads nowhere, and so is not a step.
    assert_eq!(terms.derive(one, b'a'), EMPTY);
    let nothing = terms.both(one, names);
    assert_eq!(terms.automaton(nothing, 100), Some(EMPTY));
    assert_eq!(terms.automaton(letters, 2), None);
    let len = terms.len();
    let longer = terms.text(b"longer");
    terms.truncate(len);
    assert_eq!(terms.text(b"longer"), longer);
}
