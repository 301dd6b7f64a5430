//! The vocabulary of a GGUF file as `tokenizer.json` and `tokenizer_config.json`.

mod pieces;

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::Result;
use crate::formats::gguf::{GgufFile, Metadata};
use crate::tokenizer::{
    byte_level::Split,
    document::{BpeOptions, DocumentParts, added_token, around, bpe, byte_level, merge},
    pieces::{self as sentencepiece, Cutting},
};
use model_center_base::file::printable;

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
pub(super) const SPECIAL: [(&str, &str); 7] = [
    ("tokenizer.ggml.bos_token_id", "bos_token"),
    ("tokenizer.ggml.eos_token_id", "eos_token"),
    ("tokenizer.ggml.unknown_token_id", "unk_token"),
    ("tokenizer.ggml.padding_token_id", "pad_token"),
    ("tokenizer.ggml.cls_token_id", "cls_token"),
    ("tokenizer.ggml.seperator_token_id", "sep_token"),
    ("tokenizer.ggml.mask_token_id", "mask_token"),
];

pub(super) const FIX: &str = "take the tokenizer's files from the model's own directory";

/// The maximum number of tokens, and of merges: several times more than the largest real vocabularies have.
const MAX_COUNT: usize = 1 << 20;
const UNKNOWN: i32 = 2;
pub(super) const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const LAST_TYPE: i32 = 6;

/// The two files of a tokenizer.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizerFiles {
    /// `tokenizer.json`.
    pub tokenizer: Value,
    /// `tokenizer_config.json`.
    pub config: Map<String, Value>,
    /// Tokens that no text becomes, by id; neither file can express it.
    pub unused: Vec<u32>,
}

/// Whether a key concerns the tokenizer.
pub(crate) fn knows(key: &str) -> bool {
    let keys = [MODEL, SPLIT, TOKENS, TYPES, MERGES, ADD_BEGIN, ADD_END, ADD_SPACE, TEMPLATE];
    let pieces = [pieces::SCORES, pieces::TRIMS, pieces::CHARSMAP];
    keys.contains(&key) || pieces.contains(&key) || SPECIAL.iter().any(|(known, _)| *known == key)
}

pub(super) struct Vocabulary<'a> {
    pub(super) metadata: &'a Metadata,
    pub(super) tokens: &'a [Box<str>],
    pub(super) types: &'a [i32],
    ids: HashMap<&'a str, usize>,
}

/// The parts of `tokenizer.json` that depend on the kind of vocabulary.
pub(super) struct GgufParts {
    pub(super) parts: DocumentParts,
    /// Added tokens, if the kind has its own.
    pub(super) added: Option<Vec<Value>>,
    /// Whether a text begins and ends with BOS and EOS if the file does not specify it.
    pub(super) begins: bool,
    pub(super) ends: bool,
    /// Processor of the tokens before others are put around them.
    pub(super) processor: Option<Value>,
}

/// Build the tokenizer's files for texts of at most `max_positions` tokens.
///
/// Supported are byte-level BPE (`gpt2`), SentencePiece's BPE (`llama`) and Unigram (`t5`), BPE over whole texts
/// (`gemma4`) and WordPiece (`bert`). Tokens keep their ids. Those marked as control or unknown become special tokens;
/// those marked as user-defined are matched in a text before pre-tokenization, and are text. The file specifies whether
/// a text begins with BOS; the kind of vocabulary has the default.
pub fn tokenizer_files(metadata: &Metadata, max_positions: usize) -> Result<TokenizerFiles> {
    let kind = metadata.text(MODEL)?.ok_or_else(|| metadata.lacking(MODEL))?;
    let vocabulary = Vocabulary::read(metadata)?;
    let special = special(metadata, vocabulary.tokens)?;
    let space = metadata.truth(ADD_SPACE)?;
    let unknown = special[2].map(|(_, id)| id);
    let sentencepiece = |cutting| {
        let pieces = pieces::pieces(&vocabulary, cutting, space.unwrap_or(true), unknown)?;
        pieces::parts(&pieces)
    };
    let tokenizer = match kind {
        "gpt2" | "gemma4" if space == Some(true) => {
            let reason = "a space before every text is not read in this kind of vocabulary";
            return Err(metadata.unfit(ADD_SPACE, reason, FIX));
        }
        "gpt2" => document(metadata, &vocabulary, bytes(&vocabulary)?, &special)?,
        "gemma4" => {
            document(metadata, &vocabulary, whole_texts(&vocabulary, special[2].map(|(token, _)| token))?, &special)?
        }
        "llama" => document(metadata, &vocabulary, sentencepiece(Cutting::BytePairs)?, &special)?,
        "t5" => document(metadata, &vocabulary, sentencepiece(Cutting::Unigram)?, &special)?,
        "bert" => pieces::word_pieces(&vocabulary, &special)?,
        other => {
            let reason = format!(
                "a vocabulary of kind {} is not read; gpt2, llama, t5, bert and gemma4 are",
                printable(other, 60)
            );
            return Err(metadata.unfit(MODEL, reason, FIX));
        }
    };
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
    let unused = vocabulary.types.iter().enumerate().filter(|(_, kind)| **kind == UNUSED);
    let unused = unused.filter_map(|(id, _)| u32::try_from(id).ok()).collect();
    Ok(TokenizerFiles { tokenizer, config, unused })
}

