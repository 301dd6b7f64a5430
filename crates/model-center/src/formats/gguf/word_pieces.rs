//! BERT's vocabularies in GGUF files, which mark the tokens that begin a word instead of those that continue one.
//!
//! Defines [`document`]; called by [`super::tokenizer`].

use serde_json::Value;

use super::tokenizer::{CONTROL, SPECIAL, Special, TOKENS, Vocabulary};
use crate::Result;
use crate::tokenizer::VocabOptions;
use crate::tokenizer::files::Settings;
use crate::tokenizer::pieces::SPACE;
use crate::tokenizer::vocab::of_tokens;

/// The `tokenizer.json`. Texts are lower-cased if no token has an ASCII capital: the file does not specify it.
pub(super) fn document(vocabulary: &Vocabulary<'_>, special: &Special<'_>) -> Result<Value> {
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
        .map(|(token, kind)| match token.strip_prefix(SPACE) {
            Some(word) => word.to_owned(),
            None if *kind == CONTROL => token.to_string(),
            None => format!("##{token}"),
        })
        .collect();
    of_tokens(&vocabulary.metadata.place_of(TOKENS), tokens.iter().map(String::as_str), &options, &Settings::default())
}
