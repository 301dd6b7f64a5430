//! The corpus program: a token file from text to samples, and what it refuses.

mod interruptions;

use crate::fixture;
use crate::fixture::program;
use fixture::{Fixture, Outcome};
use serde_json::Value;

fn corpus(fixture: &Fixture, arguments: &[&str]) -> Outcome {
    fixture.run(program("corpus"), arguments)
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
fn corpora_of_other_formats_follow_each_other() {
    let fixture = with_texts();
    fixture.write("reviews.csv", "n|body\n1|good film\n2|\n3|the year\n");
    let table = "[films]\npaths = [\"texts.jsonl\"]\n\n[reviews]\npaths = [\"reviews.csv\"]\nkey = \"body\"\n\
                 delimiter = \"|\"\n";
    fixture.write("corpora.toml", table);
    let arguments = |task: &'static str| {
        [task, "films", "reviews", "--corpora", "corpora.toml", "--tokenizer", "model", "--out", "c", "--json"]
    };
    assert_eq!(json(corpus(&fixture, &arguments("build")))["documents"], 301);
    let refused =
        corpus(&fixture, &["presplit", "films", "reviews", "--corpora", "corpora.toml", "--out", "s"]).refused();
    assert!(refused.contains("2 names of corpora") && refused.contains("one corpus at a time"), "{refused}");
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
        (vec!["info", "nothing"], "there is no nothing.idx"),
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

#[test]
fn corpora_go_to_every_format_and_back() {
    let fixture = with_texts();
    corpus(&fixture, &[&BUILD[..], &["--quiet"]].concat()).succeeded();
    let built = json(corpus(&fixture, &["info", "c", "--json"]));
    for (format, out) in [("npy", "npy"), ("blocks", "blocks"), ("tfrecord", "c.tfrecord.gz"), ("megatron", "d")] {
        let converted = json(corpus(&fixture, &["convert", "c", out, "--to", format, "--json"]));
        assert_eq!((&converted["documents"], &converted["tokens"]), (&299.into(), &built["tokens"]), "{format}");
        let checked = json(corpus(&fixture, &["verify", out, "--tokenizer", "model", "--json"]));
        assert_eq!((&checked["format"], &checked["tokens"]), (&format.into(), &built["tokens"]));
        let refused = corpus(&fixture, &["verify", out, "--vocab-size", "4"]);
        assert_eq!(refused.code, 3);
        assert!(refused.refused().contains("the vocabulary has 4 tokens"));
        let info = corpus(&fixture, &["info", out]).succeeded().stdout;
        assert!(info.starts_with("format     "), "{info}");
        let back = format!("{out}_back");
        corpus(&fixture, &["convert", out, &back, "--to", "megatron"]).succeeded();
        for ending in ["bin", "idx"] {
            assert_eq!(fixture.bytes(&format!("{back}.{ending}")), fixture.bytes(&format!("c.{ending}")), "{format}");
        }
    }
    let merged = json(corpus(&fixture, &["merge", "c", "d", "--out", "e", "--json"]));
    assert_eq!(merged["documents"], 598);
    assert_eq!(fixture.bytes("e.bin"), [fixture.bytes("c.bin"), fixture.bytes("d.bin")].concat());
    let shuffled = corpus(&fixture, &["blocks", "shuffle", "blocks", "shuffled", "--seed", "3"]).succeeded().stdout;
    assert_eq!(shuffled, "shuffled: 299 records shuffled\n");
    corpus(&fixture, &["blocks", "mask", "shuffled", "data"]).succeeded();
    assert_eq!(json(corpus(&fixture, &["verify", "shuffled", "--json"]))["documents"], 0);
    corpus(&fixture, &["blocks", "mask", "shuffled", "data", "--off"]).succeeded();
    assert_eq!(json(corpus(&fixture, &["info", "shuffled", "--json"]))["documents"], 299);
    let compacted = corpus(&fixture, &["blocks", "compact", "shuffled"]).succeeded().stdout;
    assert_eq!(compacted, "shuffled: 0 missing files dropped\n");
    for (arguments, code) in [
        (vec!["convert", "c", "npy", "--to", "npy"], 2),
        (vec!["convert", "c", "f", "--to", "cpm2"], 2),
        (vec!["verify", "nothing"], 3),
        (vec!["merge", "nothing", "--out", "f"], 3),
    ] {
        let outcome = corpus(&fixture, &arguments);
        assert_eq!(outcome.code, code, "{arguments:?}");
        assert!(outcome.refused().contains("fix: "));
    }
}

#[test]
fn random_tokens_are_of_the_vocabulary_and_depend_on_the_seed_alone() {
    let fixture = with_texts();
    let random = |out: &str, seed: &str| {
        let sizes = ["--vocab-size", "300", "--documents", "50", "--length", "33"];
        json(corpus(&fixture, &[&["random", out, "--seed", seed, "--json"][..], &sizes].concat()))
    };
    assert_eq!(random("r", "1")["tokens"], 1650);
    let checked = json(corpus(&fixture, &["verify", "r", "--vocab-size", "300", "--json"]));
    assert_eq!((&checked["documents"], &checked["tokens"]), (&50.into(), &1650.into()));
    // Of 1,650 tokens some are among the last hundred.
    assert!(corpus(&fixture, &["verify", "r", "--vocab-size", "200"]).refused().contains("the vocabulary has 200"));
    random("same", "1");
    random("other", "2");
    assert!(
        fixture.bytes("r.bin") == fixture.bytes("same.bin") && fixture.bytes("r.bin") != fixture.bytes("other.bin")
    );
}

#[test]
fn another_text_is_a_line_break_where_it_is_named() {
    let fixture = with_texts();
    fixture.write("n.txt", "good film<n><n>the year\nfilm<n>\n");
    let build = ["build", "n.txt", "--format", "lines", "--tokenizer", "model", "--split-lines", "--newline"];
    let built = json(corpus(&fixture, &[&build[..], &["<n>", "--out", "n", "--json"]].concat()));
    assert_eq!((&built["documents"], &built["sequences"], &built["tokens"]), (&2.into(), &3.into(), &5.into()));
    let refused = corpus(&fixture, &[&build[..], &["", "--out", "m"]].concat()).refused();
    assert!(refused.contains("the text is empty"), "{refused}");
}
