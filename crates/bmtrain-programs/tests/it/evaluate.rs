//! The evaluate program on files in the published formats, against PyTorch in 64-bit floats and on several ranks. The
//! golden data are made by `scripts/golden/make_evaluate.py`.

use crate::fixture::program;
use crate::fixture::{Fixture, golden};
use model_center::corpus::{TokenFileWriter, TokenType};
use model_center::evaluate::Detokenizer;
use serde_json::{Value, json};

/// The largest relative error of a loss. The models compute in f32.
const TOLERANCE: f64 = 1e-5;

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(golden("evaluate", "expected.json")).unwrap()).unwrap()
}

/// The tiny GPT-2 as `model/`, the tiny BERT as `bert/`, both with the vocabulary of the golden files, and these files.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    let vocabulary = std::fs::read_to_string(golden("evaluate", "vocab.txt")).unwrap();
    for (directory, model, head, rows) in [("model", "gpt2_a", "lm", 97), ("bert", "bert_a", "mlm", 101)] {
        for file in ["config.json", "model.safetensors"] {
            let bytes = std::fs::read(golden(model, head).join(file)).unwrap();
            fixture.write_bytes(&format!("{directory}/{file}"), &bytes);
        }
        let words: String = vocabulary.lines().take(rows).flat_map(|word| [word, "\n"]).collect();
        fixture.write(&format!("{directory}/vocab.txt"), &words);
    }
    for file in ["wiki.test.tokens", "lambada.jsonl", "requests.jsonl", "masked.jsonl", "lines.txt"] {
        fixture.write_bytes(file, &std::fs::read(golden("evaluate", file)).unwrap());
    }
    fixture
}

fn evaluate(fixture: &Fixture, arguments: &[&str]) -> Value {
    let outcome = fixture.run(program("evaluate"), &[arguments, &["--json", "--threads", "1"]].concat()).succeeded();
    serde_json::from_str(&outcome.stdout).unwrap_or_else(|error| panic!("{error}: {}", outcome.stdout))
}

fn assert_close(what: &str, ours: &Value, theirs: &Value, tolerance: f64) {
    let (ours, theirs) = (ours.as_f64().unwrap(), theirs.as_f64().unwrap());
    assert!((ours - theirs).abs() <= tolerance * theirs.abs(), "{what}: {ours} and {theirs}");
}

#[test]
fn texts_are_detokenised_as_by_the_published_rules() {
    for case in expected()["detokenised"].as_array().unwrap() {
        assert_eq!(Detokenizer::Wikitext.apply(case["text"].as_str().unwrap()), case["plain"].as_str().unwrap());
    }
}

#[test]
fn perplexity_equals_pytorch_for_every_window() {
    let fixture = fixture();
    for case in expected()["perplexity"].as_array().unwrap() {
        let (length, overlap) = (case["length"].to_string(), case["overlap"].to_string());
        let windows = ["--length", &length, "--overlap", &overlap, "--batch", "3"];
        let result = evaluate(&fixture, &[&["perplexity", "model", "wiki.test.tokens"], &windows[..]].concat());
        assert_eq!((&result["tokens"], &result["words"]), (&case["tokens"], &case["words"]));
        assert_eq!(result["detokenizer"], "wikitext");
        assert_close("loss", &result["loss"], &case["loss"], TOLERANCE);
        // The exponent scales the error.
        assert_close("word perplexity", &result["word_perplexity"], &case["word_perplexity"], 20.0 * TOLERANCE);
        assert_close("bits per byte", &result["bits_per_byte"], &case["bits_per_byte"], TOLERANCE);
    }
}

#[test]
fn ranks_change_no_perplexity() {
    let fixture = fixture();
    let run = |ranks: &[&str]| {
        let windows = ["perplexity", "model", "wiki.test.tokens", "--length", "8", "--overlap", "5", "--batch", "2"];
        evaluate(&fixture, &[&windows, ranks].concat())
    };
    let one = run(&[]);
    for ranks in [&["--ranks", "2"][..], &["--tensor", "2"], &["--pipeline", "2"]] {
        let several = run(ranks);
        assert_eq!(several["scored_tokens"], one["scored_tokens"], "{ranks:?}");
        assert_close("loss", &several["loss"], &one["loss"], 1e-6);
    }
}

#[test]
fn passages_and_continuations_equal_pytorch() {
    let fixture = fixture();
    let theirs = expected();
    let result = evaluate(&fixture, &["lambada", "model", "lambada.jsonl"]);
    for name in ["passages", "last_token_accuracy", "strict_accuracy"] {
        assert_eq!(result[name].as_f64(), theirs["lambada"][name].as_f64(), "{name}");
    }
    let perplexity = &theirs["lambada"]["word_perplexity"];
    assert_close("word perplexity", &result["word_perplexity"], perplexity, 20.0 * TOLERANCE);
    for further in [&["--batch", "1"][..], &["--ranks", "2"], &["--tensor", "2"], &["--pipeline", "2"]] {
        let arguments = ["likelihood", "model", "requests.jsonl", "--output", "scores.jsonl"];
        let summary = evaluate(&fixture, &[&arguments[..], further].concat());
        assert_eq!((&summary["requests"], &summary["greedy"]), (&json!(7), &json!(1)));
        let scores = fixture.read("scores.jsonl");
        let rows = scores.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        for (ours, theirs) in rows.zip(theirs["likelihood"].as_array().unwrap()) {
            for name in ["id", "continuation_ids", "is_greedy"] {
                assert_eq!(ours[name], theirs[name], "{name}");
            }
            let theirs = theirs["token_log_probs"].as_array().unwrap();
            assert_eq!(ours["token_log_probs"].as_array().unwrap().len(), theirs.len());
            for (ours, theirs) in ours["token_log_probs"].as_array().unwrap().iter().zip(theirs) {
                assert_close("log-probability", ours, theirs, TOLERANCE);
            }
        }
    }
}

