//! Sentences of English, in the manner of Punkt: a full stop ends a sentence unless it belongs to an abbreviation, an
//! initial, a number or an ellipsis; what follows decides about those.
//!
//! Punkt learns abbreviations and frequent sentence starters from a corpus; here both are lists.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Abbreviations, and whether what they abbreviate always goes on (`=` in the list).
static ABBREVIATIONS: LazyLock<HashMap<&str, bool>> = LazyLock::new(|| {
    let lines = include_str!("abbreviations.txt").lines().filter(|line| !line.starts_with('#'));
    let words = |line: &'static str| {
        let continues = line.starts_with('=');
        line.trim_start_matches('=').split_whitespace().map(move |word| (word, continues))
    };
    lines.flat_map(words).collect()
});
/// Words that in capitals begin a sentence: in the middle of one they are written small.
const STARTERS: &str = " a about after all also although an and another any as at because before but by can did do \
    does during each even every few finally first for from had has have he her here his how however i if in instead is \
    it its last later many may meanwhile more most much my no nor not now of on once one only or other others our over \
    perhaps she should since so some soon still such that the their then there these they this those though through \
    thus to today two under until we were what when where whether which while who why will with would yet you your ";
const CLOSERS: [char; 9] = ['"', '\'', '”', '’', ')', ']', '}', '»', '*'];
const OPENERS: [char; 9] = ['"', '\'', '“', '‘', '(', '[', '{', '«', '*'];

/// The sentences of a line.
pub(super) fn split(line: &str) -> Vec<&str> {
    let (mut sentences, mut start) = (Vec::new(), 0);
    let mut words = words(line).peekable();
    while let Some((at, word)) = words.next() {
        let Some((next, following)) = words.peek().copied() else { break };
        if ends_sentence(word, following, at == start) {
            sentences.push(&line[start..at + word.len()]);
            start = next;
        }
    }
    if start < line.len() {
        sentences.push(&line[start..]);
    }
    sentences
}

/// The words between white space with their places.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    line.split_whitespace().map(move |word| (word.as_ptr().addr() - line.as_ptr().addr(), word))
}

/// Text after a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Following {
    Small,
    /// A word in capitals, and whether it usually begins a sentence.
    Capital {
        is_starter: bool,
    },
    /// A number or a mark.
    Other,
}

/// Whether a word is the last of a sentence. `is_first` if it is also the first: the number of an item, for example.
fn ends_sentence(word: &str, next: &str, is_first: bool) -> bool {
    let bare = word.trim_end_matches(CLOSERS);
    let Some(mark) = bare.chars().next_back() else { return false };
    let following = following(next);
    match mark {
        '!' | '?' => following != Following::Small,
        '…' => matches!(following, Following::Capital { .. }),
        '.' if bare.ends_with("..") => matches!(following, Following::Capital { .. }),
        '.' => ends_with_stop(&bare[..bare.len() - 1], following, is_first, bare.len() < word.len()),
        _ => false,
    }
}

/// Whether the full stop after `word` ends a sentence; `is_closed` if quotation marks or brackets close after it.
fn ends_with_stop(word: &str, following: Following, is_first: bool, is_closed: bool) -> bool {
    let word = word.trim_start_matches(OPENERS);
    // `Lt.-Col.` is as its last part.
    let last = word.rsplit(['-', '–', '—', '/']).next().unwrap_or(word).trim_start_matches(OPENERS);
    let is_starter = following == Following::Capital { is_starter: true };
    let mut characters = last.chars();
    let is_initial = characters.next().is_some_and(char::is_alphabetic) && characters.next().is_none();
    if is_initial && last != "I" {
        return is_starter;
    }
    if !last.is_empty() && last.chars().all(|c| c.is_ascii_digit()) {
        return !is_first && following != Following::Small;
    }
    match ABBREVIATIONS.get(last.to_lowercase().as_str()) {
        // After a bracket that closes, nothing of the abbreviation goes on.
        Some(true) if !is_closed => false,
        Some(_) => is_starter,
        None if is_dotted(last) => is_starter,
        None => following != Following::Small,
    }
}

/// `U.S` and the like: single letters between full stops.
fn is_dotted(word: &str) -> bool {
    word.contains('.') && word.split('.').all(|part| part.chars().count() == 1 && part.chars().all(char::is_alphabetic))
}

fn following(next: &str) -> Following {
    let word = next.trim_start_matches(OPENERS);
    match word.chars().next() {
        Some(c) if c.is_lowercase() => Following::Small,
        Some(c) if c.is_uppercase() => {
            let letters: String = word.chars().take_while(|c| c.is_alphabetic()).flat_map(char::to_lowercase).collect();
            Following::Capital { is_starter: STARTERS.contains(&format!(" {letters} ")) }
        }
        _ => Following::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    /// Each line is split at ` | `.
    #[test]
    fn full_stops_end_sentences_where_nothing_is_abbreviated() {
        for line in [
            "It rained. | We stayed at home! | Did you? | Yes.",
            "Mr. Smith met Dr. Jones of the U.S. Navy on Jan. 5 at 3 p.m. in St. Louis. | They talked.",
            "He lives in the U.S. | She does not.",
            "J. R. R. Tolkien wrote it. | George W. Bush did not.",
            "It costs 3.50 dollars, i.e. about 3 pounds, etc. | This is cheap.",
            "See Fig. 3 and vol. 2, pp. 5-7. | Then go on.",
            "The year was 1999. | The next was 2000.",
            "1. Wash your hands. | 2. Cook.",
            "He waited... and waited... | Nothing came.",
            "“Stop!” he cried. | “Why?” | “Because.” | She left.",
            "He left (at 5 a.m.). | They saw him.",
            "Visit example.com or mail me. | Thanks.",
            "So do I. | You do, too.",
            "Lt.-Col. Brown and Acme Inc. agreed.",
        ] {
            let whole = line.replace(" | ", " ");
            assert_eq!(split(&whole), line.split(" | ").collect::<Vec<_>>(), "{line}");
        }
        assert!(split("").is_empty());
    }
}
