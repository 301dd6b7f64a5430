//! The vocabulary of a GGUF file as `tokenizer.json` and `tokenizer_config.json`.
//!
//! Defines [`TokenizerFiles`] and [`tokenizer_files`]; called by [`super::folder`].

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::splits::Split;
use super::{Metadata, pieces};
use crate::Result;
use crate::file::printable;

pub(super) const MODEL: &str = "tokenizer.ggml.model";
const SPLIT: &str = "tokenizer.ggml.pre";
pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
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

pub(super) const FIX: &str = "take the tokenizer's files from the model's own folder";

/// The most words, and the most merges, that are read: several times those of the largest real vocabularies.
const COUNT_LIMIT: usize = 1 << 20;
/// The word for what cannot be spelled.
const UNKNOWN: i32 = 2;
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

/// Whether a key says something about the tokenizer that is looked at here.
pub(super) fn knows(key: &str) -> bool {
    let keys = [MODEL, SPLIT, TOKENS, TYPES, MERGES, ADD_BEGIN, ADD_END, ADD_SPACE, TEMPLATE, pieces::SCORES];
    keys.contains(&key) || pieces::CHANGES.contains(&key) || SPECIAL.iter().any(|(known, _)| *known == key)
}

/// A vocabulary: its words, their types, and their ids.
pub(super) struct Words<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) tokens: &'a [Box<str>],
    pub(super) types: &'a [i32],
    ids: HashMap<&'a str, usize>,
}

/// The parts of `tokenizer.json` that depend on the kind of vocabulary.
pub(super) struct Parts {
    pub(super) normalizer: Value,
    pub(super) pre_tokenizer: Value,
    pub(super) decoder: Value,
    pub(super) unknown: Option<String>,
    pub(super) byte_fallback: bool,
    pub(super) takes_whole_words: bool,
    pub(super) merges: Vec<Value>,
    /// Whether a text begins with the token of beginning where the file does not say.
    pub(super) begins: bool,
    /// What goes over the tokens before others are put around them.
    pub(super) processor: Option<Value>,
}

