//! Vocabularies of SentencePiece's byte-pair kind: pieces of text with scores, single bytes for what no piece spells.
//!
//! Defines [`parts`]; called by [`super::tokenizer`]. Such a vocabulary joins, again and again, the neighbours that make the
//! piece of the best score. As merges in the order of those scores that is what `tokenizer.json` calls BPE.

use serde_json::{Value, json};

use super::tokenizer::{FIX, MODEL, Parts, TOKENS, Words};
use super::{GgufArray, GgufValue};
use crate::Result;

pub(super) const SCORES: &str = "tokenizer.ggml.scores";
/// Changes of the text before it is cut, which these models do without.
pub(super) const CHANGES: [&str; 2] =
    ["tokenizer.ggml.remove_extra_whitespaces", "tokenizer.ggml.precompiled_charsmap"];
/// The longest piece that is split, in bytes: several times the longest of real vocabularies. The work grows with its square.
const PIECE_LIMIT: usize = 256;
/// The most ways in which pieces are made of two others, for each piece on average; it is about 2 in real vocabularies.
const WAYS_LIMIT: usize = 4;
/// Ordinary pieces.
const NORMAL: i32 = 1;

/// The parts of `tokenizer.json` that are this kind's own. `begin` is whether a space is put before every text.
pub(super) fn parts(words: &Words<'_>, begin: bool, unknown: Option<&str>) -> Result<Parts> {
    for key in CHANGES {
        match words.metadata.get(key) {
            None | Some(GgufValue::Bool(false)) => {}
            Some(_) => return Err(words.metadata.unfit(key, "a change of the text before it is cut is not read", FIX)),
        }
    }
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" });
    let prepend = json!({ "type": "Prepend", "prepend": "\u{2581}" });
    let normalizer = if begin { json!({ "type": "Sequence", "normalizers": [prepend, spaces] }) } else { spaces };
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": "\u{2581}" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if begin {
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    Ok(Parts {
        normalizer,
        pre_tokenizer: Value::Null,
        decoder: json!({ "type": "Sequence", "decoders": decoders }),
        unknown: unknown.map(str::to_string),
        byte_fallback: true,
        takes_whole_words: false,
        merges: merges(words)?,
        begins: true,
        processor: None,
    })
}

/// Every way to make a piece of two others, the best pieces first.
fn merges(words: &Words<'_>) -> Result<Vec<Value>> {
    let scores = match words.metadata.get(SCORES) {
        Some(GgufValue::Array(GgufArray::F32(scores))) if scores.len() == words.tokens.len() => scores,
        Some(_) => {
            let reason = format!("these are no scores for {} words", words.tokens.len());
            return Err(words.metadata.unfit(SCORES, reason, FIX));
        }
        None => return Err(words.metadata.lacking(SCORES)),
    };
    let mut found: Vec<(f32, &str, &str)> = Vec::new();
    for ((token, kind), score) in words.tokens.iter().zip(words.types).zip(scores) {
        if *kind != NORMAL || token.len() > PIECE_LIMIT {
            continue;
        }
        let splits = token.char_indices().skip(1).map(|(at, _)| token.split_at(at));
        found.extend(splits.filter(|(l, r)| words.has(l) && words.has(r)).map(|(l, r)| (*score, l, r)));
        if found.len() > WAYS_LIMIT * words.tokens.len() {
            let reason = format!("pieces are made of two others in more than {WAYS_LIMIT} ways each");
            return Err(words.metadata.unfit(TOKENS, reason, FIX));
        }
    }
    if found.is_empty() {
        return Err(words.metadata.unfit(MODEL, "no piece is made of two others", FIX));
    }
    // Which halves make a piece does not matter to SentencePiece; longer left ones first is how its converters order them.
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.len().cmp(&a.1.len())));
    Ok(found.into_iter().map(|(_, left, right)| json!([left, right])).collect())
}
