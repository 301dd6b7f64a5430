//! Values of JSON as terms.
//!
//! Between a value and the punctuation around it there may be nothing, a space, or a line break with spaces, so that a
//! text cannot go on with white space for ever.

use super::bytes::{ByteSet, CharSet};
use super::regex::{Spelling, char_term};
use super::terms::{EPSILON, Term, Terms};

/// Spaces after a line break.
const MAX_INDENT: u32 = 32;
/// Arrays and objects within each other in a value of any kind.
pub(super) const MAX_DEPTH: usize = 32;
/// Digits of numbers, so that they are the same in double precision.
pub(super) const MAX_DIGITS: u32 = 15;

/// Terms that most values are made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Json {
    /// White space after an opening bracket or a comma, and before a closing bracket.
    pub(super) gap: Term,
    /// White space after a colon.
    pub(super) space: Term,
    pub(super) digit: Term,
    /// A character of a string.
    pub(super) char: Term,
    pub(super) string: Term,
    pub(super) integer: Term,
    pub(super) number: Term,
    pub(super) boolean: Term,
    pub(super) null: Term,
    /// A value of any kind, and an object and an array of such.
    pub(super) any: Term,
    pub(super) object: Term,
    pub(super) array: Term,
}

impl Json {
    pub(super) fn new(terms: &mut Terms) -> Self {
        let one = |terms: &mut Terms, bytes: &[u8]| terms.bytes(ByteSet::of(bytes));
        let (space, line) = (one(terms, b" "), one(terms, b"\n"));
        let indent = terms.repeat(space, 0, Some(MAX_INDENT));
        let line = terms.sequence(line, indent);
        let gap = terms.either([EPSILON, space, line]);
        let space = terms.optional(space);
        let digit = terms.bytes(ByteSet::range(b'0', b'9'));
        let char = any_char(terms);
        let string = string_of(terms, char, (0, None));
        let integer = integer(terms, MAX_DIGITS);
        let number = number(terms, digit, integer);
        let (yes, no, null) = (terms.text(b"true"), terms.text(b"false"), terms.text(b"null"));
        let boolean = terms.either([yes, no]);
        let mut json = Json {
            gap,
            space,
            digit,
            char,
            string,
            integer,
            number,
            boolean,
            null,
            any: EPSILON,
            object: EPSILON,
            array: EPSILON,
        };
        // From the innermost values outwards.
        json.any = terms.either([string, number, boolean, null]);
        for _ in 0..MAX_DEPTH {
            let member = json.member(terms, string, json.any);
            json.object = json.listed(terms, (b"{", b"}"), member, (0, None));
            json.array = json.listed(terms, (b"[", b"]"), json.any, (0, None));
            json.any = terms.either([string, number, boolean, null, json.object, json.array]);
        }
        json
    }

    /// A name, a colon and a value.
    pub(super) fn member(&self, terms: &mut Terms, name: Term, value: Term) -> Term {
        let colon = terms.text(b":");
        terms.all(&[name, colon, self.space, value])
    }

    /// A comma before a further item.
    pub(super) fn further(&self, terms: &mut Terms, item: Term) -> Term {
        let comma = terms.text(b",");
        terms.all(&[comma, self.gap, item])
    }

    /// Brackets around items from a least to a most number.
    pub(super) fn listed(
        &self,
        terms: &mut Terms,
        (open, close): (&[u8], &[u8]),
        item: Term,
        (least, most): (u32, Option<u32>),
    ) -> Term {
        let (open, close) = (terms.text(open), terms.text(close));
        let further = self.further(terms, item);
        let further = terms.repeat(further, least.saturating_sub(1), most.map(|most| most.saturating_sub(1)));
        let filled = terms.all(&[open, self.gap, item, further, self.gap, close]);
        let empty = terms.all(&[open, self.gap, close]);
        match (least, most) {
            (_, Some(0)) => empty,
            (0, _) => terms.either([empty, filled]),
            _ => filled,
        }
    }
}

