//! A vocabulary of SentencePiece's kind as the parts of a `tokenizer.json`: pieces of text with scores, and how a text
//! is changed before it is cut.
//!
//! Defines [`PieceVocabulary`] with its [`ScoredPiece`], [`PieceKind`] and [`Cutting`].
//! Called by [`super::sentencepiece`] for `.model` files and by [`crate::formats::gguf`].

use std::collections::HashSet;

use serde_json::{Value, json};

use super::document::{BpeOptions, DocumentParts, added_token, bpe};
use crate::{Error, Result};
use model_center_base::file::printable;

/// Character for a space in pieces.
pub const SPACE: &str = "\u{2581}";
/// The longest piece that is split, in bytes: several times the longest of real vocabularies. The work grows with its
/// square.
const MAX_PIECE: usize = 256;
/// The most ways in which pieces are made of two others, for each piece on average; it is about 2 in real vocabularies.
const MAX_WAYS: usize = 4;
/// The error's fix for a vocabulary that contradicts itself.
const FIX: &str = "fetch the file again, or take the tokenizer's files from the model's own directory";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceKind {
    Normal,
    /// Text that cannot be spelled.
    Unknown,
    /// A token with a meaning of its own, never found in a text.
    Control,
    /// Found whole in a text.
    UserDefined,
    /// Never found in a text.
    Unused,
    /// One byte of what no piece spells.
    Byte,
}

/// One piece; its id is its place.
#[derive(Debug, Clone)]
pub(crate) struct ScoredPiece<'a> {
    pub(crate) text: &'a str,
    pub(crate) score: f32,
    pub(crate) kind: PieceKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cutting {
    /// Into the pieces with the best sum of scores.
    Unigram,
    /// By joining, again and again, the neighbours that make the piece of the best score. As merges in the order of
    /// those scores that is what `tokenizer.json` calls BPE.
    BytePairs,
    /// Into characters.
    Characters,
}

#[derive(Debug)]
pub(crate) struct PieceVocabulary<'a> {
    pub(crate) place: String,
    pub(crate) pieces: Vec<ScoredPiece<'a>>,
    pub(crate) cutting: Cutting,
    /// SentencePiece's compiled table of replacements; empty for none.
    pub(crate) charsmap: &'a [u8],
    /// Whether a space is put before every text.
    pub(crate) prefixed: bool,
    /// Whether spaces at the ends are left out, and of several together all but one.
    pub(crate) trimmed: bool,
    /// Whether what no piece spells becomes bytes.
    pub(crate) byte_fallback: bool,
    /// The piece for what cannot be spelled.
    pub(crate) unknown: Option<usize>,
}

impl PieceKind {
    /// The kind of its number in SentencePiece's files, which GGUF files have too.
    pub(crate) fn of(number: u64) -> Option<Self> {
        use PieceKind::{Byte, Control, Normal, Unknown, Unused, UserDefined};
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        [Normal, Unknown, Control, UserDefined, Unused, Byte].get(at).copied()
    }
}

