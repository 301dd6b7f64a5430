//! Tokenizers of every form: ids are those of the libraries the forms come from, long texts are as short ones, and damaged
//! files are errors. The golden files are described in `tests/golden/tokenizers/README.md`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use model_center::tokenizer::{HfTokenizer, TextSpecials, Tokenizer, format_of, is_in, open, open_with};
use serde_json::{Value, json};
use tempfile::TempDir;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tokenizers").join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(golden(name)).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// A folder with copies of golden files and files of these contents.
fn folder(copies: &[(&str, &str)], contents: &[(&str, Value)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (from, to) in copies {
        fs::copy(golden(from), folder.path().join(to)).unwrap();
    }
    for (name, content) in contents {
        fs::write(folder.path().join(name), content.to_string()).unwrap();
    }
    folder
}

/// Texts whose ids are those of SentencePiece but for what `docs/tokenizers.md` names.
fn differs_on_purpose(name: &str, text: &str) -> bool {
    // Words that are found whole begin a text of their own here.
    name == "unigram" && text.contains("<sep>")
}

#[test]
fn ids_of_sentencepiece_models_are_those_of_sentencepiece() {
    let mut compared = 0;
    for name in ["unigram", "unigram_bytes", "pairs", "pairs_trimmed", "letters"] {
        let tokenizer = open(golden(&format!("{name}.model"))).unwrap();
        let golden = read(&format!("{name}.json"));
        assert_eq!(tokenizer.vocab_size() as u64, golden["size"].as_u64().unwrap(), "{name}");
        for row in golden["texts"].as_array().unwrap() {
            let text = row["text"].as_str().unwrap();
            if differs_on_purpose(name, text) {
                continue;
            }
            let found = tokenizer.tokenize(&[text]).unwrap().concat();
            assert_eq!(found, ids(&row["ids"]), "{name}: {text:?}");
            if !found.contains(&0) {
                assert_eq!(
                    tokenizer.decode(&found, false).unwrap(),
                    row["decoded"].as_str().unwrap(),
                    "{name}: {text:?}"
                );
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 5 * 28 - 2);
}

#[test]
fn ids_of_byte_level_vocabularies_are_those_of_the_families() {
    let configs = [
        ("gpt2", json!({ "model_type": "gpt2" })),
        ("roberta", json!({ "model_type": "roberta" })),
        ("qwen2", json!({ "model_type": "qwen2" })),
    ];
    for (name, config) in configs {
        let golden = read(&format!("bytes_{name}.json"));
        let folder = folder(
            &[("bytes/vocab.json", "vocab.json"), ("bytes/merges.txt", "merges.txt")],
            &[("config.json", config)],
        );
        let tokenizer = open(folder.path()).unwrap();
        for row in golden["texts"].as_array().unwrap() {
            let text = row["text"].as_str().unwrap();
            let found = tokenizer.encode(text, None, None).unwrap().input_ids;
            assert_eq!(found, ids(&row["ids"]), "{name}: {text:?}");
            if name != "qwen2" {
                assert_eq!(tokenizer.decode(&found, true).unwrap(), text, "{name}");
            }
        }
        for row in golden["pairs"].as_array().unwrap() {
            let texts = [0, 1].map(|at| row["texts"][at].as_str().unwrap());
            let found = tokenizer.encode(texts[0], Some(texts[1]), None).unwrap().input_ids;
            assert_eq!(found, ids(&row["ids"]), "{name}: {texts:?}");
        }
    }
}

#[test]
fn a_folder_says_which_form_it_is_read_in() {
    let bytes = [("bytes/vocab.json", "vocab.json"), ("bytes/merges.txt", "merges.txt")];
    for (copies, kind) in [
        (&bytes[..], "byte-level pairs (vocab.json with merges.txt)"),
        (&bytes[..1], ""),
        (&[("unigram.model", "spiece.model")], "SentencePiece (spiece.model)"),
        (&[("pairs.model", "tokenizer.model")], "SentencePiece (tokenizer.model)"),
        (&[("pairs.model", "tokenizer.model"), ("pairs.model", "spiece.model")], "SentencePiece (spiece.model)"),
        (&[("../cpm_tokenizer/cpm1/vocab.txt", "vocab.txt")], "CPM-1 (vocab.txt)"),
        (&[("../cpm_tokenizer/cpm2/vocab.txt", "vocab.txt")], "CPM-2 (vocab.txt)"),
        (&[("../cpm_tokenizer/enc_dec/vocab.txt", "vocab.txt")], "CPM's EncDec (vocab.txt)"),
    ] {
        let folder = folder(copies, &[]);
        assert_eq!(format_of(folder.path()).unwrap().unwrap_or_default(), kind);
        assert_eq!((is_in(folder.path()).unwrap(), open(folder.path()).is_ok()), (!kind.is_empty(), !kind.is_empty()));
    }
    let folder = folder(&[], &[]);
    let error = open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("vocab.txt of BERT or a CPM") && error.contains("spiece.model"), "{error}");
    fs::write(folder.path().join("vocab.txt"), "[UNK]\n[CLS]\n[SEP]\na\n").unwrap();
    assert_eq!(format_of(folder.path()).unwrap(), Some("WordPiece (vocab.txt)"));
    fs::write(folder.path().join("tokenizer_config.json"), "{").unwrap();
    let error = format_of(folder.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json:1"), "{error}");
}

#[test]
fn families_put_their_own_tokens_around_texts() {
    let around = |model: &str, to: &str, files: &[(&str, Value)]| {
        let tokenizer = open(folder(&[(model, to)], files).path()).unwrap();
        let encoding = tokenizer.encode("the harbour", None, None).unwrap().input_ids;
        let plain = tokenizer.tokenize(&["the harbour"]).unwrap().concat();
        let at = encoding.windows(plain.len()).position(|part| part == plain).unwrap();
        let spell = |ids: &[u32]| ids.iter().map(|id| tokenizer.token(*id).unwrap()).collect::<Vec<_>>().join(" ");
        (spell(&encoding[..at]), spell(&encoding[at + plain.len()..]), tokenizer)
    };
    let kind = |name: &str| json!({ "model_type": name });
    let (before, after, t5) = around("unigram.model", "spiece.model", &[("config.json", kind("t5"))]);
    assert_eq!((before.as_str(), after.as_str()), ("", "</s>"));
    // T5's blanks stand behind the pieces, the first one last.
    assert_eq!(t5.id("<extra_id_0>").unwrap() as usize + 1, t5.vocab_size());
    assert_eq!(t5.token(t5.vocab_size() as u32 - 100).unwrap(), "<extra_id_99>");
    let (before, after, mt5) = around("unigram.model", "spiece.model", &[("config.json", kind("mt5"))]);
    assert_eq!((before.as_str(), after.as_str(), mt5.id("<extra_id_0>")), ("", "</s>", None));
    let (before, after, llama) = around("pairs.model", "tokenizer.model", &[("config.json", kind("llama"))]);
    assert_eq!((before.as_str(), after.as_str()), ("<s>", ""));
    assert_eq!((llama.special_ids().bos, llama.special_ids().eos), (Some(1), Some(2)));
    let ends = json!({ "tokenizer_class": "LlamaTokenizer", "add_bos_token": false, "add_eos_token": true });
    let (before, after, _) = around("pairs.model", "tokenizer.model", &[("tokenizer_config.json", ends)]);
    assert_eq!((before.as_str(), after.as_str()), ("", "</s>"));
    let (before, after, roberta) =
        around("unigram.model", "sentencepiece.bpe.model", &[("config.json", kind("xlm-roberta"))]);
    assert_eq!((before.as_str(), after.as_str()), ("<s>", "</s>"));
    let first = ["<s>", "<pad>", "</s>", "<unk>"].map(|token| roberta.id(token).unwrap());
    assert_eq!(first, [0, 1, 2, 3]);
    assert_eq!(roberta.id("<mask>").unwrap() as usize + 1, roberta.vocab_size());
    let (before, after, _) = around("unigram.model", "spiece.model", &[]);
    assert_eq!((before.as_str(), after.as_str()), ("", ""), "without a family");

    let files = [("bytes/vocab.json", "vocab.json"), ("bytes/merges.txt", "merges.txt")];
    let opt = open(folder(&files, &[("config.json", kind("opt"))]).path()).unwrap();
    let encoding = opt.encode("a", Some("b"), None).unwrap().input_ids;
    let spelled: Vec<String> = encoding.iter().map(|id| opt.token(*id).unwrap()).collect();
    assert_eq!(spelled, ["</s>", "a", "</s>", "b"]);
}

#[test]
fn text_never_becomes_a_control_token_unless_asked_for() {
    // Of these texts the vocabulary of scores could make the token: it is a piece like any other there.
    for name in ["unigram.model", "unigram_bytes.model", "pairs.model"] {
        let text = "the <s> harbour</s> <unk> <cls><0x41>";
        let tokenizer = open(golden(name)).unwrap();
        let controls = ["<s>", "</s>", "<cls>", "<0x41>"].map(|token| tokenizer.id(token));
        let ids = tokenizer.tokenize(&[text]).unwrap().concat();
        assert!(!ids.iter().any(|id| controls.contains(&Some(*id))), "{name}: {ids:?}");
        if name != "unigram.model" {
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text, "{name}");
        }
        let asked = open_with(golden(name), TextSpecials::AsTokens).unwrap();
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
    folder(&[], &[("tokenizer.json", document)])
}

#[test]
fn a_special_token_of_one_character_is_spelled_otherwise_where_it_stands_in_a_text() {
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
        let folder = one_character_special(model.clone());
        let tokenizer = open(folder.path()).unwrap();
        let ids = match model["type"] == "WordLevel" {
            true => tokenizer.tokenize(&["bab", "a", "bab"]).unwrap().concat(),
            false => tokenizer.tokenize(&["bab"]).unwrap().concat(),
        };
        assert_eq!(ids, want, "{model}");
        let many = tokenizer.tokenize(&[&"a".repeat(100_000)]).unwrap().concat();
        assert!(!many.is_empty() && !many.contains(&1), "{model}");
        let asked = open_with(folder.path(), TextSpecials::AsTokens).unwrap();
        assert_eq!(asked.tokenize(&["a"]).unwrap().concat(), [1], "{model}");
    }
    // A vocabulary that cannot spell it otherwise says so; with the token asked for it is of use.
    let folder = one_character_special(pairs(vocab, json!(null), false));
    let error = open(folder.path()).unwrap().tokenize(&["bab"]).unwrap_err().to_string();
    assert!(error.contains("\"a\" is a special token") && error.contains("tokenizer.json"), "{error}");
    let asked = open_with(folder.path(), TextSpecials::AsTokens).unwrap();
    assert_eq!(asked.tokenize(&["bab"]).unwrap().concat(), [2, 1, 2]);
}

/// The vocabulary of scores, in which a piece is of another kind.
fn with_kind(text: &str, kind: u8) -> (TempDir, PathBuf) {
    // Its field of kind, 1 if it is left out, is appended.
    let sound = fs::read(golden("unigram.model")).unwrap();
    let length = u8::try_from(text.len()).unwrap();
    let piece = |more: u8| [&[0x0A, 7 + length + more, 0x0A, length][..], text.as_bytes(), &[0x15]].concat();
    let long = piece(0).len();
    let at = sound.windows(long).position(|bytes| bytes == piece(0)).unwrap();
    let mut bytes = sound.clone();
    bytes.splice(at..at + long + 4, [&piece(2)[..], &sound[at + long..at + long + 4], &[0x18, kind]].concat());
    let place = TempDir::new().unwrap();
    let path = place.path().join("tokenizer.model");
    fs::write(&path, bytes).unwrap();
    (place, path)
}

#[test]
fn a_piece_that_is_not_in_use_is_never_found() {
    let usual = open(golden("unigram.model")).unwrap();
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
            let tokenizer = open_with(&path, specials).unwrap();
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
fn families_with_ids_of_their_own_are_refused_by_name() {
    for (file, key, name, title) in [
        ("sentencepiece.bpe.model", "model_type", "mbart", "mBART"),
        ("sentencepiece.bpe.model", "tokenizer_class", "NllbTokenizer", "NLLB"),
        ("sentencepiece.bpe.model", "tokenizer_class", "MBart50Tokenizer", "mBART"),
        ("sentencepiece.bpe.model", "model_type", "camembert", "CamemBERT"),
        ("sentencepiece.bpe.model", "model_type", "m2m_100", "M2M100"),
        ("sentencepiece.bpe.model", "model_type", "xglm", "XGLM"),
        ("spiece.model", "model_type", "pegasus", "Pegasus"),
        ("spiece.model", "model_type", "bigbird_pegasus", "Pegasus"),
        ("spiece.model", "tokenizer_class", "PegasusTokenizer", "Pegasus"),
    ] {
        let other = if key == "model_type" { "config.json" } else { "tokenizer_config.json" };
        let place = folder(&[("unigram.model", file)], &[(other, json!({ key: name }))]);
        let error = open(place.path()).unwrap_err().to_string();
        assert!(error.contains(title) && error.contains(file) && error.contains("save_pretrained"), "{error}");
    }
    // The class says more than the model's family.
    let class = json!({ "tokenizer_class": "XLMRobertaTokenizer" });
    let files = [("config.json", json!({ "model_type": "mbart" })), ("tokenizer_config.json", class)];
    assert_eq!(
        open(folder(&[("unigram.model", "sentencepiece.bpe.model")], &files).path()).unwrap().id("<pad>"),
        Some(1)
    );
    open(folder(&[("unigram.model", "sentencepiece.bpe.model")], &[]).path()).unwrap();
}

#[test]
fn a_control_piece_of_one_character_is_unknown_in_a_text() {
    let (_place, path) = with_kind("e", 3);
    let tokenizer = open(&path).unwrap();
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

#[test]
fn a_vocabulary_of_characters_has_the_ids_of_its_lines() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("characters.txt");
    fs::write(&path, "<pad>\n<unk>\na\nb\n\\n\n\\s\n船\n\\\\\n").unwrap();
    let tokenizer = open(&path).unwrap();
    assert_eq!(tokenizer.tokenize(&["ab \n船c\\cc"]).unwrap().concat(), [2, 3, 5, 4, 6, 1, 7, 1, 1]);
    assert_eq!(tokenizer.decode(&[2, 5, 6, 4], false).unwrap(), "a 船\n");
    assert_eq!((tokenizer.special_ids().unk, tokenizer.special_ids().pad), (Some(1), Some(0)));
    assert_eq!(open(place.path()).unwrap().vocab_size(), 8);
    for (text, reason) in
        [("a\nb\n", "none of the 2 tokens"), ("<unk>\na\na\n", ":3"), ("<unk>\n\n", "the line is empty")]
    {
        fs::write(&path, text).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// Words, spaces, digits, Chinese, marks, signs and line ends in an order that looks random and is always the same.
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
    folder(&[], &[("tokenizer.json", document)])
}

/// The tokenizers whose long texts are compared with the library's own result of the whole.
fn all_kinds() -> Vec<(&'static str, HfTokenizer)> {
    let own = |name: &str| HfTokenizer::open(golden(name)).unwrap();
    let bytes = |config: Value| {
        let files = [("bytes/vocab.json", "vocab.json"), ("bytes/merges.txt", "merges.txt")];
        HfTokenizer::open(folder(&files, &[("config.json", config)]).path()).unwrap()
    };
    // Spaces before every stretch, of which the marks between make many.
    let size = read("bytes/vocab.json").as_object().unwrap().len();
    let stretches = folder(
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
        ("byte pairs behind spaces", HfTokenizer::open(stretches.path()).unwrap()),
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
    for (name, tokenizer) in all_kinds() {
        // Texts with a space wherever a section might end, so that it ends behind one now and then.
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
        .flat_map(|part| (0..4).map(move |offset| "a".repeat(offset) + &part.repeat(60_000 / part.len())));
        let texts = (0..3).map(|seed| mixed(300_000, seed)).chain(sparse);
        for (seed, text) in texts.enumerate() {
            let long = tokenizer.tokenize(&[&text]).unwrap().concat();
            let whole = tokenizer.tokenize_whole(&text).unwrap();
            let first = long.iter().zip(&whole).position(|(a, b)| a != b);
            assert!(
                long == whole,
                "{name}, text {seed}: {} and {} ids, the first other one at {first:?}",
                long.len(),
                whole.len()
            );
        }
    }
}

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
    HfTokenizer::open(folder(&[], &[("tokenizer.json", document)]).path()).unwrap()
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
    // Short words and, with marks that stand far from each other, long ones, of which some are too long.
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
        ("words behind spaces", parts(json!(null), spaced, level, added)),
    ];
    let short = (0..3).map(|offset| "a".repeat(offset) + &"x QQx ab ".repeat(10_000));
    for (at, text) in texts.into_iter().chain(short).enumerate() {
        for (name, tokenizer) in &kinds {
            let long = tokenizer.tokenize(&[&text]).unwrap().concat();
            let whole = tokenizer.tokenize_whole(&text).unwrap();
            let first = long.iter().zip(&whole).position(|(a, b)| a != b);
            assert!(
                long == whole,
                "{name}, text {at}: {} and {} ids, the first other one at {first:?}",
                long.len(),
                whole.len()
            );
        }
    }
}

#[test]
fn a_seam_may_change_every_pair_of_the_section_behind_it() {
    // Letters go together by two from the left, so that one more before a cut moves all pairs behind it, up to a mark.
    let model = json!({ "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                        "vocab": { "a": 0, "b": 1, "aa": 2 }, "merges": [["a", "a"]] });
    let tokenizer = parts(json!(null), json!(null), model, json!([]));
    for length in [20_000, 40_001, 90_001] {
        let text = format!("b{}", "a".repeat(length)).repeat(4);
        let long = tokenizer.tokenize(&[&text]).unwrap().concat();
        assert!(long == tokenizer.tokenize_whole(&text).unwrap(), "{length}: {} ids", long.len());
    }
}

#[test]
fn a_line_end_behind_a_mark_stays_with_the_mark() {
    // As in Qwen2 and Llama 3: white space up to a line's end is one pre-token, but for line's ends behind marks.
    let pattern = r" ?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let split = json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
    let model = json!({ "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                        "vocab": { "a": 0, "!": 1, "\n": 2, " ": 3, "\n ": 4 }, "merges": [["\n", " "]] });
    let tokenizer = parts(json!(null), split, model, json!([]));
    for offset in 0..4 {
        let text = "a".repeat(offset) + &"aaa!\n \n".repeat(20_000);
        let long = tokenizer.tokenize(&[&text]).unwrap().concat();
        assert!(long == tokenizer.tokenize_whole(&text).unwrap(), "{offset}: {} ids", long.len());
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

#[test]
fn one_character_many_times_has_the_ids_of_the_whole() {
    for (name, tokenizer) in all_kinds() {
        for character in ["a", "z", " ", "1", "!", "\n", "é", "船", "🚢", "\u{301}", "\t"] {
            let text = character.repeat(150_000 / character.len());
            let long = tokenizer.tokenize(&[&text]).unwrap().concat();
            let whole = tokenizer.tokenize_whole(&text).unwrap();
            assert!(long == whole, "{name}, {character:?}: {} and {} ids", long.len(), whole.len());
        }
    }
}

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
            match open(&path) {
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
    let place = folder(&[], &[("tokenizer.json", document)]);
    let error = open(place.path()).unwrap_err().to_string();
    assert!(error.contains("the tokenizer library failed") && error.contains("tokenizer.json"), "{error}");
    // One that claims more units than it has is not given to the library, which would take memory for them.
    let lying = json!({ "normalizer": { "type": "Precompiled", "precompiled_charsmap": "/////wAAAAAAAAAA" } });
    let error = open(folder(&[], &[("tokenizer.json", lying)]).path()).unwrap_err().to_string();
    assert!(error.contains("precompiled_charsmap") && error.contains("damaged"), "{error}");
}

#[test]
fn broken_byte_level_files_are_named() {
    let refusal = |vocab: &str, merges: &str| {
        let place = TempDir::new().unwrap();
        fs::write(place.path().join("vocab.json"), vocab).unwrap();
        fs::write(place.path().join("merges.txt"), merges).unwrap();
        open(place.path()).unwrap_err().to_string()
    };
    let vocab = r#"{"a": 0, "b": 1, "ab": 2}"#;
    for (vocab, merges, reason) in [
        (vocab, "#version: 0.2\na b\na c\n", "merges.txt:3"),
        (vocab, "ab\n", "merges.txt:1"),
        (r#"{"a": 0, "b": 0}"#, "", "two tokens have the id 0"),
        (r#"{"a": -1}"#, "", "has the id -1"),
        (r#"{"a": 99999999999}"#, "", "has the id 99999999999"),
        (r#"{"a</w>": 0}"#, "", "no byte-level vocabulary"),
        ("[]", "", "vocab.json:1"),
    ] {
        let error = refusal(vocab, merges);
        assert!(error.contains(reason), "expected {reason:?} in:\n{error}");
    }
}

#[test]
fn what_holds_no_tokenizer_says_what_is_read() {
    let place = TempDir::new().unwrap();
    let error = open(place.path()).unwrap_err().to_string();
    assert!(error.contains("spiece.model") && error.contains("vocab.json with merges.txt"), "{error}");
    fs::write(place.path().join("weights.bin"), "x").unwrap();
    let error = open(place.path().join("weights.bin")).unwrap_err().to_string();
    assert!(error.contains("not that of a tokenizer's file"), "{error}");
    fs::copy(golden("../gguf/llama.gguf"), place.path().join("a.gguf")).unwrap();
    assert_eq!(open(place.path()).unwrap().vocab_size(), 44);
    fs::copy(golden("../gguf/llama.gguf"), place.path().join("b.gguf")).unwrap();
    let error = open(place.path()).unwrap_err().to_string();
    assert!(error.contains("2 files *.gguf"), "{error}");
    fs::write(place.path().join("tokenizer.model"), "no model").unwrap();
    let error = open(place.path()).unwrap_err().to_string();
    assert!(error.contains("SentencePiece model"), "{error}");
}

/// Whether `token` is a control token of a folder's tokenizer that no text becomes.
fn is_control(folder: &Path, token: &str, id: u32) -> bool {
    let tokenizer = open(folder).unwrap();
    assert_eq!(tokenizer.id(token), Some(id), "{token}");
    let ids = tokenizer.tokenize(&[&format!("the {token} harbour{token}")]).unwrap().concat();
    tokenizer.control_tokens().iter().any(|control| control.id == id) && !ids.contains(&id)
}

#[test]
fn tokens_that_a_folder_calls_special_are_control_tokens_in_every_form() {
    const END: &str = "<|im_end|>";
    let bert = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nharb\n##our\n[E]\n";
    let size = |name: &str| open(golden(name)).unwrap().vocab_size();
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
            let place = folder(copies, &files);
            if copies.is_empty() {
                fs::write(place.path().join("vocab.txt"), bert).unwrap();
            }
            assert_eq!(is_control(place.path(), END, id), special, "{copies:?}, {config}");
            if config.get("added_tokens_decoder").is_some() {
                fs::remove_file(place.path().join("added_tokens.json")).unwrap();
                assert!(is_control(place.path(), END, id), "{copies:?}, {config}");
                let control = open(place.path()).unwrap().control_tokens().into_iter().find(|token| token.id == id);
                assert!(control.is_some_and(|token| token.takes_space_behind && !token.takes_space_before));
            }
        }
    }
    // Words of the vocabulary itself.
    let place = folder(&[], &[("tokenizer_config.json", json!({ "additional_special_tokens": ["[E]", "harb"] }))]);
    fs::write(place.path().join("vocab.txt"), bert).unwrap();
    assert!(is_control(place.path(), "[E]", 8) && is_control(place.path(), "harb", 6));
    let piece = open(golden("pairs.model")).unwrap().id("our").unwrap_or(300);
    let spelled = open(golden("pairs.model")).unwrap().token(piece).unwrap();
    let place = folder(
        &[("pairs.model", "tokenizer.model")],
        &[("tokenizer_config.json", json!({ "additional_special_tokens": [spelled] }))],
    );
    assert!(is_control(place.path(), &spelled, piece), "{spelled}");
}
