//! The tokenizers of the CPM models against the jieba package and the rules in plain Python, and what they refuse.
//!
//! Golden data: scripts/golden/make_cpm_tokenizer.py.

use std::fs;
use std::path::{Path, PathBuf};

use model_center::tokenizer::{AutoTokenizer, CpmKind, CpmTokenizer, HfTokenizer, Tokenizer};
use serde_json::Value;
use tempfile::TempDir;

const KINDS: [(&str, CpmKind); 3] = [("cpm1", CpmKind::Cpm1), ("cpm2", CpmKind::Cpm2), ("enc_dec", CpmKind::EncDec)];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cpm_tokenizer").join(name)
}

fn open(name: &str) -> CpmTokenizer {
    CpmTokenizer::from_directory(golden(name)).unwrap()
}

fn encode(tokenizer: &dyn Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, None, None).unwrap().input_ids
}

/// A directory with CPM-1's vocabulary changed.
fn changed(from: &str, to: &str) -> TempDir {
    let directory = TempDir::new().unwrap();
    let vocabulary = fs::read_to_string(golden("cpm1/vocab.txt")).unwrap();
    assert!(vocabulary.contains(from));
    fs::write(directory.path().join("vocab.txt"), vocabulary.replacen(from, to, 1)).unwrap();
    directory
}

#[test]
fn every_text_has_the_ids_that_the_rules_give_it_in_python() {
    for (name, kind) in KINDS {
        let tokenizer = open(name);
        assert_eq!(tokenizer.kind(), kind);
        let narrow = open(name).with_half_width(true);
        let cases: Vec<Value> = serde_json::from_slice(&fs::read(golden(name).join("cases.json")).unwrap()).unwrap();
        assert!(cases.len() > 25);
        let mut unknown = 0;
        for case in &cases {
            let ids = |key: &str| serde_json::from_value::<Vec<u32>>(case[key].clone()).unwrap();
            let text = case["text"].as_str().unwrap();
            let got = encode(&tokenizer, text);
            assert_eq!(got, ids("ids"), "{name}: {text}");
            unknown += got.iter().filter(|id| Some(**id) == tokenizer.special_ids().unk).count();
            if kind != CpmKind::EncDec {
                assert_eq!(encode(&narrow, text), ids("half_width_ids"), "{name}, half width: {text}");
            }
        }
        assert!(unknown > 20, "{name}: what the vocabulary lacks was not tried");
        let texts: Vec<&str> = cases.iter().map(|case| case["text"].as_str().unwrap()).collect();
        let together = tokenizer.tokenize(&texts).unwrap();
        assert_eq!(together, texts.iter().map(|text| encode(&tokenizer, text)).collect::<Vec<_>>());
    }
}

#[test]
fn decoding_gives_the_text_back_where_nothing_was_unknown() {
    for name in ["cpm1", "cpm2"] {
        let tokenizer = open(name);
        let cases: Vec<Value> = serde_json::from_slice(&fs::read(golden(name).join("cases.json")).unwrap()).unwrap();
        let mut seen = 0;
        for text in cases.iter().map(|case| case["text"].as_str().unwrap()) {
            let ids = encode(&tokenizer, text);
            if ids.contains(&tokenizer.special_ids().unk.unwrap()) || text.contains("字面") {
                continue;
            }
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
            assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
            seen += 1;
        }
        assert!(seen > 5, "{name}: {seen}");
    }
    let tokenizer = open("enc_dec");
    for (text, back) in [("hello world", "hello world"), ("中 国", "中 国"), ("ellol", "ellol"), ("中\n国", "中\n国")]
    {
        assert_eq!(tokenizer.decode(&encode(&tokenizer, text), true).unwrap(), back);
    }
    // Where the vocabulary's rule leaves spaces out it cannot tell where there were none.
    for text in ["a,b", "a, b", "a , b"] {
        assert_eq!(tokenizer.decode(&encode(&tokenizer, text), true).unwrap(), "a , b");
    }
}

#[test]
fn control_tokens_written_in_a_text_are_text_and_ids_outside_the_vocabulary_are_left_out() {
    for (name, _) in KINDS {
        let tokenizer = open(name);
        let special = tokenizer.special_ids();
        let control: Vec<u32> = [special.pad, special.bos, special.eos].into_iter().flatten().collect();
        let sentinels = (0..tokenizer.sentinels()).map(|number| tokenizer.sentinel_id(number).unwrap());
        let control: Vec<u32> = control.into_iter().chain(sentinels).collect();
        for id in &control {
            let spelled = tokenizer.token(*id).unwrap();
            for text in [spelled.clone(), format!("中{spelled}国"), format!("a{spelled}{spelled}b")] {
                let ids = encode(&tokenizer, &text);
                assert!(!ids.iter().any(|id| control.contains(id)), "{name}: {text}: {ids:?}");
            }
        }
        let text = tokenizer.decode(&[u32::MAX, control[0], tokenizer.id("中").unwrap()], true).unwrap();
        assert_eq!(text, "中");
        let text = tokenizer.decode(&[control[0], tokenizer.id("中").unwrap()], false).unwrap();
        assert_eq!(text, "<pad>中");
    }
}

