//! Incremental decoding of tokens to text: whole characters only, and nothing that may be part of a stop string.

use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// Replaces incomplete or invalid UTF-8.
const BROKEN: char = '\u{FFFD}';
/// The most bytes of a character, and so the most tokens that may be withheld.
const LONGEST_CHARACTER: usize = 4;

/// The text of a sequence, token by token.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a dyn Tokenizer,
    stop_strings: &'a [String],
    ids: Vec<u32>,
    /// Start of the tokens that are decoded together: a token before the new ones may change their text.
    context: usize,
    /// End of the tokens whose text was returned.
    returned: usize,
    /// Withheld text: it may be the start of a stop string.
    held: String,
    is_stopped: bool,
}

/// Check that no stop string is empty.
pub fn check_stop_strings(stop_strings: &[String]) -> Result<()> {
    match stop_strings.iter().any(String::is_empty) {
        true => Err(Error::argument("stop", "an empty text ends every text at once", "remove it")),
        false => Ok(()),
    }
}

impl<'a> TextStream<'a> {
    /// Start a text that ends before the first stop string.
    pub fn new(tokenizer: &'a dyn Tokenizer, stop_strings: &'a [String]) -> Result<Self> {
        check_stop_strings(stop_strings)?;
        let (ids, held) = (Vec::new(), String::new());
        Ok(TextStream { tokenizer, stop_strings, ids, context: 0, returned: 0, held, is_stopped: false })
    }

    /// Whether the text has a stop string.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Append a token; returns the text that is certain now, without special tokens.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if self.is_stopped {
            return Ok(String::new());
        }
        self.ids.push(id);
        let is_last = self.ids.len() - self.returned > LONGEST_CHARACTER;
        let chunk = self.next_chunk(is_last)?;
        self.held.push_str(&chunk);
        if let Some(place) = self.stop_strings.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.is_stopped = true;
            self.held.truncate(place);
            return Ok(std::mem::take(&mut self.held));
        }
        let open = self.stop_strings.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - open);
        Ok(std::mem::replace(&mut self.held, rest))
    }

    /// End the text; returns what was withheld.
    pub fn finish(mut self) -> Result<String> {
        if self.is_stopped {
            return Ok(String::new());
        }
        let chunk = self.next_chunk(true)?;
        Ok(self.held + &chunk)
    }

    /// The text of the new tokens; empty if it ends within a character, unless it is the last.
    fn next_chunk(&mut self, is_last: bool) -> Result<String> {
        let decode = |from: usize, to: usize| self.tokenizer.decode(&self.ids[from..to], true);
        let (before, all) = (decode(self.context, self.returned)?, decode(self.context, self.ids.len())?);
        if all.ends_with(BROKEN) && !is_last {
            return Ok(String::new());
        }
        // New tokens may change the text of earlier ones: returned text is kept as it is.
        let chunk = all[shared(&before, &all)..].to_string();
        // A token without text, such as a special one, is not used as context: some decoders drop the leading space of
        // the first token with text.
        if !chunk.is_empty() {
            self.context = self.returned;
        }
        self.returned = self.ids.len();
        Ok(chunk)
    }
}

/// Length of the common prefix in bytes, whole characters only.
fn shared(one: &str, other: &str) -> usize {
    let alike = one.char_indices().zip(other.chars()).find(|((_, a), b)| a != b);
    alike.map_or(one.len().min(other.len()), |((place, _), _)| place)
}