#[test]
fn masked_tokens_equal_pytorch() {
    let (fixture, theirs) = (fixture(), expected());
    for (case, arguments) in [("pseudo", ["lines.txt", "--pseudo"]), ("given", ["masked.jsonl", "--given-masks"])] {
        let result = evaluate(&fixture, &[&["mlm", "bert", "--batch", "3"], &arguments[..]].concat());
        assert_eq!(result["masked_tokens"], theirs["mlm"][case]["masked_tokens"], "{case}");
        assert_close(case, &result["loss"], &theirs["mlm"][case]["loss"], TOLERANCE);
    }
    let masked = |seed: &str| evaluate(&fixture, &["mlm", "bert", "lines.txt", "--seed", seed]);
    assert_eq!(masked("1"), masked("1"));
    assert_eq!(masked("1")["masked_tokens"], 3);
}

#[test]
fn corpora_and_token_files_are_scored_in_their_order() {
    let fixture = fixture();
    let texts = ["the film was good", "he was in the park", "she was not in the park ."];
    let lines = texts.iter().map(|text| format!("{}\n", json!({"body": text})));
    fixture.write("corpus.jsonl", &lines.collect::<String>());
    let windows = ["--length", "6", "--batch", "1"];
    let of = |file: &str, further: &[&str]| {
        evaluate(&fixture, &[&["perplexity", "model", file], &windows[..], further].concat())
    };
    let all = of("corpus.jsonl", &["--text-key", "body"]);
    let first = of("corpus.jsonl", &["--text-key", "body", "--iterations", "1"]);
    assert_eq!((&first["scored_tokens"], &first["word_perplexity"]), (&json!(6), &Value::Null));
    assert_eq!(all["scored_tokens"].as_u64(), all["tokens"].as_u64().map(|tokens| tokens - 1));
    // The same tokens from a token file.
    let vocabulary = fixture.read("model/vocab.txt");
    let id = |word: &str| vocabulary.lines().position(|known| known == word).unwrap() as u32;
    let mut writer = TokenFileWriter::create(&fixture.path("corpus"), TokenType::U16).unwrap();
    let ids: Vec<u32> = std::iter::once("[CLS]").chain(texts[0].split(' ')).map(id).collect();
    writer.add_sequence(&ids).unwrap();
    writer.end_document().unwrap();
    writer.finish().unwrap();
    let file = of("corpus", &[]);
    fixture.write("one.jsonl", &format!("{}\n", json!({"text": texts[0]})));
    let text = of("one.jsonl", &[]);
    assert_eq!((&file["loss"], &file["words"]), (&text["loss"], &Value::Null));
}

#[test]
fn mistakes_are_named_with_their_place() {
    let fixture = fixture();
    fixture.write("one.jsonl", "{\"text\": \"film\"}\n");
    fixture.write("none.jsonl", "{\"prompt\": \"film\"}\n");
    fixture.write("mixed.jsonl", "{\"prompt\": \"film\", \"continuation_ids\": [3]}\n");
    for (arguments, words) in [
        (&["perplexity", "model", "wiki.test.tokens", "--length", "20"][..], "--length: sequences of 20 tokens"),
        (&["perplexity", "model", "wiki.test.tokens", "--length", "8", "--overlap", "9"], "--overlap"),
        (&["perplexity", "bert", "wiki.test.tokens"], "is an encoder"),
        (&["perplexity", "model", "one.jsonl", "--text-key", "body"], "one.jsonl:1"),
        (&["lambada", "model", "one.jsonl"], "one.jsonl:1: the passage has one word"),
        (&["likelihood", "model", "none.jsonl"], "none.jsonl:1: there is no continuation"),
        (&["likelihood", "model", "mixed.jsonl"], "mixed.jsonl:1: prompt and continuation"),
        (&["mlm", "model", "lines.txt"], "is a decoder"),
        (&["mlm", "bert", "lines.txt", "--mask-share", "0"], "--mask-share"),
        (&["mlm", "bert", "requests.jsonl", "--given-masks"], "requests.jsonl:1"),
    ] {
        let stderr = fixture.run(program("evaluate"), arguments).refused();
        // The place is on a line after the reason.
        assert!(words.split(": ").all(|part| stderr.contains(part)), "{arguments:?}: {stderr}");
    }
}
