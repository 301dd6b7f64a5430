//! Kinds of characters in regular expressions: `\d`, `\w`, `\s` and their opposites.
//!
//! Programs differ in whether these are of ASCII or of Unicode. A kind here has the characters that are of it for all
//! programs, and the ones that are for some, which a negated class leaves out.

use super::bytes::CharSet;
use std::sync::OnceLock;

/// A kind of characters.
#[derive(Debug)]
pub(super) struct CharKind {
    /// Characters that all programs count to it.
    pub(super) certain: CharSet,
    /// Characters that some count to it.
    pub(super) possible: CharSet,
}

impl CharKind {
    /// The letters of kinds after a backslash.
    pub(super) const LETTERS: &'static str = "dwsDWS";

    /// The kind of a letter.
    pub(super) fn of(letter: char) -> Option<Self> {
        // Unicode is gone through once.
        static OTHERS: [OnceLock<CharSet>; 3] = [const { OnceLock::new() }; 3];
        let [digit, word, space] = &OTHERS;
        let (ascii, others_of, is_of_kind): (CharSet, _, fn(char) -> bool) = match letter.to_ascii_lowercase() {
            'd' => (digits(), digit, char::is_numeric),
            'w' => (letters(), word, |c| c.is_alphanumeric() || c == '_'),
            's' => (spaces(), space, char::is_whitespace),
            _ => return None,
        };
        let others = others_of.get_or_init(|| others(&ascii, is_of_kind)).clone();
        Some(match letter.is_ascii_lowercase() {
            true => CharKind { possible: CharSet::all().without(&others), certain: ascii },
            false => CharKind { possible: CharSet::all().without(&ascii), certain: others },
        })
    }
}

fn of_chars(chars: &[(char, char)]) -> CharSet {
    CharSet::new(chars.iter().map(|(first, last)| (u32::from(*first), u32::from(*last))).collect())
}

fn digits() -> CharSet {
    of_chars(&[('0', '9')])
}

fn letters() -> CharSet {
    of_chars(&[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')])
}

fn spaces() -> CharSet {
    of_chars(&[('\t', '\r'), (' ', ' ')])
}

/// The characters that `.` leaves out.
pub(super) fn line_ends() -> CharSet {
    of_chars(&[('\n', '\n'), ('\r', '\r'), ('\u{2028}', '\u{2029}')])
}

/// All characters that are not in a set of ASCII, nor of its kind in Unicode.
fn others(set: &CharSet, is_of_kind: impl Fn(char) -> bool) -> CharSet {
    let (mut of_kind, mut start): (Vec<(u32, u32)>, Option<u32>) = (Vec::new(), None);
    for number in 0x80..=0x11_0000 {
        let is_in = char::from_u32(number).is_some_and(&is_of_kind);
        match (is_in, start) {
            (true, None) => start = Some(number),
            (false, Some(first)) => {
                of_kind.push((first, number - 1));
                start = None;
            }
            _ => {}
        }
    }
    // What Python takes for white space, and ECMA 262.
    let separators = of_chars(&[('\u{1C}', '\u{1F}'), ('\u{FEFF}', '\u{FEFF}')]);
    CharSet::all().without(set).without(&CharSet::new(of_kind)).without(&separators)
}
