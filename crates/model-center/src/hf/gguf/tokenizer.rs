//! The vocabulary of a GGUF file as `tokenizer.json` and `tokenizer_config.json`.
//!
//! Defines [`TokenizerFiles`] and [`tokenizer_files`]; called by [`super::folder`].

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::Metadata;
use super::splits::Split;
use crate::Result;
use crate::file::printable;

const MODEL: &str = "tokenizer.ggml.model";
const SPLIT: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";
const ADD_BEGIN: &str = "tokenizer.ggml.add_bos_token";
const ADD_END: &str = "tokenizer.ggml.add_eos_token";
const ADD_SPACE: &str = "tokenizer.ggml.add_space_prefix";
const TEMPLATE: &str = "tokenizer.chat_template";

/// The keys of special tokens and their names in `tokenizer_config.json`.
const SPECIAL: [(&str, &str); 4] = [
    ("tokenizer.ggml.bos_token_id", "bos_token"),
    ("tokenizer.ggml.eos_token_id", "eos_token"),
    ("tokenizer.ggml.unknown_token_id", "unk_token"),
    ("tokenizer.ggml.padding_token_id", "pad_token"),
];

/// All keys that are looked at here.
pub(super) const KEYS: [&str; 13] = [
    MODEL,
    SPLIT,
    TOKENS,
    TYPES,
    MERGES,
    ADD_BEGIN,
    ADD_END,
    ADD_SPACE,
    TEMPLATE,
    SPECIAL[0].0,
    SPECIAL[1].0,
    SPECIAL[2].0,
    SPECIAL[3].0,
];

const FIX: &str = "take the tokenizer's files from the model's own folder";

/// Words with a meaning of their own.
const CONTROL: i32 = 3;
/// Words that are found whole in a text.
const USER_DEFINED: i32 = 4;
/// The largest number of a type of words.
const LAST_TYPE: i32 = 6;

/// The two files of a tokenizer.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizerFiles {
    /// `tokenizer.json`.
    pub tokenizer: Value,
    /// `tokenizer_config.json`.
    pub config: Map<String, Value>,
}

/// Build the tokenizer's files for texts of at most `max_positions` tokens.
///
/// Words keep their ids. Those marked as control become special tokens; those marked as user-defined are found whole in a text,
/// and are text. Whether a text begins with the token of beginning is what the file says, or else what the kind does.
///
/// # Errors
/// [`crate::Error::Model`] naming the key: a vocabulary other than byte-level byte pairs (`gpt2`), an unknown way of cutting
/// texts, a word that stands twice, merges of words that are not there, ids beyond the words.
pub fn tokenizer_files(metadata: &Metadata, max_positions: usize) -> Result<TokenizerFiles> {
    let split = split(metadata)?;
    let tokens = metadata.texts(TOKENS)?.ok_or_else(|| metadata.lacking(TOKENS))?;
    let mut ids: HashMap<&str, usize> = HashMap::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = ids.insert(token, id) {
            let reason = format!("words {first} and {id} are both \"{}\"", printable(token, 60));
            return Err(metadata.unfit(TOKENS, reason, FIX));
        }
    }
    let special = special(metadata, tokens)?;
    let vocab: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.to_string(), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added(metadata, tokens)?,
        "normalizer": if split.composes { json!({ "type": "NFC" }) } else { Value::Null },
        "pre_tokenizer": split.pre_tokenizer(),
        "post_processor": post_processor(metadata, split, &special)?,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": split.takes_whole_words,
            "vocab": vocab,
            "merges": merges(metadata, &ids)?,
        },
    });
    let mut config = Map::new();
    for ((_, name), special) in SPECIAL.iter().zip(&special) {
        config.insert(name.to_string(), json!(special.map(|(token, _)| token)));
    }
    config.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
    config.insert("model_max_length".into(), json!(max_positions));
    config.insert("clean_up_tokenization_spaces".into(), json!(false));
    if let Some(template) = metadata.text(TEMPLATE)? {
        config.insert("chat_template".into(), json!(template));
    }
    Ok(TokenizerFiles { tokenizer, config })
}

/// The kind of vocabulary, of which one is read.
fn split(metadata: &Metadata) -> Result<&'static Split> {
    match metadata.text(MODEL)?.ok_or_else(|| metadata.lacking(MODEL))? {
        "gpt2" => {}
        "llama" => return Err(metadata.unfit(MODEL, "the vocabulary is of SentencePiece, which is not read", FIX)),
        other => {
            let reason = format!("a vocabulary of kind {} is not read; gpt2 is", printable(other, 60));
            return Err(metadata.unfit(MODEL, reason, FIX));
        }
    }
    if metadata.truth(ADD_SPACE)? == Some(true) {
        return Err(metadata.unfit(ADD_SPACE, "a space before every text is not read", FIX));
    }
    let name = metadata.text(SPLIT)?.ok_or_else(|| metadata.lacking(SPLIT))?;
    Split::of(name).ok_or_else(|| {
        let reason =
            format!("texts are cut as in {}, which is not read; read are {}", printable(name, 60), Split::known());
        metadata.unfit(SPLIT, reason, FIX)
    })
}