#[test]
fn sentinels_are_numbered_and_only_models_that_fill_in_spans_have_them() {
    assert_eq!((open("cpm1").sentinels(), open("cpm1").sentinel_id(0)), (0, None));
    for name in ["cpm2", "enc_dec"] {
        let tokenizer = open(name);
        assert_eq!(tokenizer.sentinels(), 190);
        assert_eq!(tokenizer.token(tokenizer.sentinel_id(189).unwrap()).unwrap(), "<s_189>");
        assert_eq!(tokenizer.sentinel_id(190), None);
    }
}

#[test]
fn the_rules_are_told_from_the_vocabulary_or_from_the_class_that_is_named() {
    for (name, kind) in KINDS {
        assert_eq!(CpmKind::of_directory(golden(name)).unwrap(), Some(kind));
    }
    let vocabulary = golden("cpm1/vocab.txt");
    for path in [golden("cpm1"), vocabulary.clone()] {
        let opened = AutoTokenizer::open(path).unwrap();
        assert_eq!(
            (encode(&*opened, "中国"), opened.place()),
            (encode(&open("cpm1"), "中国"), vocabulary.to_str().unwrap())
        );
    }
    let directory = changed("<unk>", "<unk>");
    let config = directory.path().join("tokenizer_config.json");
    fs::write(&config, r#"{"tokenizer_class": "CPM2Tokenizer"}"#).unwrap();
    let error = CpmTokenizer::from_directory(directory.path()).unwrap_err().to_string();
    assert!(error.contains("lacks ▂") && error.contains("vocab.txt"), "{error}");
    fs::write(&config, r#"{"tokenizer_class": "CPM1Tokenizer", "q2b": true}"#).unwrap();
    let narrow = CpmTokenizer::from_directory(directory.path()).unwrap();
    assert_eq!(encode(&narrow, "Ａ"), encode(&open("cpm1").with_half_width(true), "A"));
    // A BERT vocabulary is not a CPM's, and a tokenizer.json beside the file takes precedence.
    fs::remove_file(config).unwrap();
    fs::write(directory.path().join("tokenizer.json"), "{}").unwrap();
    assert_eq!(CpmKind::of_directory(directory.path()).unwrap(), None);
    let bert = TempDir::new().unwrap();
    fs::write(bert.path().join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n").unwrap();
    assert_eq!(CpmKind::of_directory(bert.path()).unwrap(), None);
    HfTokenizer::from_directory(bert.path()).unwrap();
    let error = CpmTokenizer::from_directory(bert.path()).unwrap_err().to_string();
    assert!(error.contains("no vocab.txt of a CPM model"), "{error}");
}

#[test]
fn vocabularies_that_lack_a_token_or_are_no_text_are_named() {
    for token in ["<unk>", "<pad>", "<eod>", "</_>", "</n>"] {
        let directory = changed(&format!("{token}\n"), "other\n");
        let error = CpmTokenizer::with_kind(directory.path(), CpmKind::Cpm1).unwrap_err().to_string();
        assert!(error.contains(&format!("lacks {token}")), "{error}");
    }
    let directory = TempDir::new().unwrap();
    let error = CpmTokenizer::with_kind(directory.path(), CpmKind::Cpm1).unwrap_err().to_string();
    assert!(error.contains("no such file"), "{error}");
    fs::write(directory.path().join("vocab.txt"), b"<eod>\n\xFF").unwrap();
    let error = CpmTokenizer::with_kind(directory.path(), CpmKind::Cpm1).unwrap_err().to_string();
    assert!(error.contains("vocab.txt:2") && error.contains("not UTF-8"), "{error}");
}

#[test]
fn a_million_equal_characters_take_no_more_than_their_share_of_time() {
    let tokenizer = open("cpm1");
    // Generous, for a busy machine and a debug build: a step that grew with the square would take hours.
    let limit = std::time::Duration::from_secs(60);
    for letter in ["中", "x", "\u{301}", "<", "-", "1.", " "] {
        let text = letter.repeat(1_000_000 / letter.len());
        let start = std::time::Instant::now();
        assert!(!encode(&tokenizer, &text).is_empty());
        assert!(start.elapsed() < limit, "{letter:?}: {:?}", start.elapsed());
    }
}
