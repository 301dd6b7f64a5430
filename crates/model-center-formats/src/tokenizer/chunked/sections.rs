//! Sections of a long text, so that memory stays bounded and threads can share the work.
//!
//! Defines [`SECTION`], [`next_cut`], [`around`], [`Runs`] and the changed parts for sections that have a text on a
//! side of theirs, [`continued`] with [`Sides`].
//! Called by [`super`] and [`super::boundaries`], which puts the sections' tokens together.

use std::borrow::Cow;

use serde_json::{Value, json};

/// Size in bytes of a section: the library needs about sixty bytes of memory per byte of text.
pub(super) const SECTION: usize = 32 << 10;
/// Characters on each side of a cut that determine whether the pre-tokenizer splits there. A multiple of three, so that
/// digits in groups of three, counted from the cut's own side, are grouped as in the whole text.
pub(super) const AROUND: usize = 48;
/// Runs longer than this are shortened, where the result does not depend on their length, to half of it.
const RUN: usize = 1024;

/// The added tokens: no cut may go through one.
#[derive(Debug, Default)]
pub(super) struct Whole {
    /// In the order of their bytes.
    words: Vec<String>,
    longest: usize,
}

impl Whole {
    pub(super) fn new(mut words: Vec<String>) -> Whole {
        words.retain(|word| !word.is_empty());
        words.sort_unstable();
        let longest = words.iter().map(String::len).max().unwrap_or(0);
        Whole { words, longest }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// For each place from `from` to `to`, both included, whether an added token touches it. Such a token may include
    /// spaces beside it.
    fn touched(&self, text: &str, from: usize, to: usize) -> Vec<bool> {
        let mut touched = vec![false; to + 1 - from];
        let mut reach = None;
        for at in from.saturating_sub(self.longest)..=to {
            // Longer ones reach over all that shorter ones do.
            reach = reach.max(self.longest_at(&text.as_bytes()[at..]).map(|length| at + length));
            if at >= from {
                touched[at - from] = reach.is_some_and(|end| at <= end);
            }
        }
        touched
    }

    /// The length of the longest added token that a text begins with.
    fn longest_at(&self, text: &[u8]) -> Option<usize> {
        let mut words = &self.words[..];
        let mut found = None;
        for (depth, byte) in text.iter().enumerate() {
            let at_depth = |word: &String| word.as_bytes().get(depth).copied();
            words = &words[words.partition_point(|word| at_depth(word) < Some(*byte))..];
            words = &words[..words.partition_point(|word| at_depth(word) == Some(*byte))];
            match words.first() {
                Some(word) if word.len() == depth + 1 => found = Some(depth + 1),
                Some(_) => {}
                None => break,
            }
        }
        found
    }
}

/// End of the section that begins at `start`: the last good place in its second half, or the text's end. The best place
/// is before a single space or line end between letters or digits; then before other white space, then before
/// punctuation after a word, where even a tokenizer that never merges across words splits. Otherwise it is between
/// letters, or between any characters, among digits a multiple of three after the first.
pub(super) fn next_cut(text: &str, start: usize, whole: &Whole) -> usize {
    if text.len() - start <= SECTION + SECTION / 2 {
        return text.len();
    }
    let half = text.floor_char_boundary(start + SECTION / 2);
    let end = text.floor_char_boundary(start + SECTION);
    let touched = whole.touched(text, half, end);
    let is_free = |at: usize| at >= half && !touched[at - half];
    let word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let letter = |c: Option<char>| c.is_some_and(|c| c.is_alphabetic() && is_single(c));
    let (mut before_space, mut before_mark, mut between_letters) = (None, None, None);
    for (at, c) in text[half..end].char_indices().rev() {
        let at = half + at;
        let (mut before, mut after) = (text[..at].chars().rev(), text[at..].chars().skip(1));
        let previous = before.next();
        // A line end after punctuation may belong to it.
        let is_open = c != '\n' || letter(previous) || previous.is_some_and(char::is_numeric);
        if (c == ' ' || c == '\n') && is_open && word(previous) && word(after.next()) && is_free(at) {
            return at;
        }
        // All of a run of spaces is in the next section.
        if before_space.is_none()
            && is_space(c)
            && is_open
            && previous.is_some_and(|c| !c.is_whitespace())
            && is_free(at)
        {
            before_space = Some(at);
        }
        if before_mark.is_none() && ends_word(c) && word(previous) && is_free(at) {
            before_mark = Some(at);
        }
        // Letters before and after, so that no ending such as 's begins here.
        let mut is_inside = || letter(Some(c)) && letter(previous) && letter(before.next());
        if between_letters.is_none() && is_inside() && is_free(at) {
            between_letters = Some(at);
        }
    }
    before_space.or(before_mark).or(between_letters).unwrap_or_else(|| anywhere(text, start, end, is_free))
}

/// White space that no normalization changes in view of its neighbours.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n')
}

