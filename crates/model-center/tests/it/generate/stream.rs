//! Texts token by token: whole characters, stop strings, spaces.

use model_center::Result;
use model_center::generate::{TextStream, check_stop_strings};
use model_center::tokenizer::{SpecialIds, Template, Tokenizer};

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
    let (chunks, _, _) = super::stream::chunks(&[0x80; 6], &[]);
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
    let mut stream = TextStream::new(&tokenizer, [].as_slice()).unwrap();
    let text: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    assert_eq!(text + &stream.finish().unwrap(), tokenizer.decode(&ids, true).unwrap());
}

#[test]
fn common_prefixes_are_whole_characters() {}

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
