//! Long texts have the ids of the whole.

use std::fs;

use model_center::tokenizer::HfTokenizer;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::mutants::Random;
use crate::tokenizer_formats::{check_as_whole, directory, golden, read};

/// Bytes of two sections: a text is cut where it is longer than one and a half, of 32 KiB.
const LENGTH: usize = 50_000;

/// Words, spaces, digits, Chinese, punctuation and line ends in a pseudo-random order that is always the same.
fn mixed(length: usize, seed: u64) -> String {
    const PARTS: [&str; 24] = [
        "the",
        " harbour",
        "  ",
        "\n",
        "\r\n",
        "12",
        "345678",
        "船长看着大海",
        "。",
        "é",
        "e\u{301}",
        "\u{301}",
        "🚢",
        "don't",
        " <sep> ",
        "zz",
        "ÿ",
        "\t",
        "Haus ",
        "a",
        "'s",
        "!",
        "\u{200D}",
        "…",
    ];
    let mut state = seed;
    let mut text = String::new();
    while text.len() < length {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let part = PARTS[(state >> 33) as usize % PARTS.len()];
        // Now and then a long run without any place to cut at.
        text.push_str(&part.repeat(if (state >> 20).is_multiple_of(4096) { 30_000 } else { 1 }));
    }
    text
}

/// A `tokenizer.json` that takes white space away at both ends of a text, and nowhere else.
fn stripped() -> TempDir {
    let vocab: Vec<Value> = ["<unk>", "▁", "▁the", "harbour", ",", "0", ".", "25", "5", "▁0.", "a", "🚢", "\t"]
        .iter()
        .enumerate()
        .map(|(id, piece)| json!([piece, -(id as f64)]))
        .collect();
    let steps = json!([{ "type": "Strip", "strip_left": true, "strip_right": true },
                       { "type": "Replace", "pattern": { "String": " " }, "content": "▁" }]);
    let document = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "normalizer": { "type": "Sequence", "normalizers": steps },
        "model": { "type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false },
    });
    directory(&[], &[("tokenizer.json", document)])
}

/// The tokenizers whose long texts are compared with the library's own result of the whole.
fn all_kinds() -> Vec<(&'static str, HfTokenizer)> {
    let own = |name: &str| HfTokenizer::open(golden(name)).unwrap();
    let bytes = |config: Value| {
        let files = [("bytes/vocab.json", "vocab.json"), ("bytes/merges.txt", "merges.txt")];
        HfTokenizer::open(directory(&files, &[("config.json", config)]).path()).unwrap()
    };
    // A leading space for every chunk; punctuation makes many chunks.
    let size = read("bytes/vocab.json").as_object().unwrap().len();
    let stretches = directory(
        &[("bytes/vocab.json", "vocab.json"), ("bytes/merges.txt", "merges.txt")],
        &[
            ("tokenizer_config.json", json!({ "add_prefix_space": true })),
            ("added_tokens.json", json!({ "<sep>": size })),
        ],
    );
    let words = TempDir::new().unwrap();
    fs::write(
        words.path().join("vocab.txt"),
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nharb\n##our\na\nz\n##z\n!\n船\n12\n",
    )
    .unwrap();
    vec![
        ("byte pairs", bytes(json!({}))),
        ("byte pairs as in Qwen2", bytes(json!({ "model_type": "qwen2" }))),
        ("byte pairs after spaces", HfTokenizer::open(stretches.path()).unwrap()),
        ("pairs", own("pairs.model")),
        ("pairs_trimmed", own("pairs_trimmed.model")),
        ("letters", own("letters.model")),
        ("unigram", own("unigram.model")),
        ("unigram_bytes", own("unigram_bytes.model")),
        ("words", HfTokenizer::open(words.path()).unwrap()),
        ("stripped", HfTokenizer::open(stripped().path()).unwrap()),
    ]
}

#[test]
fn a_long_text_has_the_ids_of_the_whole() {
    for (kind, (name, tokenizer)) in all_kinds().into_iter().enumerate() {
        // Texts with a space wherever a section might end, so that some sections end after one: at two of four offsets,
        // at the other two for the next part and for the next tokenizer.
        let sparse = [
            "0.5, 0.25, ",
            "🚢 ",
            "… ",
            "12 ",
            "the, harbour; ",
            "harbour\tthe\t",
            "the  harbour ",
            "harbour,the.",
            "12,0.5;",
            "harbour!\n",
            "🚢!\n",
            "the ship…\n\n",
        ]
        .into_iter()
        .enumerate()
        .flat_map(|(at, part)| {
            [0, 2].map(|even| "a".repeat(even + (kind + at) % 2) + &part.repeat(LENGTH / part.len()))
        });
        let texts = (0..3).map(|seed| mixed(150_000, seed)).chain(sparse);
        for (seed, text) in texts.enumerate() {
            check_as_whole(&tokenizer, &text, &format!("{name}, text {seed}"));
        }
    }
}

/// Words are remembered by their text with the space before it: any white space beside it must not matter.
#[test]
fn remembered_words_have_the_ids_of_the_whole() {
    const WORDS: [&str; 12] =
        ["the", "harbour,", "don't", "'s", "12", "!", "船", "é", "\u{301}", "<sep>", "x\u{A0}", "\u{3000}y"];
    const BETWEEN: [&str; 8] = [" ", " ", " ", "  ", "\n", " \t", "\u{A0} ", ""];
    let files = [("bytes/vocab.json", "vocab.json"), ("bytes/merges.txt", "merges.txt")];
    let tokenizer = HfTokenizer::open(directory(&files, &[("config.json", json!({}))]).path()).unwrap();
    let mut random = Random(4);
    for text in 0..300 {
        let words = (0..random.below(200)).map(|_| [random.pick(&WORDS), random.pick(&BETWEEN)].concat());
        check_as_whole(&tokenizer, &words.collect::<String>(), &format!("text {text}"));
    }
    // More different words than are remembered, and the first of them again.
    let many: String = (0..80_000).map(|number| format!(" w{number}")).collect();
    check_as_whole(&tokenizer, &(many.clone() + &many[..40_000]), "many words");
}

#[test]
fn one_character_many_times_has_the_ids_of_the_whole() {
    for (name, tokenizer) in all_kinds() {
        for character in ["a", "z", " ", "1", "!", "\n", "é", "船", "🚢", "\u{301}", "\t"] {
            let text = character.repeat(2 * LENGTH / character.len());
            check_as_whole(&tokenizer, &text, &format!("{name}, {character:?}"));
        }
    }
}