/// Punctuation that no tokenizer treats as part of a word or as the start of a suffix such as 's.
fn ends_word(c: char) -> bool {
    matches!(c, '!' | '"' | '(' | ')' | ',' | '.' | ':' | ';' | '?' | '\u{3001}' | '\u{3002}' | '\u{FF0C}')
}

/// A place inside a word, as close before `end` as possible. A place after white space is the last resort: the
/// treatment of a run of white space depends on all of it and on what follows.
fn anywhere(text: &str, start: usize, end: usize, is_free: impl Fn(usize) -> bool) -> usize {
    let backwards = text[start..end].char_indices().rev().map(|(at, _)| start + at).take(RUN).filter(|at| *at > start);
    let is_apart = |at: usize| text[at..].starts_with(begins) && !text[..at].ends_with('\u{200D}');
    let places = backwards.map(|at| before_group(text, start, at));
    let behind_word = |at: &usize| !text[..*at].ends_with(char::is_whitespace);
    let mut inside = places.clone().filter(behind_word);
    let found = inside.clone().find(|at| is_apart(*at) && is_free(*at)).or_else(|| inside.find(|at| is_free(*at)));
    let mut places = places;
    found.or_else(|| places.find(|at| is_free(*at))).unwrap_or(end)
}

/// The place itself, or among digits the one before it that has a multiple of three of them before it.
fn before_group(text: &str, start: usize, at: usize) -> usize {
    let is_digit = |c: char| c.is_ascii_digit();
    if !text[at..].starts_with(is_digit) {
        return at;
    }
    let back = text[start..at].chars().rev().take_while(|c| is_digit(*c)).count() % 3;
    if at - back > start { at - back } else { at }
}

/// Letters that neither change in view of their neighbours, nor change them, when a text is normalised.
fn is_single(c: char) -> bool {
    matches!(c,
        'A'..='Z' | 'a'..='z' | '\u{C0}'..='\u{24F}' | '\u{386}'..='\u{3FF}' | '\u{400}'..='\u{481}'
            | '\u{48A}'..='\u{52F}'
        | '\u{5D0}'..='\u{5EA}' | '\u{3041}'..='\u{3096}' | '\u{30A1}'..='\u{30FA}' | '\u{3400}'..='\u{4DBF}'
        | '\u{4E00}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7A3}' | '\u{20000}'..='\u{323AF}')
}

/// Characters that normalization never combines with the preceding ones.
fn begins(c: char) -> bool {
    is_single(c)
        || c.is_ascii()
        || matches!(c,
            '\u{2010}'..='\u{2BFF}' | '\u{3000}'..='\u{3029}' | '\u{FF01}'..='\u{FF60}' | '\u{1F000}'..='\u{1F3FA}'
            | '\u{1F400}'..='\u{1FAFF}')
}

