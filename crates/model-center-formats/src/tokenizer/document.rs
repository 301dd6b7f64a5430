//! Pieces of a `tokenizer.json` that several formats are turned into.

use serde_json::{Map, Value, json};

/// An entry of `added_tokens`: a token that is matched in a text before pre-tokenization. `special` ones are not text.
pub(crate) fn added_token(content: &str, id: usize, special: bool) -> Value {
    json!({
        "id": id, "content": content, "special": special,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    })
}

/// The parts of a `tokenizer.json` besides its added tokens.
#[derive(Debug)]
pub(crate) struct DocumentParts {
    pub(crate) normalizer: Value,
    pub(crate) pre_tokenizer: Value,
    pub(crate) post_processor: Value,
    pub(crate) decoder: Value,
    pub(crate) model: Value,
}

impl DocumentParts {
    /// The whole document, without padding and truncation.
    pub(crate) fn with_added(self, added: Vec<Value>) -> Value {
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": added,
            "normalizer": self.normalizer,
            "pre_tokenizer": self.pre_tokenizer,
            "post_processor": self.post_processor,
            "decoder": self.decoder,
            "model": self.model,
        })
    }
}

/// Options of BPE models besides vocabulary and merges.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BpeOptions<'a> {
    pub(crate) unknown: Option<&'a str>,
    /// Whether neighbours that are unknown become one token.
    pub(crate) fuses_unknown: bool,
    pub(crate) byte_fallback: bool,
    pub(crate) ignores_merges: bool,
}

/// A BPE `model`.
pub(crate) fn bpe(vocab: Map<String, Value>, merges: Vec<Value>, options: BpeOptions<'_>) -> Value {
    let BpeOptions { unknown, fuses_unknown, byte_fallback, ignores_merges } = options;
    json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": fuses_unknown, "byte_fallback": byte_fallback,
        "ignore_merges": ignores_merges, "vocab": vocab, "merges": merges,
    })
}

/// A merge, two tokens with a space between them, if their concatenation is a token, too.
pub(crate) fn merge(text: &str, has: impl Fn(&str) -> bool) -> Option<Value> {
    let (left, right) = text.split_once(' ')?;
    [left, right, &[left, right].concat()].into_iter().all(has).then(|| json!([left, right]))
}

/// A `ByteLevel` step: pre-tokenizer, post-processor or decoder.
pub(crate) fn byte_level(add_prefix_space: bool, trim_offsets: bool, use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": trim_offsets,
        "use_regex": use_regex,
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

/// [`template`] of RoBERTa: begin and end around the first text, the end twice before the second.
pub(crate) fn end_twice(begin: (&str, usize), end: (&str, usize)) -> Value {
    let (begin, end) = (Slot::Token(begin.0, begin.1), Slot::Token(end.0, end.1));
    template(&[begin, Slot::First, end], &[begin, Slot::First, end, end, Slot::Second, end], false)
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
