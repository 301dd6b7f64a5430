//! Damaged files are errors.

use std::fs;

use model_center::tokenizer::AutoTokenizer;
use serde_json::json;
use tempfile::TempDir;

use crate::tokenizer_formats::{directory, golden};

#[test]
fn damaged_models_are_errors_and_never_panics() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("tokenizer.model");
    let mut state = 1u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % below
    };
    let (mut refused, mut opened) = (0, 0);
    for name in ["unigram.model", "pairs.model", "letters.model"] {
        let sound = fs::read(golden(name)).unwrap();
        for _ in 0..150 {
            let mut bytes = sound.clone();
            match random(4) {
                0 => bytes.truncate(random(sound.len())),
                1 => bytes.extend((0..random(40)).map(|_| random(256) as u8)),
                _ => {
                    for _ in 0..=random(8) {
                        let at = random(bytes.len());
                        bytes[at] = random(256) as u8;
                    }
                }
            }
            fs::write(&path, &bytes).unwrap();
            match AutoTokenizer::open(&path) {
                Ok(tokenizer) => {
                    opened += 1;
                    // What it makes of a text is its business, as long as it ends.
                    let _ = tokenizer.encode("the old sailor　<sep> ﬁ 船\u{301}", None, None);
                }
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("tokenizer.model"), "{error}");
                }
            }
        }
    }
    assert!(refused > 20 && opened > 20, "{refused} refused, {opened} opened");
}

#[test]
fn a_table_of_replacements_that_leads_nowhere_is_an_error_of_the_library_caught() {
    // A trie of one unit: whatever comes first leads out of it, and the library follows.
    let table = "BAAAAAD//38AAAA=";
    let document = json!({
        "version": "1.0", "added_tokens": [],
        "normalizer": { "type": "Precompiled", "precompiled_charsmap": table },
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": { "type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.0]], "byte_fallback": false },
    });
    let place = directory(&[], &[("tokenizer.json", document)]);
    let error = AutoTokenizer::open(place.path()).unwrap_err().to_string();
    assert!(error.contains("the tokenizer library failed") && error.contains("tokenizer.json"), "{error}");
    // One that claims more units than it has is not given to the library, which would take memory for them.
    let lying = json!({ "normalizer": { "type": "Precompiled", "precompiled_charsmap": "/////wAAAAAAAAAA" } });
    let error = AutoTokenizer::open(directory(&[], &[("tokenizer.json", lying)]).path()).unwrap_err().to_string();
    assert!(error.contains("precompiled_charsmap") && error.contains("damaged"), "{error}");
}

#[test]
fn broken_byte_level_files_are_named() {
    let refusal = |vocab: &str, merges: &str| {
        let place = TempDir::new().unwrap();
        fs::write(place.path().join("vocab.json"), vocab).unwrap();
        fs::write(place.path().join("merges.txt"), merges).unwrap();
        AutoTokenizer::open(place.path()).unwrap_err().to_string()
    };
    let vocab = r#"{"a": 0, "b": 1, "ab": 2}"#;
    for (vocab, merges, reason) in [
        (vocab, "#version: 0.2\na b\na c\n", "merges.txt:3"),
        (vocab, "ab\n", "merges.txt:1"),
        (r#"{"a": 0, "b": 0}"#, "", "two tokens have the id 0"),
        (r#"{"a": -1}"#, "", "has the id -1"),
        (r#"{"a": 99999999999}"#, "", "has the id 99999999999"),
        (r#"{"a</w>": 0}"#, "", "not a byte-level vocabulary"),
        ("[]", "", "vocab.json:1"),
    ] {
        let error = refusal(vocab, merges);
        assert!(error.contains(reason), "expected {reason:?} in:\n{error}");
    }
}

#[test]
fn what_holds_no_tokenizer_says_what_is_read() {
    let place = TempDir::new().unwrap();
    let error = AutoTokenizer::open(place.path()).unwrap_err().to_string();
    assert!(error.contains("spiece.model") && error.contains("vocab.json with merges.txt"), "{error}");
    fs::write(place.path().join("weights.bin"), "x").unwrap();
    let error = AutoTokenizer::open(place.path().join("weights.bin")).unwrap_err().to_string();
    assert!(error.contains("not a tokenizer file's name"), "{error}");
    fs::copy(golden("../gguf/llama.gguf"), place.path().join("a.gguf")).unwrap();
    assert_eq!(AutoTokenizer::open(place.path()).unwrap().vocab_size(), 44);
    fs::copy(golden("../gguf/llama.gguf"), place.path().join("b.gguf")).unwrap();
    let error = AutoTokenizer::open(place.path()).unwrap_err().to_string();
    assert!(error.contains("2 files *.gguf"), "{error}");
    fs::write(place.path().join("tokenizer.model"), "no model").unwrap();
    let error = AutoTokenizer::open(place.path()).unwrap_err().to_string();
    assert!(error.contains("SentencePiece model"), "{error}");
}
