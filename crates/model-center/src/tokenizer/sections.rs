//! Where a long text is cut, so that memory stays bounded and threads can share the work.
//!
//! Defines [`SECTION`], [`next_cut`], [`around`], [`Runs`] and the changed parts for sections after the first, [`continued`].
//! Called by [`super::long`], which puts the sections' tokens together.

use std::borrow::Cow;

use serde_json::{Value, json};

/// About so many bytes are given to the library at a time: it takes some sixty bytes for each of them.
pub(super) const SECTION: usize = 32 << 10;
/// Characters on each side of a cut that say whether the pre-tokenizer cuts there. A multiple of three, so that digits in
/// groups of three, counted from the cut's own side, are grouped as in the whole.
const AROUND: usize = 48;
/// Runs longer than this are shortened, where the result does not depend on their length, to half of it.
const RUN: usize = 1024;

/// The words that are found whole in a text: no cut may go through one.
#[derive(Debug, Default)]
pub(super) struct Whole {
    words: Vec<String>,
    longest: usize,
}

impl Whole {
    pub(super) fn new(words: Vec<String>) -> Whole {
        let longest = words.iter().map(String::len).max().unwrap_or(0);
        Whole { words, longest }
    }

    /// Whether one of the words touches this place. Such a word may take spaces beside it.
    fn touches(&self, text: &str, at: usize) -> bool {
        let (from, to) = (at.saturating_sub(self.longest), (at + self.longest).min(text.len()));
        let near = &text.as_bytes()[from..to];
        let at = at - from;
        self.words.iter().map(String::as_bytes).any(|word| {
            !word.is_empty()
                && near.windows(word.len()).enumerate().any(|(i, w)| i <= at && at <= i + word.len() && w == word)
        })
    }
}

/// Where the section that begins at `start` ends: the last good place in its second half, or the text's end.
///
/// The best place is before a single space or line's end between letters or digits. Without one it is between letters; without
/// those wherever characters end, among digits a multiple of three after the first.
pub(super) fn next_cut(text: &str, start: usize, whole: &Whole) -> usize {
    if text.len() - start <= SECTION + SECTION / 2 {
        return text.len();
    }
    let half = text.floor_char_boundary(start + SECTION / 2);
    let end = text.floor_char_boundary(start + SECTION);
    let word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let letter = |c: Option<char>| c.is_some_and(|c| c.is_alphabetic() && is_single(c));
    let mut between_letters = None;
    for (at, c) in text[half..end].char_indices().rev() {
        let at = half + at;
        let (mut before, mut after) = (text[..at].chars().rev(), text[at..].chars().skip(1));
        let previous = before.next();
        if (c == ' ' || c == '\n') && word(previous) && word(after.next()) && !whole.touches(text, at) {
            return at;
        }
        // Letters before and after, so that no ending such as 's begins here.
        let mut is_inside = || letter(Some(c)) && letter(previous) && letter(before.next());
        if between_letters.is_none() && is_inside() && !whole.touches(text, at) {
            between_letters = Some(at);
        }
    }
    between_letters.unwrap_or_else(|| anywhere(text, start, end, whole))
}

/// A place that is no end of a word, as near before `end` as can be.
fn anywhere(text: &str, start: usize, end: usize, whole: &Whole) -> usize {
    let backwards = text[start..end].char_indices().rev().map(|(at, _)| start + at).take(RUN).filter(|at| *at > start);
    let is_apart = |at: &usize| text[*at..].starts_with(begins) && !text[..*at].ends_with('\u{200D}');
    let mut apart = backwards.clone().filter(is_apart);
    let free = |at: &usize| !whole.touches(text, *at);
    let at = apart.find(free).or_else(|| backwards.clone().find(free)).unwrap_or(end);
    let is_digit = |c: char| c.is_ascii_digit();
    let digits = text[start..at].chars().rev().take_while(|c| is_digit(*c)).count();
    let back = digits % 3;
    if text[at..].starts_with(is_digit) && at - back > start { at - back } else { at }
}

/// Letters that neither change in view of their neighbours, nor change them, when a text is normalised.
fn is_single(c: char) -> bool {
    matches!(c,
        'A'..='Z' | 'a'..='z' | '\u{C0}'..='\u{24F}' | '\u{386}'..='\u{3FF}' | '\u{400}'..='\u{481}' | '\u{48A}'..='\u{52F}'
        | '\u{5D0}'..='\u{5EA}' | '\u{3041}'..='\u{3096}' | '\u{30A1}'..='\u{30FA}' | '\u{3400}'..='\u{4DBF}'
        | '\u{4E00}'..='\u{9FFF}' | '\u{AC00}'..='\u{D7A3}' | '\u{20000}'..='\u{323AF}')
}

/// Characters that never go together with what stands before them when a text is normalised.
fn begins(c: char) -> bool {
    is_single(c)
        || c.is_ascii()
        || matches!(c,
            '\u{2010}'..='\u{2BFF}' | '\u{3000}'..='\u{3029}' | '\u{FF01}'..='\u{FF60}' | '\u{1F000}'..='\u{1F3FA}'
            | '\u{1F400}'..='\u{1FAFF}')
}

/// The text around a cut, and where in it the cut is.
pub(super) fn around(text: &str, cut: usize) -> (&str, usize) {
    let from = text[..cut].char_indices().rev().take(AROUND).last().map_or(cut, |(at, _)| at);
    let to = text[cut..].char_indices().nth(AROUND).map_or(text.len(), |(at, _)| cut + at);
    (&text[from..to], cut - from)
}

/// Runs of characters whose length says nothing to a tokenizer.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// White space of which several characters are as one space.
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
            // Words of Chinese are single characters.
            _ if self.words && is_single(c) && c < '\u{3041}' => 2,
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

/// A normalizer or pre-tokenizer for a section that goes on where another ended: nothing is put before it, nor taken away
/// there.
pub(super) fn continued(part: &Value) -> Option<Value> {
    let kind = part.get("type")?.as_str()?;
    let mut part = part.clone();
    match kind {
        "Prepend" => return None,
        // An expression for the beginning of a text alone.
        "Replace" if part["pattern"]["Regex"].as_str().is_some_and(|pattern| pattern.starts_with('^')) => return None,
        "Strip" => part["strip_left"] = json!(false),
        "ByteLevel" if part.get("add_prefix_space").is_some() => part["add_prefix_space"] = json!(false),
        "Metaspace" => {
            part["prepend_scheme"] = json!("never");
            part.as_object_mut()?.remove("add_prefix_space");
        }
        "Sequence" => {
            for key in ["normalizers", "pretokenizers"] {
                if let Some(steps) = part.get(key).and_then(Value::as_array) {
                    part[key] = steps.iter().filter_map(continued).collect();
                }
            }
        }
        _ => {}
    }
    Some(part)
}
