//! Text of words as they come: whole characters only, and nothing of what a stop string may turn out to be.
//!
//! Defines [`TextStream`]; called for every row that is generated, shown or not, because texts that end generation may
//! span words.

use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// What stands for bytes that are no character, as yet or at all.
const BROKEN: char = '\u{FFFD}';
/// So many words may be withheld because their bytes make no character yet; no character has more bytes.
const LONGEST_CHARACTER: usize = 4;

/// The text of one row.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a dyn Tokenizer,
    stops: &'a [String],
    /// All words.
    ids: Vec<u32>,
    /// Words from here on are decoded together, so that a decoder sees a word before the new ones.
    context: usize,
    /// Words up to here are in the text.
    shown: usize,
    /// Text that may be the beginning of a stop string.
    held: String,
    is_stopped: bool,
}

/// Check strings that end a text.
///
/// # Errors
/// An empty one, which would end every text at once.
pub fn check_stops(stops: &[String]) -> Result<()> {
    match stops.iter().any(String::is_empty) {
        true => Err(Error::argument("stop", "an empty text ends every text at once", "remove it")),
        false => Ok(()),
    }
}

impl<'a> TextStream<'a> {
    /// Begin a text that ends in front of the first of these strings.
    ///
    /// # Errors
    /// Those of [`check_stops`].
    pub fn new(tokenizer: &'a dyn Tokenizer, stops: &'a [String]) -> Result<Self> {
        check_stops(stops)?;
        let (ids, held) = (Vec::new(), String::new());
        Ok(TextStream { tokenizer, stops, ids, context: 0, shown: 0, held, is_stopped: false })
    }

    /// Whether a stop string has come.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Take the next word; gives the text that is certain now, without special words.
    ///
    /// # Errors
    /// Words that the tokenizer cannot decode.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if self.is_stopped {
            return Ok(String::new());
        }
        self.ids.push(id);
        let is_last = self.ids.len() - self.shown > LONGEST_CHARACTER;
        let piece = self.next_piece(is_last)?;
        self.held.push_str(&piece);
        if let Some(place) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.is_stopped = true;
            self.held.truncate(place);
            return Ok(std::mem::take(&mut self.held));
        }
        let open = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - open);
        Ok(std::mem::replace(&mut self.held, rest))
    }

    /// The end: gives what was withheld.
    ///
    /// # Errors
    /// Words that the tokenizer cannot decode.
    pub fn finish(mut self) -> Result<String> {
        if self.is_stopped {
            return Ok(String::new());
        }
        let piece = self.next_piece(true)?;
        Ok(self.held + &piece)
    }

    /// Text of the words that are not shown yet. Nothing if it ends within a character, unless no more is to come.
    fn next_piece(&mut self, is_last: bool) -> Result<String> {
        let decode = |from: usize, to: usize| self.tokenizer.decode(&self.ids[from..to], true);
        let (before, all) = (decode(self.context, self.shown)?, decode(self.context, self.ids.len())?);
        if all.ends_with(BROKEN) && !is_last {
            return Ok(String::new());
        }
        // Words before may be written differently in view of the new ones: what is shown of them stays as it is.
        let piece = all[shared(&before, &all)..].to_string();
        // What gives no text, as special words do, is no context: behind it alone a word would be the first of its
        // text, which some decoders write without the space in front.
        if !piece.is_empty() {
            self.context = self.shown;
        }
        self.shown = self.ids.len();
        Ok(piece)
    }
}

/// Bytes that two texts begin with alike, whole characters only.
fn shared(one: &str, other: &str) -> usize {
    let alike = one.char_indices().zip(other.chars()).find(|((_, a), b)| a != b);
    alike.map_or(one.len().min(other.len()), |((place, _), _)| place)
}

/// Bytes at the end of `text` that are the beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let lengths = (1..stop.len()).rev().filter(|&length| stop.is_char_boundary(length));
    lengths.into_iter().find(|&length| text.ends_with(&stop[..length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tokenizer::{SpecialIds, Template};

    /// A word is a byte; 256 is special.
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

    /// The pieces of a text, and what is left at the end.
    fn pieces(text: &[u8], stops: &[&str]) -> (Vec<String>, String, bool) {
        let tokenizer = Bytes(Template::default());
        let stops: Vec<String> = stops.iter().map(|stop| stop.to_string()).collect();
        let mut stream = TextStream::new(&tokenizer, &stops).unwrap();
        let pieces = text.iter().map(|&byte| stream.push(u32::from(byte)).unwrap()).collect();
        let is_stopped = stream.is_stopped();
        (pieces, stream.finish().unwrap(), is_stopped)
    }

    #[test]
    fn characters_come_whole() {
        let (pieces, rest, _) = pieces("aé🙂b".as_bytes(), &[]);
        assert_eq!(pieces, ["a", "", "é", "", "", "", "🙂", "b"]);
        assert_eq!(rest, "");
    }

    #[test]
    fn bytes_that_are_no_character_do_not_hold_up_the_rest() {
        let (pieces, rest, _) = pieces(&[0xF0, b'a', b'b', 0xE2], &[]);
        assert_eq!(pieces.concat() + &rest, "\u{FFFD}ab\u{FFFD}");
        let (pieces, _, _) = super::tests::pieces(&[0x80; 6], &[]);
        assert_eq!(pieces.concat(), "\u{FFFD}".repeat(5));
    }

    /// Words with a space in front, which the first of a text loses; 0 is special.
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
            let words: String = ids.iter().filter(|id| **id > 0).map(|id| format!(" w{id}")).collect();
            Ok(words.trim_start().to_owned())
        }

        fn token(&self, _id: u32) -> Option<String> {
            None
        }

        fn id(&self, _token: &str) -> Option<u32> {
            None
        }
    }

    #[test]
    fn a_word_behind_a_special_one_keeps_its_space() {
        let tokenizer = Spaced(Template::default());
        let ids = [0, 1, 0, 2, 0, 0, 3, 4, 0];
        let mut stream = TextStream::new(&tokenizer, &[]).unwrap();
        let shown: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
        assert_eq!(shown + &stream.finish().unwrap(), tokenizer.decode(&ids, true).unwrap());
    }

    #[test]
    fn what_is_shown_of_broken_bytes_does_not_swallow_what_follows() {
        assert_eq!((shared("a\u{FFFD}", "aé b"), shared("ab", "abc"), shared("", "x")), (1, 2, 0));
    }

    #[test]
    fn nothing_of_a_stop_string_is_shown() {
        let (pieces, rest, stopped) = pieces(b"one<e><end>two", &["<end>", "zzz"]);
        assert_eq!(pieces.concat(), "one<e>");
        assert_eq!((rest.as_str(), stopped), ("", true));
        assert_eq!((pieces[3..5].concat().as_str(), pieces[5].as_str()), ("", "<e>"));
    }

    #[test]
    fn what_was_withheld_in_vain_comes_at_the_end() {
        let (pieces, rest, stopped) = pieces(b"a<en", &["<end>"]);
        assert_eq!((pieces.concat().as_str(), rest.as_str(), stopped), ("a", "<en", false));
    }

    #[test]
    fn the_first_of_several_ends_the_text() {
        let (pieces, _, stopped) = pieces(b"a.b\n", &["\n", "b\n", "."]);
        assert_eq!((pieces.concat().as_str(), stopped), ("a", true));
        assert!(check_stops(&[String::new()]).is_err());
    }
}
