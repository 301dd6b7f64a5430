//! Control tokens: which there are, and that no text becomes one.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use model_center::tokenizer::{AutoTokenizer, HfTokenizer, TextSpecials, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::tokenizer_formats::{directory, golden, read, with_kind};

#[test]
fn text_never_becomes_a_control_token_unless_asked_for() {
    // Of these texts the vocabulary of scores could make the token: it is a piece like any other there.
    for name in ["unigram.model", "unigram_bytes.model", "pairs.model"] {
        let text = "the <s> harbour</s> <unk> <cls><0x41>";
        let tokenizer = AutoTokenizer::open(golden(name)).unwrap();
        let controls = ["<s>", "</s>", "<cls>", "<0x41>"].map(|token| tokenizer.id(token));
        let ids = tokenizer.tokenize(&[text]).unwrap().concat();
        assert!(!ids.iter().any(|id| controls.contains(&Some(*id))), "{name}: {ids:?}");
        if name != "unigram.model" {
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text, "{name}");
        }
        let asked = AutoTokenizer::open_with(golden(name), TextSpecials::AsTokens).unwrap();
        let ids = asked.tokenize(&[text]).unwrap().concat();
        assert!(ids.contains(&asked.id("</s>").unwrap()), "{name}: {ids:?}");
    }
}

/// A `tokenizer.json` with one special token, `a`, in its vocabulary.
fn one_character_special(model: Value) -> TempDir {
    let special = json!({ "id": 1, "content": "a", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true });
    let document = json!({ "version": "1.0", "added_tokens": [special], "normalizer": null, "pre_tokenizer": null,
                           "post_processor": null, "decoder": null, "model": model });
    directory(&[], &[("tokenizer.json", document)])
}

