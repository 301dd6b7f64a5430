//! Vocabularies of SentencePiece's kinds in GGUF files: pieces of text with scores.
//!
//! Defines [`pieces`] and [`parts`]; called by [`super::tokenizer`]. What such a vocabulary is as `tokenizer.json` is
//! [`crate::tokenizer::pieces`]' business, which SentencePiece's own files go through too.

use super::tokenizer::{FIX, GgufParts, Vocabulary};
use super::{GgufArray, GgufValue};
use crate::Result;
use crate::tokenizer::pieces::{Cutting, PieceKind, PieceVocabulary, ScoredPiece};

pub(super) const SCORES: &str = "tokenizer.ggml.scores";
/// Whether spaces at the ends, and all but one of several together, are left out.
pub(super) const TRIMS: &str = "tokenizer.ggml.remove_extra_whitespaces";
/// SentencePiece's compiled table of replacements.
pub(super) const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// The pieces of a vocabulary. `prefixed` is whether a space is put before every text.
pub(super) fn pieces<'a>(
    vocabulary: &Vocabulary<'a>,
    cutting: Cutting,
    prefixed: bool,
    unknown: Option<u64>,
) -> Result<PieceVocabulary<'a>> {
    let metadata = vocabulary.metadata;
    let scores = match metadata.get(SCORES) {
        Some(GgufValue::Array(GgufArray::F32(scores))) if scores.len() == vocabulary.tokens.len() => scores,
        Some(_) => {
            let reason = format!("these are no scores for {} tokens", vocabulary.tokens.len());
            return Err(metadata.unfit(SCORES, reason, FIX));
        }
        None => return Err(metadata.lacking(SCORES)),
    };
    let charsmap: &[u8] = match metadata.get(CHARSMAP) {
        None => &[],
        Some(GgufValue::Array(GgufArray::U8(bytes))) => bytes,
        Some(GgufValue::Array(GgufArray::I8(bytes))) => bytemuck::cast_slice(bytes),
        Some(_) => return Err(metadata.unfit(CHARSMAP, "the value is not an array of bytes", FIX)),
    };
    // What has no type, 0, is text.
    let kind = |number: &i32| u64::try_from(*number).ok().and_then(PieceKind::of).unwrap_or(PieceKind::Normal);
    let kinds = vocabulary.types.iter().map(kind);
    let all = vocabulary.tokens.iter().zip(scores).zip(kinds);
    Ok(PieceVocabulary {
        place: metadata.place_of(super::tokenizer::TOKENS),
        pieces: all.map(|((text, score), kind)| ScoredPiece { text, score: *score, kind }).collect(),
        cutting,
        charsmap,
        prefixed,
        trimmed: metadata.truth(TRIMS)?.unwrap_or(cutting == Cutting::Unigram),
        byte_fallback: vocabulary.types.contains(&6),
        unknown: unknown.and_then(|id| usize::try_from(id).ok()),
    })
}

pub(super) fn parts(pieces: &PieceVocabulary<'_>) -> Result<GgufParts> {
    let parts = pieces.parts()?;
    // By default neither kind adds BOS and EOS; the file may.
    let ends = pieces.cutting == Cutting::Unigram;
    Ok(GgufParts { parts, added: Some(pieces.added()), begins: !ends, ends, processor: None })
}
