//! Treatment of each field of `tokenizer_config.json`.
//!
//! Defines [`meaning`], which tells of every field that transformers 5.23's tokenizers know whether it is used, has no
//! effect here or is refused, and [`check`], which refuses. A field that no tokenizer knows has no effect there either.

use serde_json::Value;

use super::files::Settings;
use crate::{Error, Result};
use model_center_base::file::printable;

/// Treatment of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigField {
    /// It decides about ids or chats.
    Used,
    /// It does not, for this reason.
    WithoutEffect(&'static str),
    /// A value other than the usual one is refused, for this reason.
    Refused(&'static str),
}

use ConfigField::{Refused, Used, WithoutEffect};

/// Fields with what becomes of them; names that end in `_token` are tokens, whatever their beginning.
const FIELDS: &[(ConfigField, &[&str])] = &[
    (
        Used,
        &[
            "add_bos_token",
            "add_eos_token",
            "add_prefix_space",
            "added_tokens_decoder",
            "additional_special_tokens",
            "chat_template",
            "do_lower_case",
            "extra_ids",
            "extra_special_tokens",
            "keep_accents",
            "model_specific_special_tokens",
            "strip_accents",
            "tokenize_chinese_chars",
            "tokenizer_class",
        ],
    ),
    (
        WithoutEffect("lengths, padding and truncation are given with each call"),
        &[
            "max_len",
            "max_length",
            "max_target_length",
            "model_input_names",
            "model_max_length",
            "pad_to_multiple_of",
            "pad_token_type_id",
            "return_token_type_ids",
            "padding",
            "padding_side",
            "stride",
            "tokenizer_padding",
            "tokenizer_truncation",
            "truncation",
            "truncation_side",
            "truncation_strategy",
            "_json_padding",
            "_json_truncation",
            "offset",
        ],
    ),
    (
        WithoutEffect("it tells where files are or how they were loaded; the files of the directory are read"),
        &[
            "_commit_hash",
            "_from_auto",
            "_from_pipeline",
            "auto_map",
            "backend",
            "cache_dir",
            "commit_message",
            "device_map",
            "emoji_file",
            "fast_tokenizer_files",
            "files_loaded",
            "force_download",
            "generator",
            "gguf_file",
            "init_inputs",
            "is_local",
            "local_files_only",
            "merges_file",
            "model_type",
            "name_or_path",
            "normalizer_file",
            "processor_class",
            "proxies",
            "question_encoder",
            "repo_id",
            "revision",
            "save_jinja_files",
            "slow_tokenizer_class",
            "source_spm",
            "special_tokens_map_file",
            "spm_file",
            "src_vocab_file",
            "subfolder",
            "target_spm",
            "target_vocab_file",
            "tgt_vocab_file",
            "tokenizer",
            "tokenizer_file",
            "tokenizer_object",
            "tokenizer_path",
            "transformers_version",
            "type",
            "use_source_tokenizer",
            "verbose",
            "vocab_file",
            "word_pronunciation_file",
            "word_shape_file",
        ],
    ),
    (
        WithoutEffect("the file of the vocabulary has the vocabulary and its normalization"),
        &[
            "_spm_precompiled_charsmap",
            "clean_text",
            "do_clean_text",
            "legacy",
            "legacy_behaviour",
            "merges",
            "never_split",
            "post_processor",
            "remove_space",
            "unk_id",
            "vocab",
            "wordpieces_prefix",
            "do_basic_tokenize",
            "mask_token_sent",
        ],
    ),
    (
        WithoutEffect("it changes how ids become text for people, or where tokens are in a text, not ids"),
        &[
            "clean_up_tokenization_spaces",
            "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
            "do_upper_case",
            "errors",
            "response_schema",
            "response_template",
            "special_tokens_pattern",
            "trim_offsets",
            "token_type_ids_include_special_tokens",
            "token_type_ids_pattern",
        ],
    ),
    (
        WithoutEffect("special tokens in texts are text unless the program asks for tokens"),
        &["chat_control_tokens", "sanitize_control_tokens", "split_special_tokens"],
    ),
    (WithoutEffect("it tells how requests are checked before they become ids"), &["mode"]),
    (
        WithoutEffect("it is for making a vocabulary"),
        &["continuing_subword_prefix", "end_of_word_suffix", "initial_alphabet"],
    ),
    (
        WithoutEffect("it names a system message that chat templates of today have themselves"),
        &["use_default_system_prompt"],
    ),
    (
        WithoutEffect("it is for tables, pages, entities, sounds or translation, which no model here reads"),
        &[
            "add_blank",
            "cell_trim_length",
            "cls_token_box",
            "default_velocity",
            "do_phonemize",
            "entity_vocab",
            "is_uroman",
            "lang_codes",
            "language",
            "language_codes",
            "langs",
            "max_column_id",
            "max_depth",
            "max_entity_length",
            "max_mention_length",
            "max_question_length",
            "max_row_id",
            "max_width",
            "min_question_length",
            "normalize",
            "num_bars",
            "num_madeup_words",
            "only_label_first_subword",
            "pad_token_box",
            "pad_token_label",
            "pad_width",
            "phonemize",
            "phonemizer_backend",
            "phonemizer_lang",
            "predict_timestamps",
            "replace_word_delimiter_char",
            "sep_token_box",
            "should_strip_spaces",
            "source_lang",
            "strip_column_names",
            "tags_dict",
            "target_lang",
            "task",
            "update_answer_coordinates",
        ],
    ),
    (
        Refused("words would have to be found by another program first"),
        &[
            "do_subword_tokenize",
            "do_word_tokenize",
            "jumanpp_kwargs",
            "mecab_kwargs",
            "subword_tokenizer_type",
            "sudachi_kwargs",
            "word_tokenizer_type",
        ],
    ),
    (
        Refused("texts would have to be changed before they are divided"),
        &[
            "do_lowercase",
            "do_lowercase_and_remove_accent",
            "fix_mistral_regex",
            "id2lang",
            "lang2id",
            "normalization",
            "split_by_punct",
        ],
    ),
    (Refused("a token of the language would have to be added"), &["src_lang", "tgt_lang"]),
    (Refused("ids are of a second vocabulary"), &["monolingual_vocab_file", "separate_vocabs"]),
    (Refused("texts would be divided in other ways, such as by sampling"), &["sp_model_kwargs"]),
];

/// Treatment of a field; `None` for one that transformers does not know.
pub fn meaning(field: &str) -> Option<ConfigField> {
    if let Some((found, _)) = FIELDS.iter().find(|(_, names)| names.contains(&field)) {
        return Some(*found);
    }
    (field == "token" || field.ends_with("_token")).then_some(Used)
}

/// Refuses what the files ask for and this program does not do. `is_document` is of a `tokenizer.json`, which has a
/// language's token and the normalization in itself.
pub fn check(place: &str, settings: &Settings, is_document: bool) -> Result<()> {
    for (field, value) in &settings.config {
        let Some(Refused(reason)) = meaning(field) else { continue };
        let is_usual = match value {
            Value::Null | Value::Bool(false) => true,
            Value::String(kind) => matches!(kind.as_str(), "basic" | "wordpiece"),
            Value::Object(fields) => fields.is_empty(),
            _ => field.starts_with("do_word") || field.starts_with("do_subword"),
        };
        let is_in_document = is_document && field != "fix_mistral_regex" && field != "split_by_punct";
        if !is_usual && !is_in_document {
            let reason = format!("{field} is {} in tokenizer_config.json: {reason}", printable(&value.to_string(), 40));
            let fix = "save the tokenizer with transformers as tokenizer.json, and remove the field";
            return Err(Error::model(place, reason, fix));
        }
    }
    Ok(())
}
