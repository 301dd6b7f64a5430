//! Python's ways to divide texts.

use super::strings::is_space;

/// `splitlines`, with the line ends or without.
pub fn lines(text: &str, keeps_ends: bool) -> Vec<String> {
    let (mut lines, mut start) = (Vec::new(), 0);
    let mut letters = text.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        let is_end = matches!(
            letter,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if !is_end {
            continue;
        }
        let mut end = at + letter.len_utf8();
        if letter == '\r'
            && let Some((_, '\n')) = letters.peek()
        {
            letters.next();
            end += 1;
        }
        lines.push(text[start..if keeps_ends { end } else { at }].to_owned());
        start = end;
    }
    if start < text.len() {
        lines.push(text[start..].to_owned());
    }
    lines
}

/// `split` and `rsplit` at white space, at most `most` times.
pub(super) fn at_spaces(text: &str, most: Option<usize>, from_right: bool) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = if from_right { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
    while !rest.is_empty() {
        let found = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = found.filter(|_| most.is_none_or(|most| parts.len() < most)) else { break };
        let behind = at + rest[at..].chars().next().map_or(1, char::len_utf8);
        if from_right {
            parts.push(rest[behind..].to_owned());
            rest = rest[..at].trim_end_matches(is_space);
        } else {
            parts.push(rest[..at].to_owned());
            rest = rest[behind..].trim_start_matches(is_space);
        }
    }
    if !rest.is_empty() {
        // What is left of the last division keeps the white space at its other side.
        parts.push(rest.to_owned());
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// `split` and `rsplit` at a text.
pub(super) fn at_text(text: &str, separator: &str, most: Option<usize>, from_right: bool) -> Vec<String> {
    let most = most.map_or(usize::MAX, |most| most.saturating_add(1));
    let mut parts: Vec<String> = match from_right {
        false => text.splitn(most, separator).map(str::to_owned).collect(),
        true => text.rsplitn(most, separator).map(str::to_owned).collect(),
    };
    if from_right {
        parts.reverse();
    }
    parts
}

/// `partition` and `rpartition`.
pub(super) fn around(text: &str, separator: &str, from_right: bool) -> [String; 3] {
    let found = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    match found {
        Some((before, behind)) => [before.into(), separator.into(), behind.into()],
        None if from_right => [String::new(), String::new(), text.into()],
        None => [text.into(), String::new(), String::new()],
    }
}

/// `expandtabs`.
pub(super) fn expanded(text: &str, size: i64) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for letter in text.chars() {
        match letter {
            '\t' => {
                if size > 0 {
                    let spaces = size - column % size;
                    out.extend(std::iter::repeat_n(' ', spaces as usize));
                    column += spaces;
                }
            }
            '\n' | '\r' => {
                out.push(letter);
                column = 0;
            }
            letter => {
                out.push(letter);
                column += 1;
            }
        }
    }
    out
}
