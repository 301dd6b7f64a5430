//! Ids of every format equal the format's own library.

use std::fs;
use std::sync::Arc;

use model_center::tokenizer::{AutoTokenizer, TextSpecials, Tokenizer};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::tokenizer_formats::{directory, golden, ids, read};

/// Texts whose ids differ from SentencePiece's, as documented in `docs/tokenizers.md`.
fn differs_on_purpose(name: &str, text: &str) -> bool {
    // Added tokens begin a text of their own here.
    name == "unigram" && text.contains("<sep>")
}

#[test]
fn ids_of_sentencepiece_models_are_those_of_sentencepiece() {
    let mut compared = 0;
    for name in ["unigram", "unigram_bytes", "pairs", "pairs_trimmed", "letters"] {
        let tokenizer = AutoTokenizer::open(golden(&format!("{name}.model"))).unwrap();
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
        let directory = directory(
            &[("bytes/vocab.json", "vocab.json"), ("bytes/merges.txt", "merges.txt")],
            &[("config.json", config)],
        );
        let tokenizer = check_rows(&directory, &format!("bytes_{name}.json"));
        for row in read(&format!("bytes_{name}.json"))["texts"].as_array().unwrap() {
            if name != "qwen2" {
                let text = row["text"].as_str().unwrap();
                assert_eq!(tokenizer.decode(&ids(&row["ids"]), true).unwrap(), text, "{name}");
            }
        }
    }
}

/// Compares the ids of texts and of pairs, with special tokens, with those in a golden file.
fn check_rows(directory: &TempDir, name: &str) -> Arc<dyn Tokenizer> {
    // As the library takes what looks like a special token.
    let tokenizer = AutoTokenizer::open_with(directory.path(), TextSpecials::AsTokens).unwrap();
    let golden = read(name);
    for row in golden["texts"].as_array().unwrap() {
        let text = row["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, None, None).unwrap().input_ids, ids(&row["ids"]), "{name}: {text:?}");
    }
    for row in golden["pairs"].as_array().unwrap() {
        let texts = [0, 1].map(|at| row["texts"][at].as_str().unwrap());
        let found = tokenizer.encode(texts[0], Some(texts[1]), None).unwrap().input_ids;
        assert_eq!(found, ids(&row["ids"]), "{name}: {texts:?}");
    }
    tokenizer
}

#[test]
fn ids_of_files_without_a_family_s_own_rules_are_those_of_the_family() {
    let (albert, mpnet) = (json!({ "model_type": "albert" }), json!({ "model_type": "mpnet" }));
    let pieces = [("albert/spiece.model", "spiece.model")];
    let albert_directory = directory(&pieces, &[("config.json", albert.clone())]);
    let tokenizer = check_rows(&albert_directory, "albert/expected.json");
    let pair = tokenizer.encode("the harbour", Some("the ship"), None).unwrap();
    assert!(pair.token_type_ids.contains(&1));
    let kept = json!({ "do_lower_case": false, "keep_accents": true });
    check_rows(
        &directory(&pieces, &[("config.json", albert.clone()), ("tokenizer_config.json", kept)]),
        "albert/expected_kept.json",
    );
    check_rows(&directory(&[("mpnet/vocab.txt", "vocab.txt")], &[("config.json", mpnet)]), "mpnet/expected.json");
    // A vocabulary of another family.
    let other = directory(&[("unigram.model", "spiece.model")], &[("config.json", albert)]);
    let error = AutoTokenizer::open(other.path()).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("cls_token and sep_token") && error.contains("fix: "), "{error}");
}

