//! The tokens of a `vocab.txt` by id and by spelling, and the longest of them that a text begins with.
//!
//! Defines [`Vocabulary`]. Read and used by [`super::CpmTokenizer`].

use std::collections::HashMap;

use crate::tokenizer::files::utf8;
use crate::{Error, Result};

/// The largest vocabularies in use have 256 thousand tokens; this bounds memory for any file.
const MAX_TOKENS: usize = 1 << 20;

/// Tokens in the order of their ids.
pub(super) struct Vocabulary {
    tokens: Vec<Box<str>>,
    /// Every spelling once, ordered by bytes. A spelling that appears twice has its later id, as in the predecessor.
    by_spelling: Vec<u32>,
}

impl Vocabulary {
    /// One token a line, without the white space around it; its id is the number of the line from 0.
    pub(super) fn parse(place: &str, bytes: &[u8]) -> Result<Vocabulary> {
        let text = utf8(place, bytes)?;
        if text.is_empty() {
            return Err(Error::model(place, "the vocabulary is empty", "fetch the file again"));
        }
        let mut tokens: Vec<Box<str>> = Vec::new();
        for line in text.split_terminator('\n') {
            if tokens.len() == MAX_TOKENS {
                let reason = format!("the vocabulary has more than {MAX_TOKENS} tokens");
                return Err(Error::model(place, reason, "check that this is a vocabulary: one token a line"));
            }
            // Python's white space has four separators of ASCII that Unicode's has not.
            let around = |c: char| c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}');
            tokens.push(line.trim_matches(around).into());
        }
        let mut by_spelling: Vec<u32> = (0..tokens.len() as u32).collect();
        by_spelling.sort_by_key(|&id| (&tokens[id as usize], std::cmp::Reverse(id)));
        by_spelling.dedup_by_key(|id| &tokens[*id as usize]);
        Ok(Vocabulary { tokens, by_spelling })
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn token(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).map(AsRef::as_ref)
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        let at = self.by_spelling.binary_search_by(|&id| self.tokens[id as usize].as_ref().cmp(token)).ok()?;
        Some(self.by_spelling[at])
    }

    pub(super) fn count_with_prefix(&self, prefix: &str) -> usize {
        self.by_spelling.iter().filter(|id| self.tokens[**id as usize].starts_with(prefix)).count()
    }

    /// Pieces with which texts are spelled: those tokens that begin with `prefix`, which texts do not have, and whose
    /// id passes.
    pub(super) fn pieces(&self, prefix: &'static str, passes: impl Fn(u32) -> bool) -> Pieces {
        let spelled = |id: &u32| self.tokens[*id as usize].strip_prefix(prefix).filter(|rest| !rest.is_empty());
        let order: Vec<u32> =
            self.by_spelling.iter().copied().filter(|id| spelled(id).is_some() && passes(*id)).collect();
        let mut starts: HashMap<char, (u32, u32)> = HashMap::new();
        for (at, first) in order.iter().filter_map(|id| spelled(id)?.chars().next()).enumerate() {
            let at = at as u32;
            starts.entry(first).or_insert((at, at)).1 = at + 1;
        }
        Pieces { prefix, order, starts }
    }

    /// The longest of `pieces` that `text` begins with: its bytes in the text and its id. Tokens are sorted, so those
    /// that continue as the text does are a range that shrinks with every character.
    pub(super) fn longest(&self, pieces: &Pieces, text: &str) -> Option<(usize, u32)> {
        let first = text.chars().next()?;
        let (low, high) = *pieces.starts.get(&first)?;
        let mut range = &pieces.order[low as usize..high as usize];
        let rest = |id: u32, from: usize| &self.tokens[id as usize].as_bytes()[pieces.prefix.len() + from..];
        let mut found = None;
        let mut matched = first.len_utf8();
        loop {
            let shortest = *range.first()?;
            if rest(shortest, matched).is_empty() {
                found = Some((matched, shortest));
                range = &range[1..];
            }
            let Some(next) = text[matched..].chars().next() else { return found };
            let mut bytes = [0; 4];
            let next = next.encode_utf8(&mut bytes).as_bytes();
            range = &range[range.partition_point(|&id| rest(id, matched) < next)..];
            range = &range[..range.partition_point(|&id| rest(id, matched).starts_with(next))];
            if range.is_empty() {
                return found;
            }
            matched += next.len();
        }
    }
}

/// A choice of tokens in the order of their spellings, made by [`Vocabulary::pieces`].
pub(super) struct Pieces {
    prefix: &'static str,
    order: Vec<u32>,
    /// Range of them that begin with a character.
    starts: HashMap<char, (u32, u32)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary(tokens: &[&str]) -> Vocabulary {
        Vocabulary::parse("v", tokens.join("\n").as_bytes()).unwrap()
    }

    #[test]
    fn the_longest_token_is_the_one_that_trying_every_length_finds() {
        let tokens = ["a", "ab", "abcd", "b", "bc", "中", "中国", "中国人民", "国人", "##", "##a", "é", "éa", "", "ab"];
        let vocabulary = vocabulary(&tokens);
        let pieces = vocabulary.pieces("", |id| tokens[id as usize] != "bc");
        let letters = ['a', 'b', 'c', 'd', '中', '国', '人', '民', '#', 'é'];
        // Every text of four letters.
        for number in 0..letters.len().pow(4) {
            let text: String = (0..4).map(|at| letters[number / letters.len().pow(at) % letters.len()]).collect();
            let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
            let known = |end: &usize| tokens.iter().any(|token| *token == &text[..*end] && *token != "bc");
            let want = ends.filter(known).max().map(|end| (end, vocabulary.id(&text[..end]).unwrap()));
            assert_eq!(vocabulary.longest(&pieces, &text), want, "{text}");
        }
        assert_eq!(vocabulary.longest(&pieces, ""), None);
    }

    #[test]
    fn a_prefix_that_texts_do_not_have_is_left_out_of_the_match() {
        let vocabulary = vocabulary(&["ab", "##ab", "##a", "##"]);
        let pieces = vocabulary.pieces("##", |_| true);
        assert_eq!(vocabulary.longest(&pieces, "abc"), Some((2, 1)));
        assert_eq!(vocabulary.longest(&pieces, "ac"), Some((1, 2)));
        assert_eq!(vocabulary.longest(&pieces, "#"), None);
    }

    #[test]
    fn a_spelling_that_is_there_twice_has_its_later_id_and_both_ids_are_spelled() {
        let vocabulary = vocabulary(&[" a\r", "b", "a"]);
        assert_eq!((vocabulary.id("a"), vocabulary.id("b"), vocabulary.id("c")), (Some(2), Some(1), None));
        assert_eq!((vocabulary.token(0), vocabulary.token(2), vocabulary.token(3)), (Some("a"), Some("a"), None));
    }

    #[test]
    fn files_that_are_no_vocabulary_are_named() {
        let refused = |bytes: &[u8]| Vocabulary::parse("dir/vocab.txt", bytes).err().unwrap().to_string();
        assert!(refused(b"a\n\xFF\n").contains("dir/vocab.txt:2"));
        assert!(refused(b"").contains("empty"));
        assert!(refused(&b"a\n".repeat(MAX_TOKENS + 1)).contains("more than 1048576 tokens"));
    }
}