/// Quotation marks around characters from a least to a most number.
pub(super) fn string_of(terms: &mut Terms, char: Term, (least, most): (u32, Option<u32>)) -> Term {
    let mark = terms.text(b"\"");
    let inner = terms.repeat(char, least, most);
    terms.all(&[mark, inner, mark])
}

/// A character of a string in any spelling; halves of characters of UTF-16 come in pairs.
fn any_char(terms: &mut Terms) -> Term {
    let plain = CharSet::all().without(&CharSet::new(vec![(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C)]));
    let plain = char_term(terms, &plain, Spelling::Plain);
    let backslash = terms.text(b"\\");
    let short = terms.bytes(ByteSet::of(b"\"\\/bfnrt"));
    let short = terms.sequence(backslash, short);
    let set = |terms: &mut Terms, bytes: &[u8]| terms.bytes(ByteSet::of(bytes));
    let hex = set(terms, b"0123456789abcdefABCDEF");
    let three = terms.repeat(hex, 3, Some(3));
    let two = terms.repeat(hex, 2, Some(2));
    let number = terms.text(b"\\u");
    let not_d = set(terms, b"0123456789abcefABCEF");
    let (d, low_half) = (set(terms, b"dD"), set(terms, b"01234567"));
    let (high, low) = (set(terms, b"89abAB"), set(terms, b"cdefCDEF"));
    let whole = terms.all(&[number, not_d, three]);
    let whole_d = terms.all(&[number, d, low_half, two]);
    let pair = terms.all(&[number, d, high, two, number, d, low, two]);
    terms.either([plain, short, whole, whole_d, pair])
}

/// An integer of at most this number of digits.
fn integer(terms: &mut Terms, digits: u32) -> Term {
    let (minus, zero) = (terms.text(b"-"), terms.text(b"0"));
    let (first, digit) = (terms.bytes(ByteSet::range(b'1', b'9')), terms.bytes(ByteSet::range(b'0', b'9')));
    let further = terms.repeat(digit, 0, Some(digits - 1));
    let above = terms.sequence(first, further);
    let (number, minus) = (terms.either([zero, above]), terms.optional(minus));
    terms.sequence(minus, number)
}

/// A number in any form; its exponent has two digits, so that it is finite in double precision.
fn number(terms: &mut Terms, digit: Term, integer: Term) -> Term {
    let (point, e, sign) = (terms.text(b"."), terms.bytes(ByteSet::of(b"eE")), terms.bytes(ByteSet::of(b"+-")));
    let digits = terms.repeat(digit, 1, Some(MAX_DIGITS));
    let fraction = terms.sequence(point, digits);
    let (fraction, sign) = (terms.optional(fraction), terms.optional(sign));
    let digits = terms.repeat(digit, 1, Some(2));
    let exponent = terms.all(&[e, sign, digits]);
    let exponent = terms.optional(exponent);
    terms.all(&[integer, fraction, exponent])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_that_parsers_read() {
        let mut terms = Terms::new();
        let json = Json::new(&mut terms);
        for text in [
            r#"{"a": [1, -2.5e+3, true, null], "b": {}}"#,
            "{\n  \"a\": 0\n}",
            r#""\u00e9 \ud83d\ude00 é \n""#,
            "[]",
            "-0.5",
            "[[[[1]]]]",
        ] {
            assert!(serde_json::from_str::<serde_json::Value>(text).is_ok(), "{text}");
            assert!(terms.accepts(json.any, text.as_bytes()), "{text}");
        }
        let deep = format!("{}1{}", "[".repeat(MAX_DEPTH + 1), "]".repeat(MAX_DEPTH + 1));
        for text in [
            "{",
            "[1,]",
            "{\"a\":}",
            "01",
            "1.",
            "+1",
            "\"\\ud83d\"",
            "\"\\x\"",
            "\"\n\"",
            "{a: 1}",
            "nul",
            "1e400",
            "",
            " 1",
            "[1 ,2]",
            &deep,
        ] {
            assert!(!terms.accepts(json.any, text.as_bytes()), "{text}");
        }
        assert!(terms.accepts(json.object, b"{}") && !terms.accepts(json.object, b"[]"));
    }
}
