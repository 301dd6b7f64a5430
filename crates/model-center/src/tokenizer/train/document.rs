//! The files of a trained tokenizer.
//!
//! Defines what surrounds a model in `tokenizer.json`, and `tokenizer_config.json`; called by [`super::train`].

use serde_json::{Map, Value, json};

use super::{TrainOptions, VocabularyKind, normalizer};

/// The special tokens of a kind, by the names that `tokenizer_config.json` has for them, in the order of their ids.
pub(super) fn own_special_tokens(kind: VocabularyKind) -> &'static [(&'static str, &'static str)] {
    match kind {
        VocabularyKind::ByteBpe => &[("pad_token", "<|pad|>"), ("eos_token", "<|endoftext|>")],
        VocabularyKind::Unigram => &[("pad_token", "<pad>"), ("eos_token", "</s>"), ("unk_token", "<unk>")],
        VocabularyKind::WordPiece => &[
            ("pad_token", "[PAD]"),
            ("unk_token", "[UNK]"),
            ("cls_token", "[CLS]"),
            ("sep_token", "[SEP]"),
            ("mask_token", "[MASK]"),
        ],
        VocabularyKind::Characters => {
            &[("pad_token", "<pad>"), ("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>")]
        }
    }
}

/// How texts are split into words.
pub(super) fn pre_tokenizer(kind: VocabularyKind) -> Value {
    match kind {
        VocabularyKind::ByteBpe => {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
        }
        VocabularyKind::Unigram => {
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})
        }
        VocabularyKind::WordPiece => json!({"type": "BertPreTokenizer"}),
        VocabularyKind::Characters => Value::Null,
    }
}

fn decoder(kind: VocabularyKind) -> Value {
    match kind {
        VocabularyKind::ByteBpe => {
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})
        }
        VocabularyKind::Unigram => pre_tokenizer(kind),
        VocabularyKind::WordPiece => json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        VocabularyKind::Characters => json!({"type": "Fuse"}),
    }
}

/// Special tokens around texts: BERT's and T5's; a decoder's texts have none.
fn post_processor(kind: VocabularyKind, special: &[String]) -> Value {
    let id = |token: &str| special.iter().position(|known| known == token);
    let text = |name: &str, segment: u8| json!({"Sequence": {"id": name, "type_id": segment}});
    let token = |name: &str, segment: u8| json!({"SpecialToken": {"id": name, "type_id": segment}});
    let known = |names: &[&str]| {
        let entry = |name: &&str| ((*name).to_owned(), json!({"id": name, "ids": [id(name)], "tokens": [name]}));
        names.iter().map(entry).collect::<Map<String, Value>>()
    };
    match kind {
        VocabularyKind::ByteBpe => {
            json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true})
        }
        VocabularyKind::Unigram => json!({
            "type": "TemplateProcessing",
            "single": [text("A", 0), token("</s>", 0)],
            "pair": [text("A", 0), token("</s>", 0), text("B", 0), token("</s>", 0)],
            "special_tokens": known(&["</s>"]),
        }),
        VocabularyKind::WordPiece => json!({
            "type": "TemplateProcessing",
            "single": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0)],
            "pair": [token("[CLS]", 0), text("A", 0), token("[SEP]", 0), text("B", 1), token("[SEP]", 1)],
            "special_tokens": known(&["[CLS]", "[SEP]"]),
        }),
        VocabularyKind::Characters => Value::Null,
    }
}

/// `tokenizer.json` around a model whose first tokens are the special ones.
pub(super) fn tokenizer(options: &TrainOptions, special: &[String], model: Value) -> Value {
    let added = special.iter().enumerate().map(|(id, token)| {
        json!({
            "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            "special": true,
        })
    });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": normalizer(options),
        "pre_tokenizer": pre_tokenizer(options.kind),
        "post_processor": post_processor(options.kind, special),
        "decoder": decoder(options.kind),
        "model": model,
    })
}

/// `tokenizer_config.json`: the class that opens every `tokenizer.json`, and which special token is which.
pub(super) fn config(options: &TrainOptions, special: &[String]) -> Value {
    let own = own_special_tokens(options.kind);
    let mut config = json!({"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": false});
    for (name, token) in own {
        config[*name] = json!(token);
    }
    if options.kind == VocabularyKind::ByteBpe {
        // As in GPT-2, what ends a text also begins one.
        config["bos_token"] = json!("<|endoftext|>");
    }
    if special.len() > own.len() {
        config["additional_special_tokens"] = json!(special[own.len()..]);
    }
    config
}
