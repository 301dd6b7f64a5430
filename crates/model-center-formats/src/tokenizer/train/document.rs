//! The files of a trained tokenizer.

use serde_json::{Value, json};

use super::{TrainOptions, VocabularyKind, normalizer};
use crate::tokenizer::document::{DocumentParts, Slot, added_token, around, byte_level, template};

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

pub(super) fn pre_tokenizer(kind: VocabularyKind) -> Value {
    match kind {
        VocabularyKind::ByteBpe => byte_level(false, true, true),
        VocabularyKind::Unigram => {
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})
        }
        VocabularyKind::WordPiece => json!({"type": "BertPreTokenizer"}),
        VocabularyKind::Characters => Value::Null,
    }
}

fn decoder(kind: VocabularyKind) -> Value {
    match kind {
        VocabularyKind::ByteBpe => byte_level(true, true, true),
        VocabularyKind::Unigram => pre_tokenizer(kind),
        VocabularyKind::WordPiece => json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
        VocabularyKind::Characters => json!({"type": "Fuse"}),
    }
}

/// Special tokens around texts: BERT's and T5's; a decoder's texts have none.
fn post_processor(kind: VocabularyKind, special: &[String]) -> Value {
    let token = |name: &'static str| (name, special.iter().position(|known| known == name).unwrap_or(0));
    match kind {
        VocabularyKind::ByteBpe => byte_level(true, false, true),
        VocabularyKind::Unigram => around(None, Some(token("</s>")), false),
        VocabularyKind::WordPiece => {
            let [cls, sep] = ["[CLS]", "[SEP]"].map(token).map(|(name, id)| Slot::Token(name, id));
            template(&[cls, Slot::First, sep], &[cls, Slot::First, sep, Slot::Second, sep], true)
        }
        VocabularyKind::Characters => Value::Null,
    }
}

/// `tokenizer.json` around a model whose first tokens are the special ones.
pub(super) fn tokenizer(options: &TrainOptions, special: &[String], model: Value) -> Value {
    let parts = DocumentParts {
        normalizer: normalizer(options),
        pre_tokenizer: pre_tokenizer(options.kind),
        post_processor: post_processor(options.kind, special),
        decoder: decoder(options.kind),
        model,
    };
    let added = special.iter().enumerate().map(|(id, token)| {
        let mut entry = added_token(token, id, true);
        // As the library writes it: `special` is the last key.
        if let Some(entry) = entry.as_object_mut() {
            entry.shift_remove("special");
            entry.insert("special".into(), true.into());
        }
        entry
    });
    parts.with_added(added.collect())
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
