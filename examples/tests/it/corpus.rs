//! The corpus program: a token file from text to samples, and what it refuses.

use crate::fixture;

use fixture::{Fixture, Outcome};
use serde_json::Value;

fn corpus(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    fixture.run(env!("CARGO_BIN_EXE_corpus"), arguments)
}

/// A fixture with 300 documents in `texts.jsonl`, one without text.
fn with_texts() -> Fixture {
    let fixture = Fixture::new();
    let text =
        |number: usize| if number == 7 { String::new() } else { "good film of the year ".repeat(number % 9 + 1) };
    let line = |number: usize| format!("{}\n", serde_json::json!({"text": text(number), "id": number}));
    fixture.write("texts.jsonl", &(0..300).map(line).collect::<String>());
    fixture
}

const BUILD: [&str; 6] = ["build", "texts.jsonl", "--tokenizer", "model", "--out", "c"];

fn json(outcome: Outcome) -> Value {
    serde_json::from_str(&outcome.succeeded().stdout).unwrap()
}

#[test]
fn a_corpus_is_built_described_checked_and_mapped() {
    let fixture = with_texts();
    let built = corpus(&fixture, &[&BUILD[..], &["--eod-token", "[SEP]"]].concat()).succeeded().stdout;
    assert!(built.starts_with("c: 299 documents, 299 sequences, "), "{built}");
    assert!(built.contains("as uint16; 1 documents without a token left out"), "{built}");
    let info = json(corpus(&fixture, &["info", "c", "--json"]));
    assert_eq!(
        (&info["format"], &info["dtype"], &info["documents"]),
        (&"MMIDIDX".into(), &"uint16".into(), &299.into())
    );
    let checked = json(corpus(&fixture, &["verify", "c.idx", "--tokenizer", "model", "--json"]));
    assert_eq!(checked["tokens"], info["tokens"]);
    let refused = corpus(&fixture, &["verify", "c", "--vocab-size", "4"]).refused();
    assert!(refused.contains("the vocabulary has 4 tokens") && refused.contains("c.bin"), "{refused}");
    for order in ["addressed", "megatron", "megatron-v1"] {
        let arguments = ["maps", "c", "--sequence-length", "16", "--samples", "40", "--order", order, "--json"];
        let maps = json(corpus(&fixture, &arguments));
        assert_eq!((&maps["part"], &maps["documents"], &maps["order"]), (&"train".into(), &284.into(), &order.into()));
        assert!(maps["samples"].as_u64().unwrap() >= 40);
    }
    assert!(fixture.path("c_train_indexmap_40ns_16sl_1234s_shuffle_idx.npy").exists());
    assert!(fixture.path("c_train_indexmap_40ns_16sl_1234s_addressed_doc_idx.npy").exists());
}

#[test]
fn threads_change_nothing_and_a_corpus_is_not_replaced() {
    let fixture = with_texts();
    let bytes = |name: &str| std::fs::read(fixture.path(name)).unwrap();
    corpus(&fixture, &[&BUILD[..], &["--threads", "1", "--quiet"]].concat()).succeeded();
    let whole = (bytes("c.bin"), bytes("c.idx"));
    let refused = corpus(&fixture, &BUILD).refused();
    assert!(refused.contains("c.idx is there already") && refused.contains("fix: "), "{refused}");
    std::fs::remove_file(fixture.path("c.idx")).unwrap();
    corpus(&fixture, &[&BUILD[..], &["--threads", "4"]].concat()).succeeded();
    assert!(whole == (bytes("c.bin"), bytes("c.idx")));
}

#[test]
fn corpora_have_names() {
    let fixture = with_texts();
    fixture.write("corpora.toml", "[films]\npaths = [\"texts.jsonl\"]\n");
    let build = |name: &str| {
        corpus(&fixture, &["build", name, "--corpora", "corpora.toml", "--tokenizer", "model", "--out", "c", "--json"])
    };
    let refused = build("books").refused();
    assert!(refused.contains("unknown corpus \"books\"; corpora.toml has films"), "{refused}");
    assert_eq!(json(build("films"))["documents"], 299);
}

#[test]
fn lines_are_split_once() {
    let fixture = with_texts();
    std::fs::create_dir(fixture.path("parts")).unwrap();
    let message = corpus(&fixture, &["split", "texts.jsonl", "--split", "8,1,1", "--out", "parts"]).succeeded().stdout;
    assert_eq!(message, "parts: 240 lines train, 30 valid, 30 test\n");
    for name in ["train.jsonl", "train.map", "valid.jsonl", "test.map"] {
        assert!(fixture.path("parts").join(name).exists(), "{name}");
    }
}

