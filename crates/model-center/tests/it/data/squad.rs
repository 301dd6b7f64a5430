//! SQuAD: what is read, what is written, which texts answer, and files that are not as it should be.

use model_center::data::{Dataset, LabelSpace, OnBadRecord, ReadOptions, Split, Squad, Task, TaskModel};
use model_center::tokenizer::Tokenizer;

use crate::data::words::{Words, file, options, rows};

const FILE: &str = r#"{"version": "1.1", "data": [{"title": "t", "paragraphs": [
    {"context": " The cat sat", "qas": [
        {"id": "1", "question": " Who sat?", "answers": [
            {"text": "The cat", "answer_start": 1}, {"text": "cat", "answer_start": 5}]},
        {"id": "2", "question": "Why?", "answers": []}]}]}]}"#;

fn words() -> Words {
    let words = Words::new();
    words.tokenize(&["<extra_id_0> <extra_id_1>"]).unwrap();
    words
}

fn read(content: &str, split: Split, options: &ReadOptions<'_>) -> Result<Dataset, String> {
    let (directory, _) = file(&Squad.file(split).unwrap(), content);
    let dataset = Squad.read_below(directory.path(), split, TaskModel::default(), options);
    dataset.map_err(|error| error.to_string().replace(&format!("{}/", directory.path().display()), ""))
}

#[test]
fn the_answer_is_a_sentinel_in_the_input_and_between_two_in_the_target() {
    let words = words();
    for split in [Split::Train, Split::Validation] {
        let dataset = read(FILE, split, &options(&words)).unwrap();
        assert_eq!(*dataset.labels(), LabelSpace::Target);
        let texts: Vec<String> = rows(&words, &dataset).into_iter().map(|(text, _)| text).collect();
        assert_eq!(
            texts,
            [
                "[CLS] Question: Who sat? Answer: <extra_id_0> Context: The cat sat [SEP]",
                "[CLS] <extra_id_0> The cat <extra_id_1> [SEP]",
                "[CLS] Question: Why? Answer: <extra_id_0> Context: The cat sat [SEP]",
                "[CLS] <extra_id_0> no answer <extra_id_1> [SEP]",
            ]
        );
        assert_eq!(dataset.references(0), ["The cat", "cat"]);
        assert_eq!(dataset.references(1), ["no answer"]);
        assert!(dataset.references(2).is_empty());
        // With a byte order mark; and another answer that was not learnt is another dataset.
        let marked = read(&format!("\u{FEFF}{FILE}"), split, &options(&words)).unwrap();
        assert_eq!(marked.fingerprint(), dataset.fingerprint());
        let other = read(&FILE.replace("\"text\": \"cat\"", "\"text\": \"dog\""), split, &options(&words)).unwrap();
        assert_ne!(other.fingerprint(), dataset.fingerprint());
    }
}

#[test]
fn a_long_passage_loses_its_end_and_the_question_stays() {
    let words = words();
    let within = |max_length, target_length| {
        let dataset = read(FILE, Split::Train, &ReadOptions { max_length, target_length, ..options(&words) }).unwrap();
        let report = (dataset.report().truncated, dataset.report().removed_tokens);
        (rows(&words, &dataset).into_iter().map(|(text, _)| text).take(2).collect::<Vec<_>>(), report)
    };
    let (texts, report) = within(9, 5);
    assert_eq!(texts[0], "[CLS] Question: Who sat? Answer: <extra_id_0> Context: The [SEP]");
    assert_eq!(texts[1], "[CLS] <extra_id_0> The <extra_id_1> [SEP]");
    // Two questions of the first passage and one of the other, and one of each answer.
    assert_eq!(report, (4, 2 + 1 + 1 + 1));
    let (texts, _) = within(5, 6);
    assert_eq!(texts[0], "[CLS] Question: Who <extra_id_0> [SEP]");
}

#[test]
fn files_that_are_not_squads_are_refused_at_their_place() {
    let words = words();
    let refused = |content: &str| read(content, Split::Train, &options(&words)).unwrap_err();
    for (content, place, reason) in [
        ("{\n\"data\": 3}", "train-v1.1.json:2:9", "the file is not SQuAD's: invalid type"),
        ("{\"data\": [", "train-v1.1.json:1:10", "EOF"),
        ("{\"data\": []}", "train-v1.1.json", "the file has no records"),
        (&FILE.replace("\"answers\": []", "\"id2\": 1"), "train-v1.1.json, question 2", "no list of answers"),
    ] {
        let error = refused(content);
        assert!(error.contains(place) && error.contains(reason), "{error}");
    }
    let skipping = ReadOptions { on_bad_record: OnBadRecord::Skip { max_share: 0.5 }, ..options(&words) };
    let dataset = read(&FILE.replace("\"answers\": []", "\"id2\": 1"), Split::Train, &skipping).unwrap();
    assert_eq!((dataset.len(), dataset.report().skipped), (1, 1));
    let first = read(FILE, Split::Train, &ReadOptions { limit: Some(1), ..options(&words) }).unwrap();
    assert_eq!((first.len(), first.references(0).len()), (1, 2));
    let plain = Words::new();
    let error = read(FILE, Split::Train, &options(&plain)).unwrap_err();
    assert!(error.contains("task SQuAD") && error.contains("no sentinel for an answer"), "{error}");
}

#[test]
fn damaged_files_never_panic() {
    let words = words();
    let (mut refused, mut accepted) = (0, 0);
    for at in 0..FILE.len() {
        for damage in [None, Some(b'"'), Some(0xFF), Some(b'['), Some(b'}'), Some(b'9')] {
            let mut bytes = FILE.as_bytes().to_vec();
            match damage {
                Some(byte) => bytes[at] = byte,
                None => bytes.truncate(at),
            }
            let (directory, _) = file(&Squad.file(Split::Train).unwrap(), bytes);
            match Squad.read_below(directory.path(), Split::Train, TaskModel::default(), &options(&words)) {
                Ok(dataset) => {
                    accepted += 1;
                    assert!((0..dataset.len()).all(|sample| !dataset.references(sample).is_empty()));
                }
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("fix:"), "{error}");
                }
            }
        }
    }
    assert!(refused > 500 && accepted > 200, "{refused} {accepted}");
}
