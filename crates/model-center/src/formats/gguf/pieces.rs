//! Vocabularies of SentencePiece's kinds in GGUF files: pieces of text with scores.
//!
//! Defines [`pieces`] and [`parts`]; called by [`super::tokenizer`]. What such a vocabulary is as `tokenizer.json` is
//! [`crate::tokenizer::pieces`]' business, which SentencePiece's own files go through too.

use super::tokenizer::{FIX, Parts, Words};
use super::{GgufArray, GgufValue};
use crate::Result;
use crate::tokenizer::pieces::{Cutting, Kind, Piece, Pieces};

pub(super) const SCORES: &str = "tokenizer.ggml.scores";
/// Whether spaces at the ends, and all but one of several together, are left out.
pub(super) const TRIMS: &str = "tokenizer.ggml.remove_extra_whitespaces";
/// SentencePiece's compiled table of replacements.
pub(super) const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// The pieces of a vocabulary. `prefixed` is whether a space is put before every text.
pub(super) fn pieces<'a>(
    words: &Words<'a>,
    cutting: Cutting,
    prefixed: bool,
    unknown: Option<u64>,
) -> Result<Pieces<'a>> {
    let metadata = words.metadata;
    let scores = match metadata.get(SCORES) {
        Some(GgufValue::Array(GgufArray::F32(scores))) if scores.len() == words.tokens.len() => scores,
        Some(_) => {
            let reason = format!("these are no scores for {} words", words.tokens.len());
            return Err(metadata.unfit(SCORES, reason, FIX));
        }
        None => return Err(metadata.lacking(SCORES)),
    };
    let charsmap: &[u8] = match metadata.get(CHARSMAP) {
        None => &[],
        Some(GgufValue::Array(GgufArray::U8(bytes))) => bytes,
        Some(GgufValue::Array(GgufArray::I8(bytes))) => bytemuck::cast_slice(bytes),
        Some(_) => return Err(metadata.unfit(CHARSMAP, "the value is no array of bytes", FIX)),
    };
    let kinds = words.types.iter().map(|kind| match kind {
        2 => Kind::Unknown,
        3 => Kind::Control,
        4 => Kind::UserDefined,
        5 => Kind::Unused,
        6 => Kind::Byte,
        _ => Kind::Normal,
    });
    let all = words.tokens.iter().zip(scores).zip(kinds);
    Ok(Pieces {
        place: metadata.place_of(super::tokenizer::TOKENS),
        words: all.map(|((text, score), kind)| Piece { text, score: *score, kind }).collect(),
        cutting,
        charsmap,
        prefixed,
        trimmed: metadata.truth(TRIMS)?.unwrap_or(cutting == Cutting::Unigram),
        byte_fallback: words.types.contains(&6),
        unknown: unknown.and_then(|id| usize::try_from(id).ok()),
    })
}

/// The parts of `tokenizer.json` that are this kind's own.
pub(super) fn parts(pieces: &Pieces<'_>) -> Result<Parts> {
    let parts = pieces.parts()?;
    // Both kinds are cut without the tokens of beginning and end only where the file says so.
    let ends = pieces.cutting == Cutting::Unigram;
    Ok(Parts { parts, added: Some(pieces.added()), begins: !ends, ends, processor: None })
}