fn document(
    metadata: &Metadata,
    vocabulary: &Vocabulary<'_>,
    parts: GgufParts,
    special: &Special<'_>,
) -> Result<Value> {
    // The order of keys is part of the format: the same file gives the same bytes in every version.
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "post_processor": post_processor(metadata, &parts, special)?,
        "added_tokens": parts.added.unwrap_or_else(|| vocabulary.added()),
        "normalizer": parts.parts.normalizer,
        "pre_tokenizer": parts.parts.pre_tokenizer,
        "decoder": parts.parts.decoder,
        "model": parts.parts.model,
    }))
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self> {
        let tokens = metadata.texts(TOKENS)?.ok_or_else(|| metadata.lacking(TOKENS))?;
        bounded(metadata, TOKENS, tokens.len(), "tokens")?;
        let mut ids: HashMap<&str, usize> = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if let Some(first) = ids.insert(token, id) {
                let reason = format!("tokens {first} and {id} are both \"{}\"", printable(token, 60));
                return Err(metadata.unfit(TOKENS, reason, FIX));
            }
        }
        let types = metadata.wholes(TYPES)?.ok_or_else(|| metadata.lacking(TYPES))?;
        if types.len() != tokens.len() {
            let reason = format!("there are {} types for {} tokens", types.len(), tokens.len());
            return Err(metadata.unfit(TYPES, reason, FIX));
        }
        if let Some((id, other)) = types.iter().enumerate().find(|(_, kind)| !(0..=LAST_TYPE).contains(*kind)) {
            return Err(metadata.unfit(TYPES, format!("token {id} is of type {other}, the last is {LAST_TYPE}"), FIX));
        }
        Ok(Self { metadata, tokens, types, ids })
    }

    /// The tokens that are matched in a text before pre-tokenization.
    fn added(&self) -> Vec<Value> {
        let whole = |kind: i32, token: &str| [UNKNOWN, CONTROL, USER_DEFINED].contains(&kind) && !token.is_empty();
        let vocabulary = self.types.iter().zip(self.tokens).enumerate();
        vocabulary
            .filter(|(_, (kind, token))| whole(**kind, token))
            .map(|(id, (kind, token))| added_token(token, id, *kind != USER_DEFINED))
            .collect()
    }
}

/// As JSON, tokens and merges take many times the memory that they take in the file.
fn bounded(metadata: &Metadata, key: &str, count: usize, what: &str) -> Result<()> {
    match count {
        0..=MAX_COUNT => Ok(()),
        _ => Err(metadata.unfit(key, format!("{count} {what} are more than the {MAX_COUNT} that are read"), FIX)),
    }
}

fn bytes(vocabulary: &Vocabulary<'_>) -> Result<GgufParts> {
    let metadata = vocabulary.metadata;
    let name = metadata.text(SPLIT)?.ok_or_else(|| metadata.lacking(SPLIT))?;
    let split = Split::of(name).ok_or_else(|| {
        let known = Split::known();
        let reason = format!("texts are cut as in {}, which is not read; read are {known}", printable(name, 60));
        metadata.unfit(SPLIT, reason, FIX)
    })?;
    Ok(GgufParts {
        parts: DocumentParts {
            normalizer: split.normalizer(),
            pre_tokenizer: split.pre_tokenizer(false),
            post_processor: Value::Null,
            decoder: byte_level(true, true, true),
            model: byte_pairs(vocabulary, None, split.ignores_merges)?,
        },
        added: None,
        begins: split.begins,
        ends: false,
        processor: Some(byte_level(false, false, false)),
    })
}