/// Build the tokenizer's files for texts of at most `max_positions` tokens.
///
/// Read are byte-level byte pairs (`gpt2`) and SentencePiece's byte pairs (`llama`). Words keep their ids. Those marked as
/// control or unknown become special tokens; those marked as user-defined are found whole in a text, and are text. Whether a
/// text begins with the token of beginning is what the file says, or else what the kind does.
///
/// # Errors
/// [`crate::Error::Model`] naming the key: a vocabulary of another kind, an unknown way of cutting texts, a word that stands
/// twice, merges of words that are not there, ids beyond the words.
pub fn tokenizer_files(metadata: &Metadata, max_positions: usize) -> Result<TokenizerFiles> {
    let kind = metadata.text(MODEL)?.ok_or_else(|| metadata.lacking(MODEL))?;
    let words = Words::read(metadata)?;
    let special = special(metadata, words.tokens)?;
    let space = metadata.truth(ADD_SPACE)?;
    let parts = match kind {
        "gpt2" if space == Some(true) => {
            return Err(metadata.unfit(
                ADD_SPACE,
                "a space before every text is not read in this kind of vocabulary",
                FIX,
            ));
        }
        "gpt2" => bytes(&words)?,
        "llama" => pieces::parts(&words, space.unwrap_or(true), special[2].map(|(token, _)| token))?,
        other => {
            let reason = format!("a vocabulary of kind {} is not read; gpt2 and llama are", printable(other, 60));
            return Err(metadata.unfit(MODEL, reason, FIX));
        }
    };
    let tokens = words.tokens.iter().enumerate();
    let vocab: Map<String, Value> = tokens.map(|(id, token)| (token.to_string(), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": words.added(),
        "post_processor": post_processor(metadata, &parts, &special)?,
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "decoder": parts.decoder,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": parts.unknown,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": parts.byte_fallback,
            "byte_fallback": parts.byte_fallback,
            "ignore_merges": parts.takes_whole_words,
            "vocab": vocab,
            "merges": parts.merges,
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

impl<'a> Words<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self> {
        let tokens = metadata.texts(TOKENS)?.ok_or_else(|| metadata.lacking(TOKENS))?;
        bounded(metadata, TOKENS, tokens.len(), "words")?;
        let mut ids: HashMap<&str, usize> = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if let Some(first) = ids.insert(token, id) {
                let reason = format!("words {first} and {id} are both \"{}\"", printable(token, 60));
                return Err(metadata.unfit(TOKENS, reason, FIX));
            }
        }
        let types = metadata.wholes(TYPES)?.ok_or_else(|| metadata.lacking(TYPES))?;
        if types.len() != tokens.len() {
            let reason = format!("there are {} types for {} words", types.len(), tokens.len());
            return Err(metadata.unfit(TYPES, reason, FIX));
        }
        if let Some((id, other)) = types.iter().enumerate().find(|(_, kind)| !(0..=LAST_TYPE).contains(*kind)) {
            return Err(metadata.unfit(TYPES, format!("word {id} is of type {other}, the last is {LAST_TYPE}"), FIX));
        }
        Ok(Self { metadata, tokens, types, ids })
    }

    /// Whether there is such a word.
    pub(super) fn has(&self, word: &str) -> bool {
        self.ids.contains_key(word)
    }

    /// The words that are found whole in a text.
    fn added(&self) -> Vec<Value> {
        let whole = |kind: i32, token: &str| [UNKNOWN, CONTROL, USER_DEFINED].contains(&kind) && !token.is_empty();
        let words = self.types.iter().zip(self.tokens).enumerate();
        words
            .filter(|(_, (kind, token))| whole(**kind, token))
            .map(|(id, (kind, token))| {
                json!({
                    "id": id, "content": token, "special": *kind != USER_DEFINED,
                    "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                })
            })
            .collect()
    }
}

/// As JSON, words and merges take many times the memory that they take in the file.
fn bounded(metadata: &Metadata, key: &str, count: usize, what: &str) -> Result<()> {
    match count {
        0..=COUNT_LIMIT => Ok(()),
        _ => Err(metadata.unfit(key, format!("{count} {what} are more than the {COUNT_LIMIT} that are read"), FIX)),
    }
}

/// The parts of a byte-level vocabulary.
fn bytes(words: &Words<'_>) -> Result<Parts> {
    let metadata = words.metadata;
    let name = metadata.text(SPLIT)?.ok_or_else(|| metadata.lacking(SPLIT))?;
    let split = Split::of(name).ok_or_else(|| {
        let known = Split::known();
        let reason = format!("texts are cut as in {}, which is not read; read are {known}", printable(name, 60));
        metadata.unfit(SPLIT, reason, FIX)
    })?;
    let level = |trims: bool, splits: bool| json!({ "type": "ByteLevel", "add_prefix_space": splits, "trim_offsets": trims, "use_regex": splits });
    Ok(Parts {
        normalizer: if split.composes { json!({ "type": "NFC" }) } else { Value::Null },
        pre_tokenizer: split.pre_tokenizer(),
        decoder: level(true, true),
        unknown: None,
        byte_fallback: false,
        takes_whole_words: split.takes_whole_words,
        merges: merges(words)?,
        begins: split.begins,
        processor: Some(level(false, false)),
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

/// The merges as pairs, each of words that are there and make one that is there.
fn merges(words: &Words<'_>) -> Result<Vec<Value>> {
    let metadata = words.metadata;
    let merges = metadata.texts(MERGES)?.ok_or_else(|| metadata.lacking(MERGES))?;
    bounded(metadata, MERGES, merges.len(), "merges")?;
    let mut pairs = Vec::with_capacity(merges.len());
    let mut joined = String::new();
    for (at, merge) in merges.iter().enumerate() {
        let pair = merge.split_once(' ').filter(|(left, right)| {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right);
            [*left, *right, joined.as_str()].iter().all(|word| words.has(word))
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
fn post_processor(metadata: &Metadata, parts: &Parts, special: &[Option<(&str, u64)>; 4]) -> Result<Value> {
    let wanted = |wanted: bool, key: &str, token: Option<(&'_ str, u64)>| match (wanted, token) {
        (true, None) => Err(metadata.unfit(key, "a token is to be put around every text, and none is named", FIX)),
        (true, token) => Ok(token.map(|(token, id)| (token.to_string(), id))),
        (false, _) => Ok(None),
    };
    let begin = wanted(metadata.truth(ADD_BEGIN)?.unwrap_or(parts.begins), ADD_BEGIN, special[0])?;
    let end = wanted(metadata.truth(ADD_END)?.unwrap_or(false), ADD_END, special[1])?;
    if begin.is_none() && end.is_none() {
        return Ok(parts.processor.clone().unwrap_or_default());
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
    Ok(match &parts.processor {
        Some(processor) => json!({ "type": "Sequence", "processors": [processor, template] }),
        None => template,
    })
}