impl PieceVocabulary<'_> {
    /// The parts of a `tokenizer.json`, without a post-processor.
    pub(crate) fn parts(&self) -> Result<DocumentParts> {
        let mut known = HashSet::with_capacity(self.pieces.len());
        for (id, piece) in self.pieces.iter().enumerate() {
            let text = printable(piece.text, 60);
            if !known.insert(piece.text) {
                return Err(self.bad(format!("piece {id}, \"{text}\", appears twice in the vocabulary")));
            }
            if !piece.score.is_finite() {
                return Err(self.bad(format!("the score of piece {id}, \"{text}\", is {}", piece.score)));
            }
        }
        let model = match self.cutting {
            Cutting::Unigram => self.unigram()?,
            Cutting::BytePairs => self.byte_pairs(self.merges(&known)?),
            Cutting::Characters => self.byte_pairs(Vec::new()),
        };
        Ok(DocumentParts {
            normalizer: self.normalizer()?,
            pre_tokenizer: if self.breaks_at_spaces(&known) { words_with_spaces() } else { Value::Null },
            post_processor: Value::Null,
            decoder: decoder(self.prefixed),
            model,
        })
    }

    /// The entries of `added_tokens`: control pieces, and user-defined ones. One that contains the space marker, which
    /// no text does, is matched as an ordinary piece.
    pub(crate) fn added(&self) -> Vec<Value> {
        let words = self.pieces.iter().enumerate().filter(|(_, piece)| !piece.text.is_empty());
        words
            .filter_map(|(id, piece)| match piece.kind {
                PieceKind::Unknown | PieceKind::Control => Some(added_token(piece.text, id, true)),
                PieceKind::UserDefined if !piece.text.contains(SPACE) => Some(added_token(piece.text, id, false)),
                _ => None,
            })
            .collect()
    }

    fn bad(&self, reason: impl Into<String>) -> Error {
        Error::model(&self.place, reason, FIX)
    }

    fn unigram(&self) -> Result<Value> {
        if self.unknown.is_none() {
            return Err(self.bad("no piece stands for what cannot be spelled"));
        }
        let vocab: Vec<Value> = self.pieces.iter().map(|piece| json!([piece.text, f64::from(piece.score)])).collect();
        Ok(json!({
            "type": "Unigram", "unk_id": self.unknown, "vocab": vocab, "byte_fallback": self.byte_fallback,
        }))
    }

    fn byte_pairs(&self, merges: Vec<Value>) -> Value {
        let vocab: serde_json::Map<String, Value> =
            self.pieces.iter().enumerate().map(|(id, piece)| (piece.text.to_string(), json!(id))).collect();
        let options = BpeOptions {
            unknown: self.unknown.and_then(|id| self.pieces.get(id)).map(|piece| piece.text),
            fuses_unknown: true,
            byte_fallback: self.byte_fallback,
            ignores_merges: false,
        };
        bpe(vocab, merges, options)
    }

    /// Every way to make a piece of two others, the best pieces first.
    fn merges(&self, known: &HashSet<&str>) -> Result<Vec<Value>> {
        let mut found: Vec<(f32, &str, &str)> = Vec::new();
        for piece in &self.pieces {
            let is_text =
                piece.kind == PieceKind::Normal || piece.kind == PieceKind::UserDefined && piece.text.contains(SPACE);
            if !is_text || piece.text.len() > MAX_PIECE {
                continue;
            }
            let splits = piece.text.char_indices().skip(1).map(|(at, _)| piece.text.split_at(at));
            found.extend(
                splits.filter(|(l, r)| known.contains(l) && known.contains(r)).map(|(l, r)| (piece.score, l, r)),
            );
            if found.len() > MAX_WAYS * self.pieces.len() {
                return Err(self.bad(format!("pieces are made of two others in more than {MAX_WAYS} ways each")));
            }
        }
        if found.is_empty() {
            return Err(self.bad("no piece is made of two others"));
        }
        // Which halves make a piece does not matter to SentencePiece; longer left ones first is how its converters
        // order them.
        found.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.len().cmp(&a.1.len())));
        Ok(found.into_iter().map(|(_, left, right)| json!([left, right])).collect())
    }

    fn normalizer(&self) -> Result<Value> {
        let replace =
            |pattern: Value, content: &str| json!({ "type": "Replace", "pattern": pattern, "content": content });
        let mut steps = Vec::new();
        if !self.charsmap.is_empty() {
            let map = checked_charsmap(self.charsmap).map_err(|reason| self.bad(reason))?;
            steps.push(json!({ "type": "Precompiled", "precompiled_charsmap": base64(map) }));
        }
        if self.trimmed {
            // One expression for each end: a section in the middle of a long text has no first one.
            steps.push(replace(json!({ "Regex": "^ +" }), ""));
            steps.push(replace(json!({ "Regex": " +$" }), ""));
            steps.push(replace(json!({ "Regex": " {2,}" }), " "));
        }
        if self.prefixed {
            steps.push(json!({ "type": "Prepend", "prepend": SPACE }));
        }
        steps.push(replace(json!({ "String": " " }), SPACE));
        Ok(json!({ "type": "Sequence", "normalizers": steps }))
    }

    /// Whether a text can be cut before every run of spaces without another result: no piece has a space after another
    /// character, and a space alone is a piece, so that what is unknown never reaches over it.
    fn breaks_at_spaces(&self, known: &HashSet<&str>) -> bool {
        let leads = |text: &str| !text.trim_start_matches(SPACE).contains(SPACE);
        known.contains(SPACE) && self.pieces.iter().all(|piece| piece.kind == PieceKind::Control || leads(piece.text))
    }
}