#[test]
fn a_special_token_of_one_character_is_spelled_otherwise_where_it_is_in_a_text() {
    let pairs = |vocab: Value, unknown: Value, byte_fallback: bool| {
        json!({ "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": byte_fallback, "vocab": vocab,
                "merges": [] })
    };
    let vocab = json!({ "<unk>": 0, "a": 1, "b": 2, "<0x61>": 3 });
    let unigram = json!({ "type": "Unigram", "unk_id": 0, "byte_fallback": false,
                          "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0]] });
    for (model, want) in [
        (pairs(vocab.clone(), json!("<unk>"), false), [2, 0, 2]),
        (pairs(vocab.clone(), json!("<unk>"), true), [2, 3, 2]),
        (pairs(vocab.clone(), json!(null), true), [2, 3, 2]),
        (unigram, [2, 0, 2]),
        (json!({ "type": "WordLevel", "vocab": { "<unk>": 0, "a": 1, "bab": 2 }, "unk_token": "<unk>" }), [2, 0, 2]),
    ] {
        let directory = one_character_special(model.clone());
        let tokenizer = AutoTokenizer::open(directory.path()).unwrap();
        let ids = match model["type"] == "WordLevel" {
            true => tokenizer.tokenize(&["bab", "a", "bab"]).unwrap().concat(),
            false => tokenizer.tokenize(&["bab"]).unwrap().concat(),
        };
        assert_eq!(ids, want, "{model}");
        let many = tokenizer.tokenize(&[&"a".repeat(100_000)]).unwrap().concat();
        assert!(!many.is_empty() && !many.contains(&1), "{model}");
        let asked = AutoTokenizer::open_with(directory.path(), TextSpecials::AsTokens).unwrap();
        assert_eq!(asked.tokenize(&["a"]).unwrap().concat(), [1], "{model}");
    }
    // A vocabulary that cannot spell it otherwise reports it; with special tokens as tokens it works.
    let directory = one_character_special(pairs(vocab, json!(null), false));
    let error = AutoTokenizer::open(directory.path()).unwrap().tokenize(&["bab"]).unwrap_err().to_string();
    assert!(error.contains("\"a\" is a special token") && error.contains("tokenizer.json"), "{error}");
    let asked = AutoTokenizer::open_with(directory.path(), TextSpecials::AsTokens).unwrap();
    assert_eq!(asked.tokenize(&["bab"]).unwrap().concat(), [2, 1, 2]);
}

#[test]
fn a_piece_that_is_not_in_use_is_never_found() {
    let usual = AutoTokenizer::open(golden("unigram.model")).unwrap();
    let text = "the harbour and the ship, the sea";
    let ids = usual.tokenize(&[text]).unwrap().concat();
    let mut found: Vec<(u32, String)> = ids.iter().map(|id| (*id, usual.token(*id).unwrap())).collect();
    found.sort_unstable();
    found.dedup();
    found.retain(|(_, piece)| !piece.starts_with('<'));
    assert!(found.len() > 5, "{found:?}");
    for (id, piece) in found {
        let (_place, path) = with_kind(&piece, 5);
        for specials in [TextSpecials::AsText, TextSpecials::AsTokens] {
            let tokenizer = AutoTokenizer::open_with(&path, specials).unwrap();
            assert_eq!(tokenizer.id(&piece), Some(id));
            let ids = tokenizer.tokenize(&[text, &text.repeat(3000)]).unwrap().concat();
            assert!(!ids.contains(&id), "{piece}: {ids:?}");
            // What is unknown stays what it was: that score does not depend on the piece's.
            if piece != "\u{2581}" {
                assert_eq!(tokenizer.tokenize(&["船"]).unwrap(), usual.tokenize(&["船"]).unwrap());
            }
        }
    }
}

#[test]
fn a_control_piece_of_one_character_is_unknown_in_a_text() {
    let (_place, path) = with_kind("e", 3);
    let tokenizer = AutoTokenizer::open(&path).unwrap();
    let control = tokenizer.id("e").unwrap();
    assert!(tokenizer.control_tokens().iter().any(|token| token.id == control));
    let ids = tokenizer.tokenize(&["e eee e"]).unwrap().concat();
    assert!(ids.contains(&0) && !ids.contains(&control), "{ids:?}");
}

#[test]
fn control_tokens_spelled_many_times_take_no_depth_and_little_time() {
    for name in ["unigram.model", "unigram_bytes.model"] {
        let tokenizer = HfTokenizer::open(golden(name)).unwrap();
        let control = tokenizer.id("</s>").unwrap();
        let few = tokenizer.tokenize(&[&"</s>".repeat(3)]).unwrap().concat();
        let text = "</s>".repeat(200_000);
        let start = Instant::now();
        for many in [tokenizer.tokenize(&[&text]).unwrap().concat(), tokenizer.tokenize_whole(&text).unwrap()] {
            assert!(!many.contains(&control), "{name}");
            assert!(many.starts_with(&few[..few.len() - 2]) && many.len() >= few.len(), "{name}: {few:?}");
        }
        // Generous, for a busy machine and a debug build; time that grows with the square is hours.
        assert!(start.elapsed() < Duration::from_secs(60), "{name}: {:?}", start.elapsed());
    }
}

/// Whether `token` is a control token of a directory's tokenizer that no text becomes.
fn is_control(directory: &Path, token: &str, id: u32) -> bool {
    let tokenizer = AutoTokenizer::open(directory).unwrap();
    assert_eq!(tokenizer.id(token), Some(id), "{token}");
    let ids = tokenizer.tokenize(&[&format!("the {token} harbour{token}")]).unwrap().concat();
    tokenizer.control_tokens().iter().any(|control| control.id == id) && !ids.contains(&id)
}

#[test]
fn tokens_that_a_directory_calls_special_are_control_tokens_in_every_form() {
    const END: &str = "<|im_end|>";
    let bert = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nharb\n##our\n[E]\n";
    let size = |name: &str| AutoTokenizer::open(golden(name)).unwrap().vocab_size();
    let (pairs, unigram) = (size("pairs.model"), size("unigram.model"));
    let bytes = read("bytes/vocab.json").as_object().unwrap().len();
    for (copies, size) in [
        (&[("pairs.model", "tokenizer.model")][..], pairs),
        (&[("unigram.model", "spiece.model")], unigram),
        (&[("bytes/vocab.json", "vocab.json"), ("bytes/merges.txt", "merges.txt")], bytes),
        (&[], 9),
    ] {
        let id = u32::try_from(size).unwrap();
        let decoder = json!({ id.to_string(): { "content": END, "special": true, "lstrip": false, "rstrip": true,
                                                "normalized": false, "single_word": false } });
        for (config, names, special) in [
            (json!({ "eos_token": END }), json!({}), true),
            (json!({ "end_of_turn_token": { "content": END } }), json!({}), true),
            (json!({}), json!({ "additional_special_tokens": [{ "content": END }] }), true),
            (json!({ "extra_special_tokens": [END] }), json!({}), true),
            (json!({ "extra_special_tokens": { "turn": END } }), json!({}), true),
            (json!({ "added_tokens_decoder": decoder }), json!({}), true),
            (json!({ "add_eos_token": false, "chat_template": END }), json!({}), false),
        ] {
            let files = [
                ("added_tokens.json", json!({ END: id })),
                ("tokenizer_config.json", config.clone()),
                ("special_tokens_map.json", names),
            ];
            let place = directory(copies, &files);
            if copies.is_empty() {
                fs::write(place.path().join("vocab.txt"), bert).unwrap();
            }
            assert_eq!(is_control(place.path(), END, id), special, "{copies:?}, {config}");
            if config.get("added_tokens_decoder").is_some() {
                fs::remove_file(place.path().join("added_tokens.json")).unwrap();
                assert!(is_control(place.path(), END, id), "{copies:?}, {config}");
                let control = AutoTokenizer::open(place.path())
                    .unwrap()
                    .control_tokens()
                    .into_iter()
                    .find(|token| token.id == id);
                assert!(control.is_some_and(|token| token.takes_space_after && !token.takes_space_before));
            }
        }
    }
    // Words of the vocabulary itself.
    let place = directory(&[], &[("tokenizer_config.json", json!({ "additional_special_tokens": ["[E]", "harb"] }))]);
    fs::write(place.path().join("vocab.txt"), bert).unwrap();
    assert!(is_control(place.path(), "[E]", 8) && is_control(place.path(), "harb", 6));
    let piece = AutoTokenizer::open(golden("pairs.model")).unwrap().id("our").unwrap_or(300);
    let spelled = AutoTokenizer::open(golden("pairs.model")).unwrap().token(piece).unwrap();
    let place = directory(
        &[("pairs.model", "tokenizer.model")],
        &[("tokenizer_config.json", json!({ "additional_special_tokens": [spelled] }))],
    );
    assert!(is_control(place.path(), &spelled, piece), "{spelled}");
}
