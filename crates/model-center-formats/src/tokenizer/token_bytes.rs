//! The bytes of tokens, where a text is the bytes of its tokens joined.
//!
//! Adds [`TokenBytes::of`], called by [`super::HfTokenizer`], for decoders of byte-level and of SentencePiece's
//! vocabularies.

use super::TokenBytes;
use super::pieces::SPACE;
use serde_json::Value;
use std::collections::HashMap;

/// Rule by which a decoder makes a text of tokens' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Spelling {
    /// Each character of a name is a byte.
    is_byte_level: bool,
    /// A mark in a name is a space.
    has_marks: bool,
    /// Names such as `<0x0A>` are bytes.
    has_bytes: bool,
    /// Tokens are one text before what follows.
    is_fused: bool,
    loses_space: bool,
}

impl Spelling {
    /// The spelling of a decoder of `tokenizer.json`; `None` of one that does more than join.
    fn of(decoder: &Value) -> Option<Self> {
        let mut spelling = Spelling::default();
        match decoder.get("type")?.as_str()? {
            "Sequence" => {
                let steps = decoder.get("decoders")?.as_array()?;
                steps.iter().try_for_each(|step| spelling.add(step))?;
            }
            _ => spelling.add(decoder)?,
        }
        (spelling.is_byte_level != spelling.has_marks).then_some(spelling)
    }

    fn add(&mut self, step: &Value) -> Option<()> {
        let text = |name: &str| step.get(name).and_then(Value::as_str);
        match step.get("type")?.as_str()? {
            "ByteLevel" if !self.is_fused => self.is_byte_level = true,
            "Metaspace" if text("replacement") == Some(SPACE) && !self.is_fused => {
                self.has_marks = true;
                self.loses_space |= text("prepend_scheme") != Some("never");
            }
            "Replace" if step.pointer("/pattern/String").and_then(Value::as_str) == Some(SPACE) => {
                (text("content") == Some(" ")).then_some(())?;
                self.has_marks = true;
            }
            "ByteFallback" if !self.is_fused => self.has_bytes = true,
            "Fuse" => self.is_fused = true,
            "Strip" if self.is_fused && text("content") == Some(" ") => {
                let [start, stop] = ["start", "stop"].map(|name| step.get(name).and_then(Value::as_u64));
                (start? <= 1 && stop? == 0).then_some(())?;
                self.loses_space |= start == Some(1);
            }
            _ => return None,
        }
        Some(())
    }
}

impl TokenBytes {
    /// The bytes of tokens by their names, with an empty one for each special token, by the decoder that they have.
    pub(super) fn of(decoder: &Value, names: impl Iterator<Item = Option<String>>) -> Option<Self> {
        let spelling = Spelling::of(decoder)?;
        let alphabet = alphabet();
        let bytes = names.map(|name| {
            let name = name.unwrap_or_default();
            if spelling.is_byte_level {
                let bytes: Option<Vec<u8>> = name.chars().map(|c| alphabet.get(&c).copied()).collect();
                return bytes.unwrap_or_else(|| name.into_bytes()).into();
            }
            match byte_of(&name).filter(|_| spelling.has_bytes) {
                Some(byte) => [byte].into(),
                None => name.replace(SPACE, " ").into_bytes().into(),
            }
        });
        Some(TokenBytes { bytes: bytes.collect(), loses_space: spelling.loses_space })
    }
}

/// The byte of a name such as `<0x0A>`.
fn byte_of(name: &str) -> Option<u8> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The characters of GPT-2 for bytes: those that are printed are themselves, the others come after Latin-1.
fn alphabet() -> HashMap<char, u8> {
    let is_printed = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let printed = (0..=u8::MAX).filter(is_printed).map(|byte| (char::from(byte), byte));
    let others = (0..=u8::MAX).filter(|byte| !is_printed(byte));
    let others = ('\u{100}'..).zip(others);
    printed.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bytes(decoder: &Value, names: &[&str]) -> Option<(Vec<Vec<u8>>, bool)> {
        let of = TokenBytes::of(decoder, names.iter().map(|name| Some((*name).to_owned())))?;
        Some((of.bytes.iter().map(|bytes| bytes.to_vec()).collect(), of.loses_space))
    }

    #[test]
    fn names_are_bytes_by_their_decoder() {
        let level = json!({"type": "ByteLevel"});
        let (of_level, loses) = bytes(&level, &["Ġa", "Ċ", "Ã©", "<think>", "a b", "", "ľ"]).unwrap();
        let expected: [&[u8]; 7] = [b" a", b"\n", &[0xC3, 0xA9], b"<think>", b"a b", b"", &[0x9C]];
        assert_eq!((of_level, loses), (expected.map(<[u8]>::to_vec).to_vec(), false));
        let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let (fallback, fuse) = (json!({"type": "ByteFallback"}), json!({"type": "Fuse"}));
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
        let llama = json!({"type": "Sequence", "decoders": [replace, fallback, fuse, strip]});
        let (of_pieces, loses) = bytes(&llama, &["▁a▁b", "<0x0A>", "<0xZZ>", "é"]).unwrap();
        let expected: [&[u8]; 4] = [b" a b", b"\n", b"<0xZZ>", "é".as_bytes()];
        assert_eq!((of_pieces, loses), (expected.map(<[u8]>::to_vec).to_vec(), true));
        let gemma = json!({"type": "Sequence", "decoders": [replace, fallback, fuse]});
        assert!(!bytes(&gemma, &["a"]).unwrap().1);
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        assert_eq!(bytes(&metaspace, &["▁a", "<0x0A>"]), Some((vec![b" a".to_vec(), b"<0x0A>".to_vec()], true)));
        for other in [
            json!(null),
            json!({"type": "WordPiece"}),
            json!({"type": "Sequence", "decoders": [replace, strip]}),
            json!({"type": "Sequence", "decoders": [fuse]}),
            json!({"type": "Sequence", "decoders": [{"type": "BPEDecoder", "suffix": "</w>"}]}),
        ] {
            assert_eq!(bytes(&other, &["a"]), None, "{other}");
        }
    }
}
