//! Words and runs across the end of a section.

use std::fs;

use model_center::tokenizer::{HfTokenizer, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::tokenizer_formats::{check_as_whole, directory};

/// Letters, digits and two marks in an order that looks random, without a space.
fn base64(length: usize) -> String {
    const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut state = 7u64;
    let signs = (0..length).map(|_| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        char::from(SIGNS[(state >> 33) as usize % 64])
    });
    signs.collect()
}

/// A `tokenizer.json` of these parts.
fn parts(normalizer: Value, pre_tokenizer: Value, model: Value, added: Value) -> HfTokenizer {
    let document = json!({ "version": "1.0", "added_tokens": added, "normalizer": normalizer, "post_processor": null,
                           "pre_tokenizer": pre_tokenizer, "decoder": null, "model": model });
    HfTokenizer::open(directory(&[], &[("tokenizer.json", document)]).path()).unwrap()
}

#[test]
fn words_that_a_section_ends_in_have_the_tokens_of_the_whole() {
    let signs: Vec<String> = ('0'..='9').chain('a'..='z').map(String::from).collect();
    let pairs = ('a'..='z').flat_map(|a| ('a'..='z').map(move |b| format!("{a}{b}")));
    let pieces: Vec<String> = signs.iter().cloned().chain(pairs).collect();
    let vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "+", "/"].map(String::from).into_iter();
    let vocab: Vec<String> =
        vocab.chain(pieces.iter().cloned()).chain(pieces.iter().map(|p| format!("##{p}"))).collect();
    let place = TempDir::new().unwrap();
    fs::write(place.path().join("vocab.txt"), vocab.join("\n")).unwrap();
    let bert = HfTokenizer::open(place.path()).unwrap();
    // Short words and, with punctuation at long intervals, long ones, some of them too long.
    let line = base64(64 << 10);
    let texts = [
        line.clone(),
        line.replace('/', "e\u{301}").replace('+', "é\u{301}\u{302}"),
        line.replace('/', "").split('+').map(|word| format!("{word}{word}+")).collect(),
        line.replace(['/', '+'], ""),
        "harbour".repeat(20_000),
        base64(100 << 10).to_lowercase(),
    ];
    let words: serde_json::Map<String, Value> =
        vocab.iter().chain(&["\u{2581}x".into()]).enumerate().map(|(id, word)| (word.clone(), json!(id))).collect();
    let level = json!({ "type": "WordLevel", "vocab": words, "unk_token": "[UNK]" });
    let split = json!({ "type": "Split", "pattern": { "Regex": "[0-9]+|[a-z]+|[A-Z]" }, "behavior": "Isolated",
                        "invert": false });
    let fixed = json!({ "type": "FixedLength", "length": 3 });
    let added = json!([{ "id": vocab.len() + 1, "content": "QQ", "single_word": false, "lstrip": false, "rstrip": false,
                         "normalized": false, "special": false }]);
    let spaced = json!({ "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true });
    let kinds = [
        ("WordPiece", bert),
        ("WordLevel", parts(json!(null), split, level.clone(), json!([]))),
        ("groups of three", parts(json!(null), fixed.clone(), level.clone(), json!([]))),
        (
            "groups in a sequence",
            parts(
                json!({ "type": "Lowercase" }),
                json!({ "type": "Sequence", "pretokenizers":
            [fixed, { "type": "Digits", "individual_digits": true }] }),
                level.clone(),
                json!([]),
            ),
        ),
        ("words after spaces", parts(json!(null), spaced, level, added)),
    ];
    let short = (0..3).map(|offset| "a".repeat(offset) + &"x QQx ab ".repeat(10_000));
    for (at, text) in texts.into_iter().chain(short).enumerate() {
        for (name, tokenizer) in &kinds {
            check_as_whole(tokenizer, &text, &format!("{name}, text {at}"));
        }
    }
}

#[test]
fn a_seam_may_change_every_pair_of_the_section_behind_it() {
    // Letters merge in pairs from the left, so that one more before a cut shifts all pairs after it, up to punctuation.
    let model = json!({ "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                        "vocab": { "a": 0, "b": 1, "aa": 2 }, "merges": [["a", "a"]] });
    let tokenizer = parts(json!(null), json!(null), model, json!([]));
    for length in [20_000, 40_001, 90_001] {
        let text = format!("b{}", "a".repeat(length)).repeat(4);
        check_as_whole(&tokenizer, &text, &format!("{length}"));
    }
}

#[test]
fn a_line_end_behind_a_mark_stays_with_the_mark() {
    // As in Qwen2 and Llama 3: white space up to a line end is one pre-token, except line ends after punctuation.
    let pattern = r" ?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let split = json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    let model = json!({ "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                        "vocab": { "a": 0, "!": 1, "\n": 2, " ": 3, "\n ": 4 }, "merges": [["\n", " "]] });
    let tokenizer = parts(json!(null), split, model, json!([]));
    for offset in 0..4 {
        let text = "a".repeat(offset) + &"aaa!\n \n".repeat(20_000);
        check_as_whole(&tokenizer, &text, &format!("{offset}"));
    }
}

#[test]
fn long_words_that_a_vocabulary_can_spell_are_not_shortened() {
    // Every letter is a word here.
    let split = json!({ "type": "Split", "pattern": { "Regex": "." }, "behavior": "Isolated", "invert": false });
    let vocab = json!({ "[UNK]": 0, "a": 1, "b": 2 });
    let model = json!({ "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                        "max_input_chars_per_word": 100, "vocab": vocab });
    let tokenizer = parts(json!(null), split, model, json!([]));
    assert_eq!(tokenizer.tokenize(&[&"ab".repeat(40_000)]).unwrap().concat(), [1, 2].repeat(40_000));
}
