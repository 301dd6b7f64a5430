//! Vocabularies of pieces in GGUF files: SentencePiece's kinds, with scores, and BERT's.
//!
//! Defines [`pieces`], [`parts`] and [`word_pieces`]; called by [`super`]. [`crate::tokenizer`] makes the
//! parts of a `tokenizer.json` of them, as of SentencePiece's own files and of `vocab.txt`.

use serde_json::Value;

use super::{CONTROL, FIX, GgufParts, SPECIAL, Special, TOKENS, Vocabulary};
use crate::Result;
use crate::formats::gguf::{GgufArray, GgufValue};
use crate::tokenizer::{
    VocabOptions,
    files::Settings,
    pieces::{self as sentencepiece, Cutting, PieceKind, PieceVocabulary, ScoredPiece},
    vocab::of_tokens,
};

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
        place: metadata.place_of(TOKENS),
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

/// The `tokenizer.json` of BERT's vocabulary, which marks the tokens that begin a word instead of those that continue
/// one. Texts are lower-cased if no token has an ASCII capital: the file does not specify it.
pub(super) fn word_pieces(vocabulary: &Vocabulary<'_>, special: &Special<'_>) -> Result<Value> {
    let name = |key: &str, usual: String| {
        let at = SPECIAL.iter().position(|(_, known)| *known == key);
        at.and_then(|at| special[at]).map_or(usual, |(token, _)| token.to_owned())
    };
    let all = || vocabulary.tokens.iter().zip(vocabulary.types);
    let usual = VocabOptions::default();
    let options = VocabOptions {
        lowercase: !all().any(|(token, kind)| *kind != CONTROL && token.bytes().any(|byte| byte.is_ascii_uppercase())),
        unk: name("unk_token", usual.unk),
        cls: name("cls_token", usual.cls),
        sep: name("sep_token", usual.sep),
        pad: name("pad_token", usual.pad),
        mask: name("mask_token", usual.mask),
        ..usual
    };
    let tokens: Vec<String> = all()
        .map(|(token, kind)| match token.strip_prefix(sentencepiece::SPACE) {
            Some(word) => word.to_owned(),
            None if *kind == CONTROL => token.to_string(),
            None => format!("##{token}"),
        })
        .collect();
    of_tokens(&vocabulary.metadata.place_of(TOKENS), tokens.iter().map(String::as_str), &options, &Settings::default())
}
