//! Task `multi-label-classification` in the programs: lists and columns of labels, any layout of ranks, a classifier
//! that goes on, mistakes.

use crate::fixture::{Fixture, Outcome};
use crate::tensor::{course, records, train};
use serde_json::{Value, json};

const WORDS: [(&str, &str); 3] = [("film", "cinema"), ("ball", "sport"), ("bank", "money")];

/// A text has the label of each of these tokens in it, so some have two and some none.
fn record(at: usize) -> (String, Vec<&'static str>) {
    let has = |word: usize| [at % 3, (at / 3) % 4].contains(&word);
    let kept: Vec<usize> = (0..3).filter(|word| has(*word) && !at.is_multiple_of(5)).collect();
    let text = kept.iter().map(|word| WORDS[*word].0).chain(["the", "a", "man"].into_iter().take(1 + at % 3));
    (text.collect::<Vec<_>>().join(" "), kept.iter().map(|word| WORDS[*word].1).collect())
}

fn fixture() -> Fixture {
    let fixture = Fixture::new();
    let lines = |count: usize| {
        let line = |(text, labels): (String, Vec<&str>)| format!("{}\n", json!({"text": text, "label": labels}));
        (0..count).map(record).map(line).collect::<String>()
    };
    fixture.write("train.jsonl", &lines(24));
    fixture.write("eval.jsonl", &lines(10));
    let flags = |count: usize| {
        let line = |(text, labels): (String, Vec<&str>)| {
            let flags = WORDS.map(|(_, name)| u8::from(labels.contains(&name)).to_string());
            format!("{text},{}\n", flags.join(","))
        };
        format!("text,cinema,sport,money\n{}", (0..count).map(record).map(line).collect::<String>())
    };
    fixture.write("train.csv", &flags(24));
    fixture.write("eval.csv", &flags(10));
    fixture.replace("recipe.toml", "\"classification\"", "\"multi-label-classification\"");
    fixture
}

const SETS: [&str; 7] = [
    "train.steps=6",
    "train.lr=1e-3",
    "train.batch_size=8",
    "train.micro_batch_size=2",
    "train.gradient_sum=elastic",
    "eval.every=3 steps",
    "log.every=1",
];

const COLUMNS: [&str; 3] =
    ["data.columns.labels=[\"cinema\", \"sport\", \"money\"]", "data.train=train.csv", "data.eval=eval.csv"];

fn run(fixture: &Fixture, dir: &str, ranks: usize, sets: &[&str]) -> Outcome {
    train(fixture, dir, ranks, &[&SETS[..], sets].concat())
}

fn metric(fixture: &Fixture, dir: &str, name: &str) -> f64 {
    records(fixture, dir, "eval").last().unwrap()["metrics"][name].as_f64().unwrap()
}

#[test]
fn every_label_of_a_text_is_learned_and_the_directory_states_the_problem_type() {
    let fixture = fixture();
    let long = ["train.steps=60", "train.lr=3e-3", "eval.every=60 steps"];
    run(&fixture, "lists", 1, &long).succeeded();
    for name in ["f1_micro", "f1_macro", "accuracy"] {
        assert!(metric(&fixture, "lists", name) >= 0.9, "{name}: {:?}", records(&fixture, "lists", "eval"));
    }
    let config: Value = serde_json::from_str(&fixture.read("lists/model/config.json")).unwrap();
    assert_eq!(config["architectures"], json!(["BertForSequenceClassification"]));
    assert_eq!(config["problem_type"], "multi_label_classification");
    // Sorted, as they were found.
    assert_eq!(config["id2label"], json!({"0": "cinema", "1": "money", "2": "sport"}));
    // The same model goes on with columns in another order, and follows the order of its own classifier.
    run(&fixture, "on", 1, &[&["model.path=lists/model", "train.lr=1e-9"], &COLUMNS[..]].concat()).succeeded();
    for name in ["f1_micro", "f1_macro", "accuracy"] {
        assert_eq!(metric(&fixture, "on", name), metric(&fixture, "lists", name), "{name}");
    }
    // No probability is above a threshold near 1.
    let sets = ["model.path=lists/model", "train.lr=1e-9", "eval.threshold=0.999999"];
    run(&fixture, "strict", 1, &sets).succeeded();
    assert_eq!(metric(&fixture, "strict", "f1_micro"), 0.0);
}

#[test]
fn columns_and_ranks_have_the_bits_of_lists_on_one_rank() {
    let fixture = fixture();
    // Classes in the order of the lists'.
    let sets = ["data.labels=[\"cinema\", \"sport\", \"money\"]"];
    run(&fixture, "lists", 1, &sets).succeeded();
    let expected = course(&fixture, "lists");
    assert_eq!(records(&fixture, "lists", "step").len(), 6);
    run(&fixture, "columns", 1, &COLUMNS).succeeded();
    assert_eq!(course(&fixture, "columns"), expected);
    run(&fixture, "zero", 2, &[&sets[..], &["parallel.zero=3"]].concat()).succeeded();
    assert_eq!(course(&fixture, "zero"), expected);
}

#[test]
fn records_that_cannot_be_used_are_named() {
    let fixture = fixture();
    for (line, expected) in [
        ("{\"text\": \"a\", \"label\": \"sport\"}", "train.jsonl:1"),
        ("{\"text\": \"a\", \"label\": [\"sport\"]}", "\"sport\" is the only label"),
        ("{\"text\": \"a\", \"label\": []}", "no record has a label"),
    ] {
        fixture.write("train.jsonl", &format!("{line}\n"));
        let error = fixture.finetune(&[]).refused();
        assert!(error.contains(expected), "{error}");
    }
    fixture.write("train.csv", "text,cinema,sport,money\nthe film,1,2,0\n");
    let arguments: Vec<&str> = COLUMNS.iter().flat_map(|set| ["--set", set]).collect();
    let error = fixture.finetune(&arguments).refused();
    assert!(error.contains("train.csv:2") && error.contains("sport"), "{error}");
}
