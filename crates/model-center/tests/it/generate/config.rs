//! The generation settings of a model directory.

use model_center::Result;
use model_center::generate::{GenerationConfig, Patience, Setting};

const GENERATION_FILE: &str = "generation_config.json";
const CONFIG_FILE: &str = "config.json";

/// Read a directory with these files; an empty text for no file.
fn read(generation: &str, config: &str) -> Result<GenerationConfig> {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [(GENERATION_FILE, generation), (CONFIG_FILE, config)] {
        if !text.is_empty() {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
    }
    GenerationConfig::from_directory(directory.path(), 50)
}

fn own<T>(value: T) -> Option<Setting<T>> {
    Some(Setting { value, origin: GENERATION_FILE })
}

#[test]
fn settings_come_from_the_generation_file_alone_if_there_is_one() {
    let old = r#"{"num_beams": 4, "early_stopping": true, "no_repeat_ngram_size": 3, "eos_token_id": 2}"#;
    let of_config = |value| Some(Setting { value, origin: CONFIG_FILE });
    let defaults = read("", old).unwrap();
    assert_eq!((defaults.num_beams, defaults.no_repeat), (of_config(4), of_config(3)));
    assert_eq!(defaults.patience.unwrap().value, Patience::First);
    let defaults = read("{}", old).unwrap();
    assert_eq!((defaults.num_beams, &defaults.patience, &defaults.no_repeat), (None, &None, &None));
    assert_eq!(
        defaults.end_tokens,
        Some(Setting { value: vec![2], origin: CONFIG_FILE }),
        "end tokens come from either file"
    );
}

#[test]
fn tokens_are_one_or_several_and_negative_ids_are_none() {
    let defaults = read(
        r#"{"eos_token_id": [3, 4], "forced_bos_token_id": 7, "decoder_start_token_id": -1, "suppress_tokens": [1],
            "bad_words_ids": [[8], [5, 6], [9], [1, 2], [3]], "stop_strings": "END"}"#,
        r#"{"eos_token_id": 2, "forced_eos_token_id": 2}"#,
    );
    let defaults = defaults.unwrap();
    assert_eq!(
        (defaults.end_tokens, defaults.forced_bos, defaults.decoder_start_token),
        (own(vec![3, 4]), own(7), None)
    );
    assert_eq!(defaults.forbidden, own(vec![1, 8, 9]));
    assert_eq!(defaults.stop_strings, own(vec!["END".to_owned()]));
    assert_eq!(defaults.forced_eos, None, "the other file is not used");
    assert_eq!(defaults.not_followed, ["bad_words_ids of several tokens"]);
}

#[test]
fn values_without_effect_are_absent_and_unsupported_fields_are_named() {
    let defaults = read(
        r#"{"temperature": 0, "top_k": 0, "num_beams": 1, "repetition_penalty": 1.0, "min_p": null,
            "typical_p": 1.0,
            "num_beam_groups": 1, "force_words_ids": [], "penalty_alpha": 0.6, "max_time": 5, "do_sample": false,
            "no_repeat_ngram_size": 0, "transformers_version": "4.0", "use_cache": true}"#,
        "{}",
    );
    let expected = GenerationConfig {
        do_sample: own(false),
        not_followed: vec!["max_time".to_owned(), "penalty_alpha".to_owned()],
        ..GenerationConfig::default()
    };
    assert_eq!(defaults.unwrap(), expected);
}

#[test]
fn an_invalid_value_is_named_with_file_and_field() {
    for (text, field) in [
        (r#"{"eos_token_id": 50}"#, "eos_token_id"),
        (r#"{"eos_token_id": "two"}"#, "eos_token_id"),
        (r#"{"bad_words_ids": [3]}"#, "bad_words_ids"),
        (r#"{"bad_words_ids": 3}"#, "bad_words_ids"),
        (r#"{"early_stopping": 1}"#, "early_stopping"),
        (r#"{"temperature": "hot"}"#, "temperature"),
        (r#"{"num_beams": 1e30}"#, "num_beams"),
        (r#"{"stop_strings": [""]}"#, "stop_strings"),
        ("[", "generation_config.json:1"),
    ] {
        let error = read(text, "{}").unwrap_err().to_string();
        assert!(error.contains(field) && error.contains(GENERATION_FILE), "{text}: {error}");
    }
    assert!(read("{}", "").is_err(), "a directory without a configuration is none");
}
