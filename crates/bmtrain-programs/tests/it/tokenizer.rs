//! The tokenizer program: a vocabulary trained, looked at and used, and what it refuses.

use crate::fixture;
use crate::fixture::program;

use fixture::{Fixture, Outcome};
use std::io::Write;
use std::process::{Command, Stdio};

fn tokenizer(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    fixture.run(program("tokenizer"), arguments)
}

/// The program with something on its standard input.
fn fed(fixture: &Fixture, arguments: &[&str], input: &[u8]) -> Outcome {
    let mut command = Command::new(program("tokenizer"));
    command.current_dir(fixture.path("")).args(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    fixture::into_outcome(child.wait_with_output().unwrap())
}

/// A fixture with `texts.txt`.
fn with_texts() -> Fixture {
    let fixture = Fixture::new();
    let line = |number: usize| format!("the film of number {} was good and the plot was fine .\n", number % 7);
    fixture.write("texts.txt", &(0..200).map(line).collect::<String>());
    fixture
}

fn train<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["train", "texts.txt", "--out", "new", "--vocab-size", "300"][..], more].concat()
}

#[test]
fn a_trained_vocabulary_encodes_and_decodes_what_it_is_given() {
    for kind in ["byte-bpe", "unigram", "word-piece", "characters"] {
        let fixture = with_texts();
        let message = tokenizer(&fixture, &train(&["--kind", kind, "--special", "<|im_end|>"])).succeeded().stdout;
        assert!(message.contains("tokens from 200 texts"), "{message}");
        let text = "the good film <|im_end|>";
        let ids = tokenizer(&fixture, &["encode", "new", text, "--bare"]).succeeded().stdout;
        let from_input = fed(&fixture, &["encode", "new", "--bare"], format!("{text}\r\n{text}").as_bytes());
        assert_eq!(from_input.succeeded().stdout, ids.repeat(2));
        let back = fed(&fixture, &["decode", "new"], ids.as_bytes()).succeeded().stdout;
        if kind == "byte-bpe" {
            assert_eq!(back, text.to_owned() + "\n");
            let control = tokenizer(&fixture, &["encode", "new", text, "--control", "--pieces"]).succeeded().stdout;
            assert!(control.ends_with("  <|im_end|>\n"), "{control}");
            assert!(control.lines().next().unwrap().len() < ids.len());
        } else {
            assert!(back.starts_with("the good film"), "{kind}: {back}");
        }
        let listed: Vec<&str> = ids.split_whitespace().collect();
        let decoded = tokenizer(&fixture, &[&["decode", "new", "--json"], &listed[..]].concat()).succeeded().stdout;
        assert_eq!(serde_json::from_str::<serde_json::Value>(&decoded).unwrap()["text"], back.trim_end_matches('\n'));
    }
}

#[test]
fn info_says_what_a_tokenizer_is() {
    let fixture = with_texts();
    let message = tokenizer(&fixture, &["info", "model"]).succeeded().stdout;
    for text in [
        "kind      WordPiece (vocab.txt)\n",
        "tokens    101",
        "pad       0  [PAD]",
        "[CLS] A [SEP] B [SEP]",
        "no template",
    ] {
        assert!(message.contains(text), "{text}: {message}");
    }
    tokenizer(&fixture, &train(&["--kind", "byte-bpe"])).succeeded();
    fixture.write("new/chat_template.jinja", "{{ messages }}");
    let message = tokenizer(&fixture, &["info", "new", "--json"]).succeeded().stdout;
    let message: serde_json::Value = serde_json::from_str(&message).unwrap();
    assert_eq!((&message["kind"], &message["single"]), (&"tokenizer.json".into(), &"A".into()));
    assert_eq!(
        (&message["special"]["eos"]["token"], &message["chat_templates"][0]),
        (&"<|endoftext|>".into(), &"default".into())
    );
}

