//! Pieces of a `tokenizer.json` that several formats are turned into.
//!
//! Defines [`added_token`], [`Slot`] and [`template`]; called by the readers of single formats and by
//! [`crate::formats::gguf`].

use serde_json::{Map, Value, json};

/// An entry of `added_tokens`: a token that is matched in a text before pre-tokenization. `special` ones are not text.
pub(crate) fn added_token(content: &str, id: usize, special: bool) -> Value {
    json!({
        "id": id, "content": content, "special": special,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    })
}

/// One place of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot<'a> {
    /// A special token with its id.
    Token(&'a str, usize),
    /// The first text.
    First,
    /// The second text.
    Second,
}

/// A `post_processor` with the special tokens around one text and a pair. All segment ids are 0, except for the second
/// text and the tokens after it if `segments` is set.
pub(crate) fn template(single: &[Slot<'_>], pair: &[Slot<'_>], segments: bool) -> Value {
    let pieces = |slots: &[Slot<'_>]| -> Vec<Value> {
        let mut segment = 0;
        let piece = |slot: &Slot<'_>| match slot {
            Slot::Token(token, _) => json!({ "SpecialToken": { "id": token, "type_id": segment } }),
            Slot::First => json!({ "Sequence": { "id": "A", "type_id": 0 } }),
            Slot::Second => {
                segment = u32::from(segments);
                json!({ "Sequence": { "id": "B", "type_id": segment } })
            }
        };
        slots.iter().map(piece).collect()
    };
    let tokens: Map<String, Value> = single
        .iter()
        .chain(pair)
        .filter_map(|slot| match slot {
            Slot::Token(token, id) => Some((token.to_string(), json!({ "id": token, "ids": [id], "tokens": [token] }))),
            Slot::First | Slot::Second => None,
        })
        .collect();
    json!({ "type": "TemplateProcessing", "single": pieces(single), "pair": pieces(pair), "special_tokens": tokens })
}

/// [`template`] of a text with `begin` before it and `end` after it, each text of a pair for itself; null for neither.
pub(crate) fn around(begin: Option<(&str, usize)>, end: Option<(&str, usize)>, segments: bool) -> Value {
    if begin.is_none() && end.is_none() {
        return Value::Null;
    }
    let one = |text| -> Vec<Slot<'_>> {
        let begin = begin.map(|(token, id)| Slot::Token(token, id));
        let end = end.map(|(token, id)| Slot::Token(token, id));
        begin.into_iter().chain([text]).chain(end).collect()
    };
    let (single, second) = (one(Slot::First), one(Slot::Second));
    template(&single, &[single.clone(), second].concat(), segments)
}