/// Length of the longest end of `text` that is a proper prefix of `stop`, in bytes.
fn overlap(text: &str, stop: &str) -> usize {
    let lengths = (1..stop.len()).rev().filter(|&length| stop.is_char_boundary(length));
    lengths.into_iter().find(|&length| text.ends_with(&stop[..length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tokenizer::{SpecialIds, Template};

    /// Byte tokens; 256 is special.
    #[derive(Debug)]
    struct Bytes(Template);

    impl Tokenizer for Bytes {
        fn tokenize(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>> {
            Ok(texts.iter().map(|text| text.bytes().map(u32::from).collect()).collect())
        }

        fn template(&self, _pair: bool) -> &Template {
            &self.0
        }

        fn special_ids(&self) -> SpecialIds {
            SpecialIds::default()
        }

        fn vocab_size(&self) -> usize {
            257
        }

        fn decode(&self, ids: &[u32], _skip_special: bool) -> Result<String> {
            let bytes: Vec<u8> = ids.iter().filter_map(|&id| u8::try_from(id).ok()).collect();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }

        fn token(&self, _id: u32) -> Option<String> {
            None
        }

        fn id(&self, _token: &str) -> Option<u32> {
            None
        }
    }

    /// The chunks of a text, and the rest at its end.
    fn chunks(text: &[u8], stop_strings: &[&str]) -> (Vec<String>, String, bool) {
        let tokenizer = Bytes(Template::default());
        let stop_strings: Vec<String> = stop_strings.iter().map(|stop| stop.to_string()).collect();
        let mut stream = TextStream::new(&tokenizer, &stop_strings).unwrap();
        let chunks = text.iter().map(|&byte| stream.push(u32::from(byte)).unwrap()).collect();
        let is_stopped = stream.is_stopped();
        (chunks, stream.finish().unwrap(), is_stopped)
    }

    #[test]
    fn characters_are_whole() {
        let (chunks, rest, _) = chunks("aé🙂b".as_bytes(), &[]);
        assert_eq!(chunks, ["a", "", "é", "", "", "", "🙂", "b"]);
        assert_eq!(rest, "");
    }

    #[test]
    fn invalid_bytes_are_not_withheld_for_ever() {
        let (chunks, rest, _) = chunks(&[0xF0, b'a', b'b', 0xE2], &[]);
        assert_eq!(chunks.concat() + &rest, "\u{FFFD}ab\u{FFFD}");
        let (chunks, _, _) = super::tests::chunks(&[0x80; 6], &[]);
        assert_eq!(chunks.concat(), "\u{FFFD}".repeat(5));
    }

    /// Tokens with a leading space, which the first of a text loses; 0 is special.
    #[derive(Debug)]
    struct Spaced(Template);

    impl Tokenizer for Spaced {
        fn tokenize(&self, _texts: &[&str]) -> Result<Vec<Vec<u32>>> {
            Ok(Vec::new())
        }

        fn template(&self, _pair: bool) -> &Template {
            &self.0
        }

        fn special_ids(&self) -> SpecialIds {
            SpecialIds::default()
        }

        fn vocab_size(&self) -> usize {
            9
        }

        fn decode(&self, ids: &[u32], _skip_special: bool) -> Result<String> {
            let tokens: String = ids.iter().filter(|id| **id > 0).map(|id| format!(" w{id}")).collect();
            Ok(tokens.trim_start().to_owned())
        }

        fn token(&self, _id: u32) -> Option<String> {
            None
        }

        fn id(&self, _token: &str) -> Option<u32> {
            None
        }
    }

    #[test]
    fn a_token_after_a_special_one_keeps_its_space() {
        let tokenizer = Spaced(Template::default());
        let ids = [0, 1, 0, 2, 0, 0, 3, 4, 0];
        let mut stream = TextStream::new(&tokenizer, &[]).unwrap();
        let text: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
        assert_eq!(text + &stream.finish().unwrap(), tokenizer.decode(&ids, true).unwrap());
    }

    #[test]
    fn common_prefixes_are_whole_characters() {
        assert_eq!((shared("a\u{FFFD}", "aé b"), shared("ab", "abc"), shared("", "x")), (1, 2, 0));
    }

    #[test]
    fn nothing_of_a_stop_string_is_returned() {
        let (chunks, rest, stopped) = chunks(b"one<e><end>two", &["<end>", "zzz"]);
        assert_eq!(chunks.concat(), "one<e>");
        assert_eq!((rest.as_str(), stopped), ("", true));
        assert_eq!((chunks[3..5].concat().as_str(), chunks[5].as_str()), ("", "<e>"));
    }

    #[test]
    fn withheld_text_is_returned_at_the_end() {
        let (chunks, rest, stopped) = chunks(b"a<en", &["<end>"]);
        assert_eq!((chunks.concat().as_str(), rest.as_str(), stopped), ("a", "<en", false));
    }

    #[test]
    fn the_first_of_several_ends_the_text() {
        let (chunks, _, stopped) = chunks(b"a.b\n", &["\n", "b\n", "."]);
        assert_eq!((chunks.concat().as_str(), stopped), ("a", true));
        assert!(check_stop_strings(&[String::new()]).is_err());
    }
}