#[test]
fn mistakes_name_place_reason_and_fix_and_write_nothing() {
    let fixture = with_texts();
    fixture.write("one.jsonl", "{\"text\": \"a\"}\n");
    fixture.write("empty.txt", "");
    let before = fixture.snapshot();
    let out = ["--out", "new", "--kind", "word-piece"];
    for (arguments, texts) in [
        (vec!["train", "texts.txt", "--vocab-size", "9"], ["vocab_size", "no room for an alphabet"]),
        (vec!["train", "empty.txt", "--vocab-size", "900"], ["empty.txt", "no word"]),
        (vec!["train", "one.jsonl", "--vocab-size", "900", "--column", "quote"], ["one.jsonl:1", "quote"]),
        (vec!["train", "none.txt", "--vocab-size", "900"], ["none.txt", "no such file"]),
        (vec!["train", "texts.txt", "--vocab-size", "900", "--special", "[PAD]"], ["special_tokens", "there already"]),
    ] {
        let error = tokenizer(&fixture, &[&arguments[..], &out].concat()).refused();
        assert!(texts.iter().all(|text| error.contains(text)) && error.contains("fix: "), "{error}");
    }
    for (arguments, texts) in [
        (vec!["encode", "nowhere", "x"], ["nowhere", "fix: "]),
        (vec!["decode", "model", "7", "4000"], ["line 1", "no token 4000"]),
        (vec!["info", "."], ["the directory has no tokenizer: neither of tokenizer.json", "fix: "]),
    ] {
        let error = tokenizer(&fixture, &arguments).refused();
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
    }
    for (kind, option) in [("unigram", "--min-frequency"), ("byte-bpe", "--limit-alphabet")] {
        let error = tokenizer(&fixture, &train(&["--kind", kind, option, "9"])).refused();
        let name = option.trim_start_matches('-').replace('-', "_");
        assert!(error.contains(&name) && error.contains("no effect") && error.contains("fix: "), "{error}");
    }
    let error = fed(&fixture, &["decode", "model"], b"7\nseven\n").refused();
    assert!(error.contains("ids, line 2") && error.contains("seven"), "{error}");
    let error = fed(&fixture, &["encode", "model"], b"good\n\xFF\n").refused();
    assert!(error.contains("standard input, line 2"), "{error}");
    assert_eq!(fixture.snapshot(), before, "files were changed");
    tokenizer(&fixture, &train(&["--kind", "word-piece"])).succeeded();
    let error = tokenizer(&fixture, &train(&["--kind", "word-piece"])).refused();
    assert!(error.contains("--out") && error.contains("has a tokenizer.json"), "{error}");
}

#[test]
fn a_file_on_which_the_library_panics_is_refused_by_an_error_alone() {
    let fixture = Fixture::new();
    // The second token of a merge is shorter than the continuing-subword prefix.
    let document = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "continuing_subword_prefix": "xxxx", "vocab": {"a": 0, "b": 1, "ab": 2},
        "merges": [["a", "b"]]}}"#;
    fixture.write("broken/tokenizer.json", document);
    let outcome = tokenizer(&fixture, &["info", "broken"]);
    assert_eq!(outcome.code, 3, "{}", outcome.stderr);
    // The fixture asks for backtraces.
    assert!(outcome.stderr.starts_with("error[model]: the tokenizer library failed"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("panicked") && !outcome.stderr.contains("backtrace"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("without a message"), "{}", outcome.stderr);
}

#[test]
fn a_directory_with_a_tokenizer_of_any_form_is_not_written_into() {
    let fixture = with_texts();
    fixture.write("bert/vocab.txt", "[PAD]\n[UNK]\n");
    fixture.write("gpt2/vocab.json", "{}");
    fixture.write("gpt2/merges.txt", "");
    fixture.write("t5/spiece.model", "x");
    fixture.write("rest/special_tokens_map.json", "{}");
    let before = fixture.snapshot();
    for (out, found) in [
        ("bert", "a tokenizer: WordPiece (vocab.txt)"),
        ("gpt2", "a tokenizer: byte-level pairs"),
        ("t5", "a tokenizer: SentencePiece (spiece.model)"),
        ("rest", "a special_tokens_map.json"),
    ] {
        let arguments = ["train", "texts.txt", "--out", out, "--vocab-size", "300", "--kind", "word-piece"];
        let error = tokenizer(&fixture, &arguments).refused();
        assert!(error.contains("--out") && error.contains(&format!("the directory {out} has {found}")), "{error}");
    }
    assert_eq!(fixture.snapshot(), before, "files were changed");
}
