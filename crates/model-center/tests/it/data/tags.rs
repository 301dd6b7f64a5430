//! Words with tags, and questions about passages: files to rows, labels and windows.

use super::words::Words;
use model_center::data::{
    Dataset, Label, LabelSpace, LabelSpec, Labels, Loader, LoaderOptions, Position, ReadOptions, SpanTask, TagTask,
};
use model_center::metrics::Metric;
use model_center::tokenizer::{AutoTokenizer, Tokenizer};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;

fn vocabulary(directory: &Path) -> Arc<dyn Tokenizer> {
    let words = "[PAD] [UNK] [CLS] [SEP] [MASK] anna went to rome in may . where did who go she ##s born é".split(' ');
    let lines: String = words.map(|word| format!("{word}\n")).collect();
    std::fs::write(directory.join("vocab.txt"), lines).unwrap();
    AutoTokenizer::open(directory).unwrap()
}

fn write(directory: &Path, name: &str, text: &str) -> std::path::PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

fn tagging(labels: LabelSpec) -> TagTask {
    TagTask { tokens: "tokens".into(), tags: "ner_tags".into(), labels, format: None }
}

#[test]
fn both_formats_give_the_same_rows_with_a_tag_for_the_first_token_of_a_word() {
    let directory = tempfile::tempdir().unwrap();
    let tokenizer = vocabulary(directory.path());
    let options = ReadOptions::new(&*tokenizer, 8);
    let conll = "-DOCSTART- -X- O\n\nAnnas NNP B-PER\nwent VBD O\nto TO O\nRome NNP B-LOC\n\n. . O\n";
    let conll = write(directory.path(), "train.conll", conll);
    let rows = [
        json!({"tokens": ["Annas", "went", "to", "Rome"], "ner_tags": ["B-PER", "O", "O", "B-LOC"]}),
        json!({"tokens": ["."], "ner_tags": ["O"]}),
    ];
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let jsonl = write(directory.path(), "train.jsonl", &lines);
    let read = |path: &Path| tagging(LabelSpec::Discover).read(path, &options).unwrap();
    let (a, b) = (read(&conll), read(&jsonl));
    assert_eq!(a.fingerprint(), b.fingerprint());
    let names = ["B-LOC", "B-PER", "O"].map(str::to_owned).to_vec();
    assert_eq!(*a.labels(), LabelSpace::TokenClasses(names.clone()));
    // [CLS] anna ##s went to rome [SEP]
    assert_eq!(a.tags(0), [-100, 1, -100, 2, 2, 0, -100]);
    assert_eq!((a.tags(1), a.weight(0), a.weight(1)), (&[-100, 2, -100][..], 4, 1));
    let mut loader = Loader::new(Arc::new(a), LoaderOptions::evaluation(2)).unwrap();
    let batch = loader.batch(Position { epoch: 0, index: 0 }).unwrap();
    let labels = vec![-100, 1, -100, 2, 2, 0, -100, -100, 2, -100, -100, -100, -100, -100];
    assert_eq!(batch.labels, Some(Labels::TokenClasses(labels)));
    // Numbers are indices of names, and a model's order of names is taken over.
    let numbers = write(directory.path(), "numbers.jsonl", "{\"tokens\": [\"Anna\", \".\"], \"ner_tags\": [1, 2]}\n");
    let mut numbered = tagging(LabelSpec::Names(names.clone())).read(&numbers, &options).unwrap();
    assert_eq!(numbered.tags(0), [-100, 1, 2, -100]);
    numbered.order_labels(&["O", "B-LOC", "B-PER"].map(str::to_owned)).unwrap();
    assert_eq!(numbered.tags(0), [-100, 2, 0, -100]);
}

