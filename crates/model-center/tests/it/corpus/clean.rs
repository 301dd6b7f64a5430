//! Cleaned documents: the same however they are cleaned, each stage by its counts, and what interrupts it.

mod stages;

use crate::mutants::Random;
use model_center::corpus::clean::{CleanOptions, CleanReport, Compression, NearOptions, UrlOptions, clean};
use model_center::corpus::sentences::{PresplitOptions, SentenceRules, presplit};
use model_center::corpus::text::{Documents, TextSource};
use model_center::data::OnBadRecord;
use model_center::run::StopFlag;
use model_center::{Error, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::{TempDir, tempdir};

struct Fixture(TempDir);

const VOCABULARY: [&str; 12] =
    ["the", "river", "was", "wide", "and", "people", "of", "this", "old", "country", "lived", "there"];

impl Fixture {
    fn new(records: &[Value]) -> Fixture {
        let fixture = Fixture(tempdir().unwrap());
        let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
        fs::write(fixture.path("in.jsonl"), lines).unwrap();
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn source(&self) -> TextSource {
        TextSource::new(vec![self.path("in.jsonl")])
    }

    fn options(&self, name: &str, threads: usize) -> CleanOptions {
        CleanOptions { threads, ..CleanOptions::new(self.path(name)) }
    }

    fn clean(&self, options: &CleanOptions) -> Result<CleanReport> {
        clean(&self.source(), None, options, &StopFlag::default(), &mut |_| ())
    }
}

/// Random sentences.
fn prose(random: &mut Random, length: usize) -> String {
    let mut text: Vec<&str> = (0..length).map(|_| random.pick(&VOCABULARY)).collect();
    text.push("end.");
    text.join(" ")
}

/// A thousand documents, every tenth a near-duplicate of an earlier one, every eleventh with the URL of one.
fn crawl() -> Vec<Value> {
    let mut random = Random(3);
    let mut records: Vec<Value> = Vec::new();
    for number in 0..1000 {
        let text = match number % 10 {
            9 => format!("{} again", records[number - 9]["text"].as_str().unwrap()),
            _ => {
                let length = 40 + random.below(60);
                prose(&mut random, length)
            }
        };
        let url = if number % 11 == 10 { number - 10 } else { number };
        records.push(json!({"id": number, "url": format!("http://example.com/page/{url}"), "text": text}));
    }
    records
}

fn all_stages(options: CleanOptions) -> CleanOptions {
    CleanOptions {
        urls: Some(UrlOptions::default()),
        repair: true,
        languages: vec!["eng".into()],
        min_characters: 20,
        near: Some(NearOptions::default()),
        shuffle: Some(5),
        // Runs go to the disk.
        memory: 1 << 12,
        ..options
    }
}

fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn of_a_group_the_first_document_is_kept() {
    let mut random = Random(7);
    let text = prose(&mut random, 200);
    let records = [
        json!({"text": prose(&mut random, 200), "url": "http://example.com/other"}),
        json!({"text": text, "url": "http://example.com/first"}),
        json!({"text": format!("{text} More."), "url": "http://example.com/second"}),
        json!({"text": format!("Less. {text}"), "url": "http://example.com/third"}),
        json!({"text": "ab", "url": "http://example.com/short"}),
        json!({"text": "ab", "url": "http://example.com/short, too"}),
    ];
    let fixture = Fixture::new(&records);
    let near = Some(NearOptions::default());
    let urls = Some(UrlOptions::default());
    let report = fixture.clean(&CleanOptions { near, urls, ..fixture.options("out", 2) }).unwrap();
    // What has no shingle has no duplicate. A URL with a space is malformed.
    assert_eq!((report.count("kept"), report.count("near_duplicate"), report.count("malformed_url")), (3, 2, 1));
    let expected = json!({
        "kept": "http://example.com/first",
        "removed": ["http://example.com/second", "http://example.com/third"],
    });
    assert_eq!(lines(&fixture.path("out/groups.jsonl")), [expected]);
    let pairs = lines(&fixture.path("out/pairs.jsonl"));
    // The unrelated document shares its vocabulary: a pair that is reported and not grouped.
    let near = pairs.iter().filter(|pair| pair["similarity"].as_f64().unwrap() >= 0.9);
    let near: Vec<_> = near.map(|pair| (pair["a"].as_str().unwrap(), pair["b"].as_str().unwrap())).collect();
    let [first, second, third] = ["first", "second", "third"].map(|name| format!("http://example.com/{name}"));
    assert_eq!(near, [(first.as_str(), second.as_str()), (first.as_str(), third.as_str())]);
    assert!(pairs.iter().all(|pair| pair["similarity"].as_f64().unwrap() > 0.5), "{pairs:?}");
}

#[test]
fn every_rule_leaves_out_what_it_is_for() {
    let english = "There is a house beside the river, and an old man has lived in it for many years. ".repeat(4);
    let german = "Neben dem Fluss steht ein Haus, in dem seit vielen Jahren ein alter Mann gewohnt hat. ".repeat(4);
    let records = [
        json!({"text": english, "url": "https://youtu.be/1"}),
        json!({"text": english, "url": "http://example.com/a.pdf"}),
        json!({"text": english, "url": "http://a"}),
        json!({"text": english, "url": "mailto:someone@example.com"}),
        json!({"text": german, "url": "http://example.com/de"}),
        json!({"text": "It is short.", "url": "http://example.com/short"}),
        json!({"text": english.replace("river,", "riverâ€™s bank,"), "meta": {"lang": "en"}}),
        json!({"text": "  "}),
    ];
    let fixture = Fixture::new(&records);
    let options =
        CleanOptions { near: None, min_characters: 100, shuffle: None, ..all_stages(fixture.options("out", 1)) };
    let report = fixture.clean(&options).unwrap();
    let counts: Vec<u64> = report.documents.iter().map(|(_, count)| *count).collect();
    assert_eq!(counts, [1, 1, 1, 1, 1, 0, 1, 1, 0, 0], "{report:?}");
    assert_eq!((report.repaired, report.counts.empty), (1, 1));
    let text = english.replace("river,", "river’s bank,");
    assert_eq!(lines(&fixture.path("out/documents.jsonl")), [json!({"text": text, "meta": {"lang": "en"}})]);
    let written: Value = serde_json::from_str(&fs::read_to_string(fixture.path("out/report.json")).unwrap()).unwrap();
    assert_eq!(written, report.to_json());
}

#[test]
fn task_texts_are_taken_out() {
    let task = "which of these ancient rivers flows through the capital of the old country today";
    let mut random = Random(9);
    let long = |random: &mut Random| (0..20).map(|_| prose(random, 20)).collect::<Vec<_>>().join(" ");
    let (before, after) = (long(&mut random), long(&mut random));
    let records = [
        json!({"text": format!("{before} {task}. {after}"), "id": 1}),
        json!({"text": format!("{task}!"), "id": 2}),
        json!({"text": before, "id": 3}),
    ];
    let fixture = Fixture::new(&records);
    fs::write(fixture.path("task.jsonl"), format!("{}\n", json!({"question": task.to_uppercase()}))).unwrap();
    let tasks = TextSource { key: "question".into(), ..TextSource::new(vec![fixture.path("task.jsonl")]) };
    let options = CleanOptions { tasks: Some(tasks), ..fixture.options("out", 2) };
    let report = fixture.clean(&options).unwrap();
    assert_eq!((report.count("kept"), report.count("task_text"), report.split), (2, 1, 1));
    let documents = lines(&fixture.path("out/documents.jsonl"));
    let ids: Vec<(u64, &str)> = documents
        .iter()
        .map(|record| (record["id"].as_u64().unwrap(), record["split_id"].as_str().unwrap_or("")))
        .collect();
    assert_eq!(ids, [(1, "0000000000-0000"), (1, "0000000000-0001"), (3, "")]);
    let pieces: Vec<&str> = documents[..2].iter().map(|record| record["text"].as_str().unwrap()).collect();
    assert!(before.starts_with(pieces[0]) && after.ends_with(pieces[1].trim()), "{pieces:?}");
    assert!(pieces.iter().all(|piece| !piece.contains("ancient")));
}

#[test]
fn compressed_results_have_the_same_documents() {
    let fixture = Fixture::new(&crawl()[..50]);
    let read = |name: &str| {
        let mut documents = Documents::open(TextSource::new(vec![fixture.path(name)]), OnBadRecord::Error).unwrap();
        std::iter::from_fn(|| documents.advance().unwrap()).collect::<Vec<_>>()
    };
    let expected = read("in.jsonl");
    for (compression, name) in [
        (Compression::None, "documents.jsonl"),
        (Compression::Gzip, "documents.jsonl.gz"),
        (Compression::Zstd, "documents.jsonl.zst"),
    ] {
        fixture.clean(&CleanOptions { compression, ..fixture.options(name, 1) }).unwrap();
        assert_eq!(read(&format!("{name}/{name}")), expected);
    }
}

#[test]
fn mistakes_are_explained() {
    let fixture = Fixture::new(&crawl()[..3]);
    let out = || fixture.options("out", 1);
    let near = |near: NearOptions| CleanOptions { near: Some(near), ..out() };
    for (options, expected) in [
        (CleanOptions { languages: vec!["english".into()], ..out() }, "unknown language \"english\""),
        (CleanOptions { min_tokens: 5, ..out() }, "no tokenizer that counts tokens"),
        (near(NearOptions { bands: 7, ..NearOptions::default() }), "100 hash functions in 7 bands"),
        (near(NearOptions { report: 0.95, ..NearOptions::default() }), "groups from 0.9 on are below"),
        (near(NearOptions { group: 1.5, ..NearOptions::default() }), "1.5 is not a similarity"),
    ] {
        let error = fixture.clean(&options).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("fix: "), "{error}");
    }
    fixture.clean(&out()).unwrap();
    let Err(Error::Argument { reason, .. }) = fixture.clean(&out()) else { panic!("a result was replaced") };
    assert!(reason.contains("documents.jsonl is there already"), "{reason}");
}

#[test]
fn documents_are_split_into_sentences_in_their_order() {
    let records: Vec<Value> = (0..300)
        .map(|number| json!({"id": number, "text": format!("Mr. A saw {number} birds. He left! Why?\nNext.")}))
        .collect();
    let fixture = Fixture::new(&records);
    let split = |name: &str, threads: usize| {
        let options = PresplitOptions {
            out: fixture.path(name),
            rules: SentenceRules::English,
            is_wrapped: false,
            on_bad_record: OnBadRecord::Error,
            threads,
        };
        presplit(&fixture.source(), &options, &StopFlag::default(), &mut |_, _| ())
    };
    let report = split("one.jsonl", 1).unwrap();
    assert_eq!((report.counts.documents, report.sentences, report.stopped), (300, 1200, false));
    split("many.jsonl", 4).unwrap();
    assert!(fs::read(fixture.path("one.jsonl")).unwrap() == fs::read(fixture.path("many.jsonl")).unwrap());
    let first = &lines(&fixture.path("one.jsonl"))[7];
    assert_eq!(*first, json!({"id": 7, "text": "Mr. A saw 7 birds.\nHe left!\nWhy?\nNext."}));
    assert!(split("one.jsonl", 1).unwrap_err().to_string().contains("is there already"));
}
