//! Incremental decoding of tokens to text: whole characters only, and nothing that may be part of a stop string.

use crate::{Error, Result};
use model_center_formats::tokenizer::Tokenizer;
use std::borrow::Cow;

/// Replaces incomplete or invalid UTF-8.
pub const BROKEN: char = '\u{FFFD}';
/// The most bytes of a character, and so the most tokens that may be withheld.
const LONGEST_CHARACTER: usize = 4;

/// The text of a sequence, token by token.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a dyn Tokenizer,
    stop_strings: Cow<'a, [String]>,
    ids: Vec<u32>,
    /// Start of the tokens that are decoded together: a token before the new ones may change their text.
    context: usize,
    /// End of the tokens whose text was returned.
    returned: usize,
    /// Withheld text: it may be the start of a stop string.
    held: String,
    is_stopped: bool,
    /// Special tokens that appear in the text, with their texts.
    kept: Vec<(u32, String)>,
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
    pub fn new(tokenizer: &'a dyn Tokenizer, stop_strings: impl Into<Cow<'a, [String]>>) -> Result<Self> {
        let stop_strings = stop_strings.into();
        check_stop_strings(&stop_strings)?;
        let (ids, held) = (Vec::new(), String::new());
        let kept = Vec::new();
        Ok(TextStream { tokenizer, stop_strings, ids, context: 0, returned: 0, held, is_stopped: false, kept })
    }

    /// The same with special tokens that appear in the text, each as its own text.
    #[must_use]
    pub fn keeping(self, kept: Vec<(u32, String)>) -> Self {
        TextStream { kept, ..self }
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
        let kept = self.kept.iter().find(|(kept, _)| *kept == id).map(|(_, text)| text.clone());
        let chunk = match kept {
            // The text before it ends, and another one begins after it.
            Some(text) => {
                let before = self.next_chunk(true)?;
                (self.context, self.returned) = (0, 0);
                self.ids.clear();
                before + &text
            }
            None => {
                self.ids.push(id);
                let is_last = self.ids.len() - self.returned > LONGEST_CHARACTER;
                self.next_chunk(is_last)?
            }
        };
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
    use super::shared;

    #[test]
    fn common_prefixes_are_whole_characters() {
        assert_eq!((shared("a\u{FFFD}", "aé b"), shared("ab", "abc"), shared("", "x")), (1, 2, 0));
    }
}