#[test]
fn flaws_of_sentences_are_named_with_their_line() {
    let directory = tempfile::tempdir().unwrap();
    let tokenizer = vocabulary(directory.path());
    let options = ReadOptions::new(&*tokenizer, 8);
    let known = LabelSpec::Names(vec!["O".into(), "B-PER".into()]);
    for (name, text, place) in [
        ("a.conll", "anna B-PER\nwent\n\n", "a.conll:2"),
        ("b.conll", "anna O\n\nrome B-LOC\n", "b.conll:3"),
        ("c.jsonl", "{\"tokens\": [\"anna\"], \"ner_tags\": []}\n", "c.jsonl:1"),
        ("d.jsonl", "{\"tokens\": \"anna\", \"ner_tags\": [\"O\"]}\n", "d.jsonl:1"),
        ("e.jsonl", "{\"tokens\": [\"\"], \"ner_tags\": [\"O\"]}\n", "e.jsonl:1"),
    ] {
        let path = write(directory.path(), name, text);
        let error = tagging(known.clone()).read(&path, &options).unwrap_err().to_string();
        assert!(error.contains(place), "{error}");
    }
}

fn squad(directory: &Path, questions: serde_json::Value) -> std::path::PathBuf {
    let passage = "Anna went to Rome in May . She went to Rome .";
    let file = json!({"version": "v2.0", "data": [{"paragraphs": [{"context": passage, "qas": questions}]}]});
    write(directory, "dev.json", &file.to_string())
}

fn read_spans(directory: &Path, questions: serde_json::Value, stride: usize) -> Result<Dataset, String> {
    let tokenizer = vocabulary(directory);
    let options = ReadOptions::new(&*tokenizer, 12);
    let path = squad(directory, questions);
    SpanTask { stride, answer_length: 4 }.read(&path, &options).map_err(|error| error.to_string())
}

#[test]
fn windows_share_tokens_and_one_without_the_answer_has_none() {
    let directory = tempfile::tempdir().unwrap();
    let questions = json!([
        {"question": "where did Anna go", "answers": [{"text": "Rome in May", "answer_start": 13}]},
        {"question": "who", "is_impossible": true, "answers": []},
    ]);
    let data = read_spans(directory.path(), questions, 2).unwrap();
    // 12 - 3 special tokens - 4 of the question leave 5 of 12 tokens; windows begin at 0, 3, 6 and 9.
    let first: Vec<u32> = (0..data.len()).map(|sample| data.member(sample).unwrap().question).collect();
    assert_eq!(first, [0, 0, 0, 0, 1, 1]);
    let labels: Vec<Label> = (0..4).map(|sample| data.label(sample).unwrap()).collect();
    // [CLS] where did anna go [SEP] rome in may . she [SEP]: the second window has the whole answer.
    assert_eq!(labels, [[0, 0], [6, 8], [0, 0], [0, 0]].map(Label::Span));
    assert_eq!(data.label(4), Some(Label::Span([0, 0])));
    assert_eq!((data.references(1), data.references(5)), (&["Rome in May".to_owned()][..], &[String::new()][..]));
    let types: Vec<u8> = data.rows(1).unwrap().next().unwrap().token_type_ids.to_vec();
    assert_eq!(types, [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
    assert_eq!(Metric::defaults(data.labels()), [Metric::TokenF1, Metric::ExactMatch]);
}

#[test]
fn answers_that_are_not_in_their_passage_are_named() {
    let directory = tempfile::tempdir().unwrap();
    for (answer, words) in [
        (json!([{"text": "Rome", "answer_start": 12}]), "question 1: answer \"Rome\" is not at character 12"),
        (json!([{"text": "Rome"}]), "has no answer_start"),
        (json!([{"text": "Rome", "answer_start": 1_000_000}]), "is not at character 1000000"),
        (json!(null), "has no list of answers"),
    ] {
        let error = read_spans(directory.path(), json!([{"question": "who", "answers": answer}]), 2).unwrap_err();
        assert!(error.contains(words), "{error}");
    }
    // A tokenizer that does not report places.
    let path = squad(directory.path(), json!([{"question": "who", "answers": []}]));
    let error = SpanTask { stride: 2, answer_length: 4 }.read(&path, &ReadOptions::new(&Words::new(), 12));
    assert!(error.unwrap_err().to_string().contains("does not report where its tokens are"));
}