/// The words of begin, end, unknown and padding with their ids, where stated.
fn special<'a>(metadata: &Metadata, tokens: &'a [Box<str>]) -> Result<[Option<(&'a str, u64)>; 4]> {
    let mut found = [None; 4];
    for (found, (key, _)) in found.iter_mut().zip(SPECIAL) {
        let Some(id) = metadata.whole(key)?.filter(|id| *id != u64::from(u32::MAX)) else { continue };
        let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
        let token =
            token.ok_or_else(|| metadata.unfit(key, format!("id {id} is none of the {} words", tokens.len()), FIX))?;
        *found = Some((&**token, id));
    }
    Ok(found)
}

/// The words that are found whole in a text.
fn added(metadata: &Metadata, tokens: &[Box<str>]) -> Result<Vec<Value>> {
    let types = metadata.wholes(TYPES)?.ok_or_else(|| metadata.lacking(TYPES))?;
    if types.len() != tokens.len() {
        let reason = format!("there are {} types for {} words", types.len(), tokens.len());
        return Err(metadata.unfit(TYPES, reason, FIX));
    }
    if let Some((id, other)) = types.iter().enumerate().find(|(_, kind)| !(0..=LAST_TYPE).contains(*kind)) {
        return Err(metadata.unfit(TYPES, format!("word {id} is of type {other}, the last is {LAST_TYPE}"), FIX));
    }
    let whole = |kind: i32, token: &str| (kind == CONTROL || kind == USER_DEFINED) && !token.is_empty();
    let words = types.iter().zip(tokens).enumerate().filter(|(_, (kind, token))| whole(**kind, token));
    Ok(words
        .map(|(id, (kind, token))| {
            json!({
                "id": id, "content": token, "special": *kind == CONTROL,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect())
}

/// The merges as pairs, each of words that are there and make one that is there.
fn merges(metadata: &Metadata, ids: &HashMap<&str, usize>) -> Result<Vec<Value>> {
    let merges = metadata.texts(MERGES)?.ok_or_else(|| metadata.lacking(MERGES))?;
    let mut pairs = Vec::with_capacity(merges.len());
    let mut joined = String::new();
    for (at, merge) in merges.iter().enumerate() {
        let pair = merge.split_once(' ').filter(|(left, right)| {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            [*left, *right, joined.as_str()].iter().all(|word| ids.contains_key(word))
        });
        let Some((left, right)) = pair else {
            let reason = format!("merge {at}, \"{}\", is not of two words that make a third", printable(merge, 80));
            return Err(metadata.unfit(MERGES, reason, FIX));
        };
        pairs.push(json!([left, right]));
    }
    Ok(pairs)
}

/// What is put around a text: the tokens of beginning and end, if the file or the kind of vocabulary wants them.
fn post_processor(metadata: &Metadata, split: &Split, special: &[Option<(&str, u64)>; 4]) -> Result<Value> {
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    let wanted = |wanted: bool, key: &str, token: Option<(&'_ str, u64)>| match (wanted, token) {
        (true, None) => Err(metadata.unfit(key, "a token is to be put around every text, and none is named", FIX)),
        (true, token) => Ok(token.map(|(token, id)| (token.to_string(), id))),
        (false, _) => Ok(None),
    };
    let begin = wanted(metadata.truth(ADD_BEGIN)?.unwrap_or(split.begins), ADD_BEGIN, special[0])?;
    let end = wanted(metadata.truth(ADD_END)?.unwrap_or(false), ADD_END, special[1])?;
    if begin.is_none() && end.is_none() {
        return Ok(bytes);
    }
    let around = |sequence: &str, type_id: u32| {
        let token = |token: &(String, u64)| json!({ "SpecialToken": { "id": token.0, "type_id": type_id } });
        let text = json!({ "Sequence": { "id": sequence, "type_id": type_id } });
        begin.as_ref().map(token).into_iter().chain([text]).chain(end.as_ref().map(token)).collect::<Vec<_>>()
    };
    let tokens = [&begin, &end].into_iter().flatten();
    let tokens: Map<String, Value> =
        tokens.map(|(token, id)| (token.clone(), json!({ "id": token, "ids": [id], "tokens": [token] }))).collect();
    let pair = [around("A", 0), around("B", 1)].concat();
    let template = json!({
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": pair,
        "special_tokens": tokens,
    });
    Ok(json!({ "type": "Sequence", "processors": [bytes, template] }))
}