#[test]
fn mistakes_are_explained() {
    let fixture = with_texts();
    fixture.write("bad.jsonl", "{\"text\": \"good\"}\n{\"txt\": \"film\"}\n");
    fixture.write("short.idx", "MMIDIDX");
    for (arguments, expected) in [
        (vec!["info", "nothing"], "there is no such file"),
        (vec!["info", "short"], "the file is cut off: it has 7 of 34 header bytes"),
        (vec!["build", "bad.jsonl", "--tokenizer", "model", "--out", "c"], "bad.jsonl:2:1"),
        (vec!["build", "bad.jsonl", "--tokenizer", "model", "--out", "c", "--skip-bad", "2"], "2 is not a share"),
        (vec!["build", "bad.jsonl", "--tokenizer", "model", "--out", "c", "--append-eod"], "has no EOS token"),
        (
            vec!["build", "bad.jsonl", "--tokenizer", "model", "--out", "c", "--eod-token", "<eod>"],
            "no token \"<eod>\"",
        ),
        (vec!["split", "bad.jsonl", "--out", ".", "--split", "a"], "\"a\" is not a share"),
    ] {
        let error = corpus(&fixture, &arguments).refused();
        assert!(error.contains(expected) && error.contains("fix: "), "{expected}: {error}");
    }
    let skipped =
        corpus(&fixture, &["build", "bad.jsonl", "--tokenizer", "model", "--out", "c", "--skip-bad", "0.5", "--json"]);
    assert_eq!(json(skipped)["unusable"], 1);
}

#[test]
fn documents_are_cleaned_split_into_sentences_and_built() {
    let fixture = with_texts();
    let cleaned =
        corpus(&fixture, &["clean", "texts.jsonl", "--near", "--shuffle", "--compress", "zstd", "--out", "clean"]);
    let message = cleaned.succeeded().stdout;
    // 299 documents of nine lengths; documents of one length are the same, and the longer ones have the same shingles.
    assert!(message.starts_with("clean: 2 of 299 documents written, "), "{message}");
    assert!(message.contains("\n  near duplicate   297 left out\n"), "{message}");
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(fixture.path("clean/report.json")).unwrap()).unwrap();
    assert_eq!((&report["read"], &report["documents"]["near_duplicate"]), (&299.into(), &297.into()));
    let refused = corpus(&fixture, &["clean", "texts.jsonl", "--compress", "zstd", "--out", "clean"]).refused();
    assert!(refused.contains("documents.jsonl.zst is there already"), "{refused}");
    let split = ["presplit", "clean/documents.jsonl.zst", "--out", "sentences.jsonl.gz", "--json"];
    assert_eq!(json(corpus(&fixture, &split))["documents"], 2);
    let build = ["build", "sentences.jsonl.gz", "--tokenizer", "model", "--split-lines", "--out", "c", "--json"];
    assert_eq!(json(corpus(&fixture, &build))["documents"], 2);
}

#[test]
fn a_full_disk_ends_cleaning_in_one_line_and_it_goes_on() {
    let fixture = with_texts();
    let clean = ["clean", "texts.jsonl", "--out", "clean"];
    // Files of at most half a kibibyte or one: the records do not fit.
    let script = "ulimit -f 1 && exec \"$0\" \"$@\"";
    let program = env!("CARGO_BIN_EXE_corpus");
    let outcome = fixture.run("sh", &[&["-c", script, program][..], &clean[..]].concat());
    assert_eq!(outcome.code, 5, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("cannot write") && outcome.stderr.contains("fix: "), "{}", outcome.stderr);
    assert!(!fixture.path("clean/documents.jsonl").exists());
    corpus(&fixture, &clean).succeeded();
    assert!(fixture.path("clean/documents.jsonl").exists() && !fixture.path("clean/.clean").exists());
}

#[test]
fn mistakes_in_cleaning_are_explained() {
    let fixture = with_texts();
    for (arguments, expected) in [
        (&["--language", "english"][..], "unknown language \"english\""),
        (&["--openwebtext"][..], "no tokenizer counts them"),
        (&["--near", "--bands", "7"][..], "100 hash functions in 7 bands"),
        (&["--sites", "nothing.txt", "--urls"][..], "there is no such file"),
    ] {
        let error = corpus(&fixture, &[&["clean", "texts.jsonl", "--out", "clean"][..], arguments].concat()).refused();
        assert!(error.contains(expected) && error.contains("fix: "), "{expected}: {error}");
    }
}