/// The parts of a vocabulary whose merges apply to whole texts, spaces included, with byte fallback.
fn whole_texts(vocabulary: &Vocabulary<'_>, unknown: Option<&str>) -> Result<GgufParts> {
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": sentencepiece::SPACE });
    Ok(GgufParts {
        parts: DocumentParts {
            normalizer: spaces,
            pre_tokenizer: Value::Null,
            post_processor: Value::Null,
            decoder: sentencepiece::decoder(false),
            model: byte_pairs(vocabulary, Some(unknown), false)?,
        },
        added: None,
        begins: true,
        ends: false,
        processor: None,
    })
}

/// The BPE model; `fallback`, with the unknown token, is for vocabularies with byte tokens.
fn byte_pairs(vocabulary: &Vocabulary<'_>, fallback: Option<Option<&str>>, ignores_merges: bool) -> Result<Value> {
    let tokens = vocabulary.tokens.iter().enumerate();
    let vocab: Map<String, Value> = tokens.map(|(id, token)| (token.to_string(), json!(id))).collect();
    let is_fallback = fallback.is_some();
    let unknown = fallback.flatten();
    let options = BpeOptions { unknown, fuses_unknown: is_fallback, byte_fallback: is_fallback, ignores_merges };
    Ok(bpe(vocab, merges(vocabulary)?, options))
}

/// Special tokens with their ids, in the order of [`SPECIAL`], where stated.
pub(super) type Special<'a> = [Option<(&'a str, u64)>; SPECIAL.len()];

fn special<'a>(metadata: &Metadata, tokens: &'a [Box<str>]) -> Result<Special<'a>> {
    let mut found = [None; SPECIAL.len()];
    for (found, (key, _)) in found.iter_mut().zip(SPECIAL) {
        let Some(id) = metadata.whole(key)?.filter(|id| *id != u64::from(u32::MAX)) else { continue };
        let token = usize::try_from(id).ok().and_then(|id| tokens.get(id));
        let token =
            token.ok_or_else(|| metadata.unfit(key, format!("id {id} is outside the {} tokens", tokens.len()), FIX))?;
        *found = Some((&**token, id));
    }
    Ok(found)
}

/// The merges as pairs of tokens whose concatenation is a token, too.
fn merges(vocabulary: &Vocabulary<'_>) -> Result<Vec<Value>> {
    let metadata = vocabulary.metadata;
    let merges = metadata.texts(MERGES)?.ok_or_else(|| metadata.lacking(MERGES))?;
    bounded(metadata, MERGES, merges.len(), "merges")?;
    let pair = |(at, text): (usize, &str)| {
        merge(text, |word| vocabulary.ids.contains_key(word)).ok_or_else(|| {
            let reason = format!("merge {at}, \"{}\", is not of two tokens that make a third", printable(text, 80));
            metadata.unfit(MERGES, reason, FIX)
        })
    };
    merges.iter().map(AsRef::as_ref).enumerate().map(pair).collect()
}

/// The special tokens around a text: BOS and EOS, if the file or the kind of vocabulary adds them.
fn post_processor(metadata: &Metadata, parts: &GgufParts, special: &Special<'_>) -> Result<Value> {
    let wanted =
        |usual: bool, key: &str, token: Option<(&'_ str, u64)>| match (metadata.truth(key)?.unwrap_or(usual), token) {
            (true, None) => Err(metadata.unfit(key, "a token is to be put around every text, and none is named", FIX)),
            (true, token) => Ok(token.map(|(token, id)| (token.to_string(), id as usize))),
            (false, _) => Ok(None),
        };
    let begin = wanted(parts.begins, ADD_BEGIN, special[0])?;
    let end = wanted(parts.ends, ADD_END, special[1])?;
    let begin = begin.as_ref().map(|(token, id)| (token.as_str(), *id));
    let end = end.as_ref().map(|(token, id)| (token.as_str(), *id));
    let template = around(begin, end, true);
    Ok(match (&parts.processor, template) {
        (Some(processor), Value::Null) => processor.clone(),
        (Some(processor), template) => json!({ "type": "Sequence", "processors": [processor, template] }),
        (None, template) => template,
    })
}

/// The fields of `tokenizer_config.json` of a GGUF file, the chat template among them.
pub(crate) fn tokenizer_config(path: &Path) -> Result<Map<String, Value>> {
    Ok(tokenizer_files(GgufFile::open(path)?.metadata(), usize::MAX)?.config)
}
