//! A BERT `vocab.txt` as the equivalent `tokenizer.json` document.
//!
//! Defines [`VocabOptions`] and the conversion that [`super::AutoTokenizer`] calls for directories without a
//! `tokenizer.json`, and [`crate::formats::gguf`] for the same vocabulary in a GGUF file. Converting to the document,
//! instead of wiring the parts by hand, leaves one loading path and one set of checks.

use serde_json::{Map, Value, json};

use super::document::{DocumentParts, added_token, end_twice};
use super::files::{Settings, utf8};
use crate::{Error, Result};

/// Options of a WordPiece vocabulary in `tokenizer_config.json`; the defaults are transformers'.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VocabOptions {
    /// Lower-case the text (`do_lower_case`).
    pub lowercase: bool,
    /// Remove accents; `None` follows `lowercase` (`strip_accents`).
    pub strip_accents: Option<bool>,
    /// Put spaces around CJK characters (`tokenize_chinese_chars`).
    pub split_chinese: bool,
    /// The unknown token.
    pub unk: String,
    /// The token that opens an input.
    pub cls: String,
    /// The token that closes a segment.
    pub sep: String,
    /// The token that fills rows.
    pub pad: String,
    /// The blank of masked language modelling.
    pub mask: String,
    /// Whether special tokens are arranged as RoBERTa's: two of those that close a segment between two texts, and the
    /// blank with the space before it.
    pub is_like_roberta: bool,
}

impl Default for VocabOptions {
    fn default() -> Self {
        VocabOptions {
            lowercase: true,
            strip_accents: None,
            split_chinese: true,
            unk: "[UNK]".into(),
            cls: "[CLS]".into(),
            sep: "[SEP]".into(),
            pad: "[PAD]".into(),
            mask: "[MASK]".into(),
            is_like_roberta: false,
        }
    }
}

impl VocabOptions {
    /// MPNet's: the special tokens of RoBERTa but for the unknown one.
    fn of_mpnet() -> VocabOptions {
        VocabOptions {
            cls: "<s>".into(),
            sep: "</s>".into(),
            pad: "<pad>".into(),
            mask: "<mask>".into(),
            is_like_roberta: true,
            ..VocabOptions::default()
        }
    }

    pub(super) fn of(settings: &Settings) -> VocabOptions {
        let name = |key: &str, default: String| settings.special(key).map_or(default, str::to_owned);
        let is_mpnet = settings.is_family("mpnet");
        let default = if is_mpnet { VocabOptions::of_mpnet() } else { VocabOptions::default() };
        VocabOptions {
            lowercase: settings.flag("do_lower_case").unwrap_or(default.lowercase),
            strip_accents: settings.flag("strip_accents"),
            split_chinese: settings.flag("tokenize_chinese_chars").unwrap_or(default.split_chinese),
            unk: name("unk_token", default.unk),
            cls: name("cls_token", default.cls),
            sep: name("sep_token", default.sep),
            pad: name("pad_token", default.pad),
            mask: name("mask_token", default.mask),
            is_like_roberta: default.is_like_roberta,
        }
    }
}

/// The `tokenizer.json` document of a `vocab.txt`: one token a line, its id the line number from 0. A token listed
/// twice keeps its later id, as in transformers.
pub(super) fn document(place: &str, bytes: &[u8], options: &VocabOptions, settings: &Settings) -> Result<Value> {
    let text = utf8(place, bytes)?;
    let tokens = text.split_terminator('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
    of_tokens(place, tokens, options, settings)
}

/// A vocabulary of tokens in the order of their ids.
pub(crate) fn of_tokens<'a>(
    place: &str,
    tokens: impl Iterator<Item = &'a str>,
    options: &VocabOptions,
    settings: &Settings,
) -> Result<Value> {
    let mut vocab = Map::new();
    for (id, token) in tokens.enumerate() {
        vocab.insert(token.to_owned(), Value::from(id));
    }
    let missing: Vec<&str> = [&options.unk, &options.cls, &options.sep, &options.pad]
        .into_iter()
        .map(String::as_str)
        .filter(|token| !vocab.contains_key(*token))
        .collect();
    if !missing.is_empty() {
        let reason = format!("the vocabulary of {} tokens lacks {}", vocab.len(), missing.join(", "));
        let fix = "check that this is a BERT vocab.txt; other names of special tokens go into special_tokens_map.json";
        return Err(Error::model(place, reason, fix));
    }
    let id = |token: &str| vocab[token].as_u64().unwrap_or_default() as usize;
    let (cls, sep) = (id(&options.cls), id(&options.sep));
    let names = [&options.pad, &options.unk, &options.cls, &options.sep, &options.mask];
    let special = names.into_iter().filter(|token| vocab.contains_key(token.as_str()));
    let entry = |token: &String| {
        let mut entry = added_token(token, id(token), true);
        entry["lstrip"] = json!(options.is_like_roberta && *token == options.mask);
        entry
    };
    let special = special.map(entry).collect();
    let added = settings.added_entries(special, |token| vocab.contains_key(token).then(|| id(token)));
    let parts = DocumentParts {
        normalizer: json!({
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": options.split_chinese,
            "strip_accents": options.strip_accents, "lowercase": options.lowercase,
        }),
        pre_tokenizer: json!({ "type": "BertPreTokenizer" }),
        post_processor: match options.is_like_roberta {
            true => end_twice((&options.cls, cls), (&options.sep, sep)),
            false => json!({ "type": "BertProcessing", "sep": [options.sep, sep], "cls": [options.cls, cls] }),
        },
        decoder: json!({ "type": "WordPiece", "prefix": "##", "cleanup": true }),
        model: json!({
            "type": "WordPiece", "unk_token": options.unk, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        }),
    };
    Ok(parts.with_added(added))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOCAB: &[u8] = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhello\n##s\n";

    #[test]
    fn ids_are_line_numbers_with_any_line_ending_and_byte_order_mark() {
        let unix = document("v", VOCAB, &VocabOptions::default(), &Settings::default()).unwrap();
        let windows = [b"\xEF\xBB\xBF".to_vec(), VOCAB.to_vec()].concat();
        let windows = String::from_utf8(windows).unwrap().replace('\n', "\r\n");
        let windows = document("v", windows.as_bytes(), &VocabOptions::default(), &Settings::default()).unwrap();
        assert_eq!(unix, windows);
        assert_eq!(unix["model"]["vocab"]["##s"], 6);
    }

    #[test]
    fn a_file_that_is_no_vocabulary_is_named() {
        let error = document("dir/vocab.txt", b"a\nb\n", &VocabOptions::default(), &Settings::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("dir/vocab.txt") && error.contains("[UNK], [CLS], [SEP], [PAD]"), "{error}");
        let error = document("dir/vocab.txt", b"a\n\xFF\n", &VocabOptions::default(), &Settings::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("dir/vocab.txt:2"), "{error}");
    }
}