/// Words, each with its leading spaces.
fn words_with_spaces() -> Value {
    let pattern = format!("{SPACE}*[^{SPACE}]+|{SPACE}+");
    json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false })
}

/// Text out of pieces; a space was put before it if `prefixed`.
pub(crate) fn decoder(prefixed: bool) -> Value {
    let mut steps = vec![
        json!({ "type": "Replace", "pattern": { "String": SPACE }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if prefixed {
        steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    json!({ "type": "Sequence", "decoders": steps })
}

/// Checks the lengths of a compiled table of replacements: a trie of four-byte units, then texts. The library takes
/// memory for the units before it looks for them, and follows them without looking where they lead; what they may still
/// do is caught where it is called.
fn checked_charsmap(map: &[u8]) -> std::result::Result<&[u8], String> {
    let units = map.split_first_chunk::<4>().map(|(length, rest)| (u32::from_le_bytes(*length) as usize, rest));
    match units {
        Some((length, rest)) if length >= 4 && length.is_multiple_of(4) && length <= rest.len() => Ok(map),
        _ => Err(format!("the table of replacements, of {} bytes, is damaged", map.len())),
    }
}

/// Whether the same holds of a table in a `tokenizer.json`, which has it in base 64.
pub(super) fn is_charsmap(text: &str) -> bool {
    let digit = |byte: u8| ALPHABET.iter().position(|known| *known == byte).map(|at| at as u32);
    let Some(first) = text.as_bytes().first_chunk::<8>() else { return false };
    let mut bytes = first.chunks(4).flat_map(|group| {
        let bits = group.iter().try_fold(0u32, |bits, byte| Some(bits << 6 | digit(*byte)?));
        bits.unwrap_or(u32::MAX).to_be_bytes().into_iter().skip(1)
    });
    let length = std::array::from_fn(|_| bytes.next().unwrap_or(u8::MAX));
    let length = u32::from_le_bytes(length) as usize;
    // The table's length precedes it, and padding fills the last group.
    let filling = text.bytes().rev().take_while(|byte| *byte == b'=').count();
    let decoded = (text.len() / 4 * 3).saturating_sub(filling);
    length >= 4 && length.is_multiple_of(4) && length <= decoded.saturating_sub(4)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes in base 64, as `tokenizer.json` has them.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().enumerate().fold(0u32, |bits, (at, byte)| bits | u32::from(*byte) << (16 - 8 * at));
        for at in 0..4 {
            let sign = ALPHABET[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at <= group.len() { char::from(sign) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_in_base_64() {
        // The examples of RFC 4648.
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn a_table_of_replacements_with_wrong_lengths_is_refused() {
        let table = |claimed: u32| [&claimed.to_le_bytes()[..], &[0; 8]].concat();
        for (claimed, is_sound) in
            [(8, true), (4, true), (0, false), (6, false), (12, false), (u32::MAX, false), (u32::MAX - 3, false)]
        {
            let table = table(claimed);
            assert_eq!(checked_charsmap(&table).is_ok(), is_sound, "{claimed}");
            assert_eq!(is_charsmap(&base64(&table)), is_sound, "{claimed}");
        }
        assert!(checked_charsmap(&[8, 0, 0]).is_err());
        assert!(!is_charsmap("AAA"));
        assert!(!is_charsmap("????????????"));
    }
}