/// The byte range of `reach` characters before and after a cut.
pub(super) fn around(text: &str, cut: usize, reach: usize) -> (usize, usize) {
    let from = text[..cut].char_indices().rev().take(reach).last().map_or(cut, |(at, _)| at);
    let to = text[cut..].char_indices().nth(reach).map_or(text.len(), |(at, _)| cut + at);
    (from, to)
}

/// Whether a pre-tokenizer counts characters from a text's beginning.
pub(super) fn counts_characters(part: &Value) -> bool {
    let steps = part.get("pretokenizers").and_then(Value::as_array);
    part["type"] == "FixedLength" || steps.into_iter().flatten().any(counts_characters)
}

/// Whether a character is one of [`letters`].
fn is_letter(c: char) -> bool {
    // In Chinese, words are single characters.
    c < '\u{3041}' && is_single(c) && c.is_alphabetic()
}

/// Letters that form long words.
pub(super) fn letters() -> impl Iterator<Item = char> {
    ('A'..'\u{3041}').filter(|c| is_letter(*c))
}

/// Runs of characters whose length does not affect the tokens.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// White space characters whose runs are equivalent to one space.
    pub(super) spaces: Vec<char>,
    /// Whether words of more letters than any bound are unknown as a whole, as in WordPiece.
    pub(super) words: bool,
}

impl Runs {
    /// The text with such runs no longer than need be; the result is the same.
    pub(super) fn shorten<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.spaces.is_empty() && !self.words {
            return Cow::Borrowed(text);
        }
        let kind = |c: char| match c {
            _ if self.spaces.contains(&c) => 1,
            _ if self.words && is_letter(c) => 2,
            _ => 0,
        };
        let mut out: Option<String> = None;
        // The run that is under way: its kind, its length in characters, where its part that is kept ends.
        let (mut run, mut length, mut kept, mut copied) = (0, 0, 0, 0);
        let ends = text.char_indices().map(|(at, c)| (at, kind(c))).chain([(text.len(), 3)]);
        for (at, kind) in ends {
            if kind != run {
                if run != 0 && length > RUN {
                    let out = out.get_or_insert_with(String::new);
                    out.push_str(&text[copied..kept]);
                    copied = at;
                }
                (run, length) = (kind, 0);
            }
            if length == RUN / 2 {
                kept = at;
            }
            length += 1;
        }
        match out {
            Some(mut out) => {
                out.push_str(&text[copied..]);
                Cow::Owned(out)
            }
            None => Cow::Borrowed(text),
        }
    }
}

/// On which sides of a section its text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sides {
    /// The text begins with the section.
    pub(super) first: bool,
    /// Nothing but white space follows the section.
    pub(super) last: bool,
}

/// A normalizer or pre-tokenizer for a section: where the text goes on, nothing is put beside the section, nor taken
/// away there.
pub(super) fn continued(part: &Value, sides: Sides) -> Option<Value> {
    let kind = part.get("type")?.as_str()?;
    let mut part = part.clone();
    match kind {
        "Prepend" if !sides.first => return None,
        // Expressions for one end of a text alone.
        "Replace" => {
            let pattern = part["pattern"]["Regex"].as_str().unwrap_or_default();
            if !sides.first && pattern.starts_with('^') || !sides.last && pattern.ends_with('$') {
                return None;
            }
        }
        "Strip" => {
            if !sides.first {
                part["strip_left"] = json!(false);
            }
            if !sides.last {
                part["strip_right"] = json!(false);
            }
        }
        "ByteLevel" if !sides.first && part.get("add_prefix_space").is_some() => {
            part["add_prefix_space"] = json!(false)
        }
        "Metaspace" if !sides.first => {
            part["prepend_scheme"] = json!("never");
            part.as_object_mut()?.remove("add_prefix_space");
        }
        "Sequence" => {
            for key in ["normalizers", "pretokenizers"] {
                if let Some(steps) = part.get(key).and_then(Value::as_array) {
                    part[key] = steps.iter().filter_map(|step| continued(step, sides)).collect();
                }
            }
        }
        _ => {}
    }
    Some(part)
}