#[test]
fn a_directory_says_which_form_it_is_read_in() {
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
        let directory = directory(copies, &[]);
        assert_eq!(AutoTokenizer::format_of(directory.path()).unwrap().unwrap_or_default(), kind);
        assert_eq!(
            (AutoTokenizer::is_in(directory.path()).unwrap(), AutoTokenizer::open(directory.path()).is_ok()),
            (!kind.is_empty(), !kind.is_empty())
        );
    }
    let directory = directory(&[], &[]);
    let error = AutoTokenizer::open(directory.path()).unwrap_err().to_string();
    assert!(error.contains("vocab.txt of BERT or a CPM") && error.contains("spiece.model"), "{error}");
    fs::write(directory.path().join("vocab.txt"), "[UNK]\n[CLS]\n[SEP]\na\n").unwrap();
    assert_eq!(AutoTokenizer::format_of(directory.path()).unwrap(), Some("WordPiece (vocab.txt)"));
    fs::write(directory.path().join("tokenizer_config.json"), "{").unwrap();
    let error = AutoTokenizer::format_of(directory.path()).unwrap_err().to_string();
    assert!(error.contains("tokenizer_config.json:1"), "{error}");
}

#[test]
fn families_put_their_own_tokens_around_texts() {
    let around = |model: &str, to: &str, files: &[(&str, Value)]| {
        let tokenizer = AutoTokenizer::open(directory(&[(model, to)], files).path()).unwrap();
        let encoding = tokenizer.encode("the harbour", None, None).unwrap().input_ids;
        let plain = tokenizer.tokenize(&["the harbour"]).unwrap().concat();
        let at = encoding.windows(plain.len()).position(|part| part == plain).unwrap();
        let spell = |ids: &[u32]| ids.iter().map(|id| tokenizer.token(*id).unwrap()).collect::<Vec<_>>().join(" ");
        (spell(&encoding[..at]), spell(&encoding[at + plain.len()..]), tokenizer)
    };
    let kind = |name: &str| json!({ "model_type": name });
    let (before, after, t5) = around("unigram.model", "spiece.model", &[("config.json", kind("t5"))]);
    assert_eq!((before.as_str(), after.as_str()), ("", "</s>"));
    // T5's sentinels follow the pieces, the first one last.
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
    let opt = AutoTokenizer::open(directory(&files, &[("config.json", kind("opt"))]).path()).unwrap();
    let encoding = opt.encode("a", Some("b"), None).unwrap().input_ids;
    let spelled: Vec<String> = encoding.iter().map(|id| opt.token(*id).unwrap()).collect();
    assert_eq!(spelled, ["</s>", "a", "</s>", "b"]);
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
        let place = directory(&[("unigram.model", file)], &[(other, json!({ key: name }))]);
        let error = AutoTokenizer::open(place.path()).unwrap_err().to_string();
        assert!(error.contains(title) && error.contains(file) && error.contains("save_pretrained"), "{error}");
    }
    // The class takes precedence over the model's family.
    let class = json!({ "tokenizer_class": "XLMRobertaTokenizer" });
    let files = [("config.json", json!({ "model_type": "mbart" })), ("tokenizer_config.json", class)];
    assert_eq!(
        AutoTokenizer::open(directory(&[("unigram.model", "sentencepiece.bpe.model")], &files).path())
            .unwrap()
            .id("<pad>"),
        Some(1)
    );
    AutoTokenizer::open(directory(&[("unigram.model", "sentencepiece.bpe.model")], &[]).path()).unwrap();
}

#[test]
fn a_vocabulary_of_characters_has_the_ids_of_its_lines() {
    let place = TempDir::new().unwrap();
    let path = place.path().join("characters.txt");
    fs::write(&path, "<pad>\n<unk>\na\nb\n\\n\n\\s\n船\n\\\\\n").unwrap();
    let tokenizer = AutoTokenizer::open(&path).unwrap();
    assert_eq!(tokenizer.tokenize(&["ab \n船c\\cc"]).unwrap().concat(), [2, 3, 5, 4, 6, 1, 7, 1, 1]);
    assert_eq!(tokenizer.decode(&[2, 5, 6, 4], false).unwrap(), "a 船\n");
    assert_eq!((tokenizer.special_ids().unk, tokenizer.special_ids().pad), (Some(1), Some(0)));
    assert_eq!(AutoTokenizer::open(place.path()).unwrap().vocab_size(), 8);
    for (text, reason) in
        [("a\nb\n", "none of the 2 tokens"), ("<unk>\na\na\n", ":3"), ("<unk>\n\n", "the line is empty")]
    {
        fs::write(&path, text).unwrap();
        let error = AutoTokenizer::open(&path).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
