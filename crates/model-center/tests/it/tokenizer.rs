//! Tokenizer directories: what is read, what is refused, and that both file kinds agree.

use std::fs;
use std::path::Path;

use model_center::tokenizer::{ConfigField, HfTokenizer, KeepSide, Limit, TextSpecials, Tokenizer, config_field};
use serde_json::{Value, json};
use tempfile::TempDir;

const VOCAB: [&str; 20] = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "film", "##s", "is", "not", "bad", "un", "##aff", "##able",
    ".", "[", "]", "sep", "cafe", "中",
];

fn vocab_text() -> String {
    VOCAB.iter().map(|token| format!("{token}\n")).collect()
}

fn write(directory: &Path, name: &str, content: impl AsRef<[u8]>) {
    fs::write(directory.join(name), content).unwrap();
}

fn directory_with_vocab() -> TempDir {
    let directory = TempDir::new().unwrap();
    write(directory.path(), "vocab.txt", vocab_text());
    directory
}

/// A `tokenizer.json` as Hugging Face's library stores it, with padding and truncation left on.
fn stored_json() -> Value {
    let vocab: serde_json::Map<String, Value> =
        VOCAB.iter().enumerate().map(|(id, token)| (token.to_string(), json!(id))).collect();
    let special = |id: usize| {
        json!({"id": id, "content": VOCAB[id], "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "truncation": {"max_length": 6, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": null,
                    "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": [special(0), special(1), special(2), special(3), special(4)],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                       "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "[SEP]", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}},
                     {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                               "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": vocab}
    })
}

fn directory_with_json(document: &Value) -> TempDir {
    let directory = TempDir::new().unwrap();
    write(directory.path(), "tokenizer.json", document.to_string());
    directory
}

fn load_error(directory: &TempDir) -> String {
    HfTokenizer::from_directory(directory.path()).unwrap_err().to_string()
}

#[test]
fn a_pair_is_encoded_as_bert_expects() {
    let tokenizer = HfTokenizer::from_directory(directory_with_vocab().path()).unwrap();
    let encoding = tokenizer.encode("The films", Some("unaffable."), None).unwrap();
    assert_eq!(encoding.input_ids, [2, 5, 6, 7, 3, 11, 12, 13, 14, 3]);
    assert_eq!(encoding.token_type_ids, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
    let single = tokenizer.encode("Café zzz 中中", None, None).unwrap();
    assert_eq!(single.input_ids, [2, 18, 1, 19, 19, 3]);
    assert_eq!(single.token_type_ids, [0; 6]);
}

#[test]
fn vocab_txt_and_tokenizer_json_give_the_same_ids() {
    let from_text = HfTokenizer::from_directory(directory_with_vocab().path()).unwrap();
    let from_json = HfTokenizer::from_directory(directory_with_json(&stored_json()).path()).unwrap();
    for (first, second) in [
        ("The films is not bad.", None),
        ("unaffable unaffables 中 café", Some("[SEP] bad")),
        ("", Some("")),
        ("\u{0}\u{feff}\t the\u{a0}film\u{200d}s", None),
    ] {
        assert_eq!(
            from_text.encode(first, second, None).unwrap(),
            from_json.encode(first, second, None).unwrap(),
            "{first:?} {second:?}"
        );
    }
    assert_eq!(from_text.special_ids(), from_json.special_ids());
    assert_eq!((from_text.vocab_size(), from_json.vocab_size()), (20, 20));
}

#[test]
fn stored_padding_and_truncation_are_ignored() {
    let tokenizer = HfTokenizer::from_directory(directory_with_json(&stored_json()).path()).unwrap();
    let long = tokenizer.encode("the film is not bad . the film", None, None).unwrap();
    assert_eq!((long.input_ids.len(), long.removed), (10, 0));
    let short = tokenizer.encode("bad", None, None).unwrap();
    assert_eq!(short.input_ids, [2, 10, 3]);
}

#[test]
fn a_limit_cuts_texts_but_never_special_tokens() {
    let tokenizer = HfTokenizer::from_directory(directory_with_vocab().path()).unwrap();
    let limit = |max_tokens, keep| Some(Limit { max_tokens, keep });
    let pair = tokenizer.encode("the film is not bad", Some("bad film"), limit(8, KeepSide::Start)).unwrap();
    assert_eq!(pair.input_ids, [2, 5, 6, 8, 3, 10, 6, 3]);
    assert_eq!(pair.removed, 2);
    let last = tokenizer.encode("the film is not bad", None, limit(4, KeepSide::End)).unwrap();
    assert_eq!(last.input_ids, [2, 9, 10, 3]);
}

#[test]
fn the_config_decides_about_case() {
    let directory = directory_with_vocab();
    write(directory.path(), "tokenizer_config.json", r#"{"do_lower_case": false}"#);
    let cased = HfTokenizer::from_directory(directory.path()).unwrap();
    assert_eq!(cased.encode("The the", None, None).unwrap().input_ids, [2, 1, 5, 3]);
    let directory = directory_with_json(&stored_json());
    write(directory.path(), "tokenizer_config.json", r#"{"do_lower_case": false}"#);
    let cased = HfTokenizer::from_directory(directory.path()).unwrap();
    assert_eq!(cased.encode("The the", None, None).unwrap().input_ids, [2, 1, 5, 3]);
}

/// Ids of transformers 5.23's AutoTokenizer for "hello" with the vocabulary of scripts/golden/make_chat.py.
#[test]
fn add_prefix_space_of_the_config_wins_as_in_the_classes_of_transformers() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat/tokenizer.json");
    let document: Value = serde_json::from_slice(&fs::read(golden).unwrap()).unwrap();
    let directory = directory_with_json(&document);
    let with = |config: Value| {
        write(directory.path(), "tokenizer_config.json", config.to_string());
        HfTokenizer::from_directory(directory.path()).unwrap().tokenize(&["hello"]).unwrap()[0].clone()
    };
    for class in ["GPT2Tokenizer", "GPT2TokenizerFast", "RobertaTokenizer", "Qwen2Tokenizer", "BartTokenizer"] {
        assert_eq!(with(json!({"tokenizer_class": class})), [278, 280]);
        assert_eq!(with(json!({"tokenizer_class": class, "add_prefix_space": false})), [278, 280]);
        assert_eq!(with(json!({"tokenizer_class": class, "add_prefix_space": true})), [311], "{class}");
    }
    assert_eq!(with(json!({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": true})), [278, 280]);
    // Of pieces only what agrees is read.
    let mut pieces = document;
    pieces["pre_tokenizer"] =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    let directory = directory_with_json(&pieces);
    let config = |wanted: bool| json!({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": wanted}).to_string();
    write(directory.path(), "tokenizer_config.json", config(true));
    HfTokenizer::from_directory(directory.path()).unwrap();
    write(directory.path(), "tokenizer_config.json", config(false));
    let error = load_error(&directory);
    assert!(error.contains("add_prefix_space = false") && error.contains("puts a space"), "{error}");
}

/// The fields that transformers knows: of scripts/golden/make_tokenizer_fields.py, or of a fresh list.
#[test]
fn every_field_of_the_config_is_used_or_without_effect_or_refused() {
    let fresh = std::env::var_os("BMTRAIN_FIELDS").map(std::path::PathBuf::from);
    let lists = fresh.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden"));
    let golden = lists.join("tokenizer_config_fields.json");
    let names: Vec<String> = serde_json::from_slice(&fs::read(golden).unwrap()).unwrap();
    let count =
        |is: fn(ConfigField) -> bool| names.iter().filter_map(|name| config_field(name)).filter(|f| is(*f)).count();
    let unknown: Vec<&String> = names.iter().filter(|name| config_field(name).is_none()).collect();
    println!("figure: {}/{}", unknown.len(), names.len());
    assert_eq!(unknown, [""; 0]);
    let counted = [
        count(|field| field == ConfigField::Used),
        count(|field| matches!(field, ConfigField::WithoutEffect(_))),
        count(|field| matches!(field, ConfigField::Refused(_))),
    ];
    assert!(counted.iter().sum::<usize>() == names.len() && counted.iter().all(|count| *count > 10), "{counted:?}");
    let directory = directory_with_vocab();
    let japanese = r#"{"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"}"#;
    write(directory.path(), "tokenizer_config.json", japanese);
    let error = load_error(&directory);
    assert!(error.contains("word_tokenizer_type") && error.contains("another program"), "{error}");
    write(directory.path(), "tokenizer_config.json", r#"{"word_tokenizer_type": "basic", "src_lang": null}"#);
    HfTokenizer::from_directory(directory.path()).unwrap();
}

#[test]
fn special_tokens_may_have_other_names() {
    let directory = TempDir::new().unwrap();
    write(directory.path(), "vocab.txt", "<pad>\n<unk>\n<s>\n</s>\nhello\n");
    assert!(load_error(&directory).contains("[UNK], [CLS], [SEP], [PAD]"));
    write(
        directory.path(),
        "special_tokens_map.json",
        r#"{"pad_token": {"content": "<pad>"}, "unk_token": "<unk>", "cls_token": "<s>", "sep_token": "</s>"}"#,
    );
    let tokenizer = HfTokenizer::from_directory(directory.path()).unwrap();
    assert_eq!(tokenizer.encode("hello you", None, None).unwrap().input_ids, [2, 4, 1, 3]);
    let special = tokenizer.special_ids();
    assert_eq!((special.pad, special.cls, special.sep, special.mask), (Some(0), Some(2), Some(3), None));
}

#[test]
fn text_cannot_become_a_control_token_unless_asked_for() {
    let directory = directory_with_vocab();
    let plain = HfTokenizer::from_directory(directory.path()).unwrap();
    let ids = plain.encode("[SEP] bad [MASK][PAD][CLS]", None, None).unwrap().input_ids;
    assert_eq!(&ids[..6], [2, 15, 17, 16, 10, 15]);
    assert_eq!(ids.iter().filter(|id| [0, 2, 3, 4].contains(*id)).count(), 2, "only the template's own two");
    let open = HfTokenizer::from_directory(directory.path()).unwrap().with_text_specials(TextSpecials::AsTokens);
    assert_eq!(open.encode("not [MASK]", None, None).unwrap().input_ids, [2, 9, 4, 3]);
}

#[test]
fn decoding_reverses_encoding() {
    let tokenizer = HfTokenizer::from_directory(directory_with_vocab().path()).unwrap();
    let ids = tokenizer.encode("The films is unaffable.", None, None).unwrap().input_ids;
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "the films is unaffable.");
    assert_eq!(tokenizer.decode(&[5, 4_000_000_000], true).unwrap(), "the");
    assert_eq!(tokenizer.token(6).as_deref(), Some("film"));
    assert_eq!((tokenizer.id("film"), tokenizer.id("movie")), (Some(6), None));
}

#[test]
fn many_texts_give_what_single_texts_give() {
    let tokenizer = HfTokenizer::from_directory(directory_with_vocab().path()).unwrap();
    let texts = ["the film", "", "not bad.", "unaffable", "zzz"];
    let together = tokenizer.tokenize(&texts).unwrap();
    for (text, ids) in texts.iter().zip(together) {
        assert_eq!(tokenizer.tokenize(&[text]).unwrap(), [ids]);
    }
}

#[test]
fn pipes_and_links_out_of_the_directory_are_refused_without_waiting() {
    for name in ["tokenizer.json", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"]
    {
        let directory = directory_with_vocab();
        let path = directory.path().join(name);
        drop(fs::remove_file(&path));
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        let error = load_error(&directory);
        assert!(error.contains(name) && error.contains("a FIFO, socket or device"), "{error}");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &path).unwrap();
        let error = load_error(&directory);
        assert!(error.contains(name) && error.contains("outside the directory"), "{error}");
    }
}

#[test]
fn added_tokens_beside_a_vocabulary_are_kept() {
    let directory = directory_with_vocab();
    write(directory.path(), "added_tokens.json", r#"{"<b>": 21, "<a>": 20}"#);
    let tokenizer = HfTokenizer::from_directory(directory.path()).unwrap();
    assert_eq!(tokenizer.encode("<b>film<a>", None, None).unwrap().input_ids, [2, 21, 6, 20, 3]);
    assert_eq!(tokenizer.vocab_size(), 22);
    write(directory.path(), "added_tokens.json", r#"{"<b>": 40}"#);
    assert!(load_error(&directory).contains("declared with id 40"));
}

#[test]
fn added_tokens_of_a_stored_document_are_special_if_the_directory_says_so() {
    let id = VOCAB.len();
    let mut document = stored_json();
    let turn = json!({"id": id, "content": "<turn>", "single_word": false, "lstrip": false, "rstrip": false,
                      "normalized": false, "special": false});
    document["added_tokens"].as_array_mut().unwrap().push(turn);
    for (config, is_text) in [
        (json!({}), false),
        (json!({ "eos_token": "<turn>" }), true),
        (json!({ "added_tokens_decoder": { id.to_string(): { "content": "<turn>", "special": true } } }), true),
    ] {
        let directory = directory_with_json(&document);
        write(directory.path(), "tokenizer_config.json", config.to_string());
        let tokenizer = HfTokenizer::from_directory(directory.path()).unwrap();
        let ids = tokenizer.tokenize(&["the film<turn>"]).unwrap().concat();
        assert_eq!(!ids.contains(&(id as u32)), is_text, "{config}: {ids:?}");
        assert_eq!(tokenizer.control_tokens().iter().any(|token| token.text == "<turn>"), is_text, "{config}");
    }
}

#[test]
fn an_empty_directory_names_every_form_that_is_read() {
    let directory = TempDir::new().unwrap();
    let error = load_error(&directory);
    for form in [
        "tokenizer.json",
        "vocab.txt",
        "vocab.json with merges.txt",
        "spiece.model",
        "sentencepiece.bpe.model",
        "tokenizer.model",
        "vocab.model",
        "characters.txt",
        "a single .gguf",
    ] {
        assert!(error.contains(form), "{form}: {error}");
    }
    assert!(error.contains(directory.path().to_str().unwrap()));
}

#[test]
fn added_tokens_are_bounded_and_many_are_read_in_little_time() {
    let directory = directory_with_vocab();
    let long = json!({ "x".repeat(1025): 20 });
    write(directory.path(), "added_tokens.json", long.to_string());
    let error = load_error(&directory);
    assert!(error.contains("added token 20") && error.contains("1025 bytes"), "{error}");
    let listed = |count: usize| -> Value {
        let tokens = (20..20 + count).map(|id| (id.to_string(), json!({ "content": format!("<w{id}>") })));
        json!({ "added_tokens_decoder": tokens.collect::<serde_json::Map<_, _>>() })
    };
    fs::remove_file(directory.path().join("added_tokens.json")).unwrap();
    write(directory.path(), "tokenizer_config.json", listed((1 << 18) + 1).to_string());
    // Generous, for a busy machine and a debug build; time that grows with the square is minutes.
    let start = std::time::Instant::now();
    let error = load_error(&directory);
    // The configuration's and the vocabulary's five.
    assert!(error.contains("262150 added tokens, more than the 262144"), "{error}");
    write(directory.path(), "tokenizer_config.json", listed(20_000).to_string());
    let tokenizer = HfTokenizer::from_directory(directory.path()).unwrap();
    let text = "film film<w20><w20019> ".repeat(10_000);
    let long = tokenizer.tokenize(&[&text]).unwrap().concat();
    assert_eq!(long, [6, 6, 20, 20_019].repeat(10_000));
    assert!(start.elapsed().as_secs() < 60, "{:?}", start.elapsed());
}

#[test]
fn broken_json_is_reported_with_line_and_column() {
    let directory = TempDir::new().unwrap();
    write(directory.path(), "tokenizer.json", "{\n  \"version\": \"1.0\",\n  \"model\" {}\n}");
    assert!(load_error(&directory).contains("tokenizer.json:3:11"), "{}", load_error(&directory));
    for content in ["", "[]", "null", "{}", "\u{feff}{}"] {
        write(directory.path(), "tokenizer.json", content);
        assert!(load_error(&directory).contains("tokenizer.json"), "{content:?}");
    }
    fs::remove_file(directory.path().join("tokenizer.json")).unwrap();
    write(directory.path(), "vocab.txt", vocab_text());
    write(directory.path(), "tokenizer_config.json", "{\"do_lower_case\": tru");
    assert!(load_error(&directory).contains("tokenizer_config.json:1:"));
}

#[test]
fn contradictory_documents_are_refused() {
    let mut huge_words = stored_json();
    huge_words["model"]["max_input_chars_per_word"] = json!(1_000_000);
    assert!(load_error(&directory_with_json(&huge_words)).contains("max_input_chars_per_word is 1000000"));

    let mut foreign_id = stored_json();
    foreign_id["post_processor"]["special_tokens"]["[CLS]"]["ids"] = json!([777]);
    assert!(load_error(&directory_with_json(&foreign_id)).contains("id 777"));

    let mut wrong_added = stored_json();
    wrong_added["added_tokens"][0]["id"] = json!(9);
    assert!(load_error(&directory_with_json(&wrong_added)).contains("\"[PAD]\" is declared with id 9"));

    let mut no_text = stored_json();
    no_text["post_processor"]["single"] = json!([{"SpecialToken": {"id": "[CLS]", "type_id": 0}}]);
    assert!(load_error(&directory_with_json(&no_text)).contains("each text exactly once"));
}

#[test]
fn documents_that_make_much_of_little_are_refused_before_they_are_loaded() {
    let refused = |key: &str, part: Value, reason: &str| {
        let mut document = stored_json();
        document[key] = part;
        // The library normalises such a token as it loads.
        document["added_tokens"][0]["normalized"] = json!(true);
        let start = std::time::Instant::now();
        let error = load_error(&directory_with_json(&document));
        assert!(error.contains("tokenizer.json") && error.contains(reason), "{error}");
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
    };
    let replace = |pattern: Value, content: &str| json!({ "type": "Replace", "pattern": pattern, "content": content });
    let tenfold = vec![replace(json!({ "String": "a" }), "aaaaaaaaaa"); 13];
    refused("normalizer", json!({ "type": "Sequence", "normalizers": tenfold }), "normalizer");
    refused("decoder", json!({ "type": "Sequence", "decoders": tenfold }), "decoder");
    let between = vec![replace(json!({ "Regex": "x*" }), "y"); 13];
    refused("normalizer", json!({ "type": "Sequence", "normalizers": between }), "4096 times");
    let nested = json!({ "type": "Sequence", "normalizers": [{ "type": "Sequence", "normalizers": tenfold }] });
    refused("normalizer", nested, "4096 times");
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    refused("pre_tokenizer", json!({ "type": "Sequence", "pretokenizers": vec![bytes; 3] }), "ByteLevel");
    let mut many = stored_json()["post_processor"].clone();
    many["special_tokens"]["[CLS]"]["ids"] = json!(vec![2; 9000]);
    many["special_tokens"]["[CLS]"]["tokens"] = json!(vec!["[CLS]"; 9000]);
    refused("post_processor", many, "tokens around texts");
    let mut twice = stored_json()["post_processor"].clone();
    twice["single"] = json!(vec![json!({ "Sequence": { "id": "A", "type_id": 0 } }); 2]);
    refused("post_processor", twice, "more than once");
}

/// Every truncation of a good file and one-byte damage all over it must end in an error or a working tokenizer.
#[test]
fn damaged_files_never_panic() {
    let good = stored_json().to_string();
    let directory = TempDir::new().unwrap();
    let mut refused = 0;
    let mut damage = |content: &[u8]| {
        write(directory.path(), "tokenizer.json", content);
        match HfTokenizer::from_directory(directory.path()) {
            Ok(tokenizer) => drop(tokenizer.encode("the film [SEP]", Some("unaffable"), None)),
            Err(_) => refused += 1,
        }
    };
    for cut in (0..good.len()).step_by(37) {
        damage(&good.as_bytes()[..cut]);
    }
    for at in (0..good.len()).step_by(23) {
        let mut bytes = good.clone().into_bytes();
        bytes[at] = b"0\"}\xFF9"[at % 5];
        damage(&bytes);
    }
    assert!(refused > 50, "{refused}");
}

/// Long runs of one kind are the classic way to make a tokenizer slow or crash.
#[test]
fn hostile_texts_are_tokenized() {
    let tokenizer = HfTokenizer::from_directory(directory_with_vocab().path()).unwrap();
    for unit in ["a", "\u{301}", "^", " ", "[SEP]", "中", "\u{202e}", "\u{10ffff}", "\u{0}"] {
        let text = unit.repeat(200_000);
        let ids = tokenizer.tokenize(&[&text]).unwrap();
        assert!(ids[0].iter().all(|id| ![0, 2, 3, 4].contains(id)), "{unit:?}");
    }
}
