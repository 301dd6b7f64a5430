//! The six tasks: file layout, templates, labels.

use model_center::data::{
    Dataset, Label, LabelSpace, ReadOptions, SUPERGLUE, Split, Task, TaskEntry, TaskLabels, TaskModel, find_task,
};
use model_center::metrics::Metric;
use model_center::tokenizer::KeepSide;

use crate::data::words::{Words, file, options, rows};

fn read(task: &str, split: Split, lines: &str) -> (Words, Result<Dataset, String>) {
    let words = Words::new();
    let stem = split.file_stem();
    let (directory, _) = file(&format!("{task}/{stem}.jsonl"), lines);
    let entry = find_task(task, &[SUPERGLUE]).unwrap();
    let dataset = entry.read_below(directory.path(), split, TaskModel::default(), &options(&words));
    let place = format!("{}/", directory.path().display());
    (words, dataset.map_err(|error| error.to_string().replace(&place, "")))
}

fn classes(dataset: &Dataset) -> Vec<usize> {
    (0..dataset.len())
        .map(|sample| match dataset.label(sample).unwrap() {
            Label::Class(class) => class,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn texts(words: &Words, dataset: &Dataset) -> Vec<String> {
    rows(words, dataset).into_iter().map(|(text, _)| text).collect()
}

#[test]
fn boolq_joins_passage_and_question_into_one_text() {
    let lines = concat!(
        r#"{"question": "is it red", "passage": "It is blue", "idx": 0, "label": false}"#,
        "\n",
        r#"{"question": "is it blue", "passage": "It is blue", "idx": 1, "label": true}"#,
        "\n"
    );
    let (words, dataset) = read("BoolQ", Split::Train, lines);
    let dataset = dataset.unwrap();
    assert_eq!(texts(&words, &dataset)[0], "[CLS] It is blue. is it red [SEP]");
    assert_eq!(classes(&dataset), [0, 1]);
    assert_eq!(rows(&words, &dataset)[0].1, [0; 8]);
    // The question stays.
    let (directory, _) = file("BoolQ/train.jsonl", lines);
    let short = ReadOptions { max_length: 6, ..options(&words) };
    let dataset = find_task("BoolQ", &[SUPERGLUE])
        .unwrap()
        .read_below(directory.path(), Split::Train, TaskModel::default(), &short)
        .unwrap();
    assert_eq!(texts(&words, &dataset)[0], "[CLS] blue. is it red [SEP]");
}

#[test]
fn cb_trains_on_balanced_labels_and_validates_on_the_file() {
    let line = |label: &str, name: &str| {
        format!(r#"{{"premise": "p {name}", "hypothesis": "h", "label": "{label}", "idx": 0}}"#) + "\n"
    };
    let lines = line("contradiction", "a")
        + &line("neutral", "b")
        + &line("contradiction", "c")
        + &line("entailment", "d")
        + &line("contradiction", "e")
        + &line("entailment", "f")
        + &line("contradiction", "g")
        + &line("contradiction", "h");
    let (words, train) = read("CB", Split::Train, &lines);
    let train = train.unwrap();
    // 5, 2, 1: floor(5 / 2) = 2 copies of each entailment, 5 of the neutral one.
    assert_eq!(train.class_counts(), [5, 4, 5]);
    assert_eq!(classes(&train), [0, 2, 2, 2, 2, 2, 0, 1, 1, 0, 1, 1, 0, 0]);
    assert_eq!(texts(&words, &train)[1], "[CLS] p b [SEP] h [SEP]");
    assert_eq!(rows(&words, &train)[1].1, [0, 0, 0, 0, 1, 1]);
    assert_eq!(train.report().rows, 8, "copies are not stored");
    let (_, validation) = read("CB", Split::Validation, &lines);
    assert_eq!(validation.unwrap().class_counts(), [5, 2, 1]);
}

#[test]
fn copa_makes_one_row_per_choice() {
    let lines = concat!(
        r#"{"premise": "It rained.", "choice1": "Wet.", "choice2": "Dry.", "question": "effect", "#,
        r#""idx": 0, "label": 0}"#,
        "\n",
        r#"{"premise": "He fell.", "choice1": "Sun.", "choice2": "Ice.", "question": "cause", "idx": 1, "label": 1}"#
    );
    let (words, dataset) = read("COPA", Split::Train, lines);
    let dataset = dataset.unwrap();
    assert_eq!(*dataset.labels(), LabelSpace::Choices(2));
    assert_eq!((dataset.len(), dataset.labels().outputs()), (2, 1));
    assert_eq!(
        texts(&words, &dataset),
        [
            "[CLS] Wet. [SEP] The effect of \"It rained.\" [SEP]",
            "[CLS] Dry. [SEP] The effect of \"It rained.\" [SEP]",
            "[CLS] Sun. [SEP] The cause of \"He fell.\" [SEP]",
            "[CLS] Ice. [SEP] The cause of \"He fell.\" [SEP]",
        ]
    );
    assert_eq!(classes(&dataset), [0, 1]);
}

#[test]
fn rte_and_wic_are_pairs() {
    let rte = concat!(
        r#"{"premise": "a b", "hypothesis": "c", "label": "not_entailment", "idx": 0}"#,
        "\n",
        r#"{"premise": "a", "hypothesis": "c", "label": "entailment", "idx": 1}"#
    );
    let (words, dataset) = read("RTE", Split::Validation, rte);
    let dataset = dataset.unwrap();
    assert_eq!(texts(&words, &dataset)[0], "[CLS] a b [SEP] c [SEP]");
    assert_eq!(classes(&dataset), [0, 1]);
    let wic = concat!(
        r#"{"word": "bank", "sentence1": "the bank", "sentence2": "a bank", "start1": 4, "end1": 8, "#,
        r#""start2": 2, "end2": 6, "idx": 0, "label": true}"#
    );
    let (words, dataset) = read("WiC", Split::Train, wic);
    let dataset = dataset.unwrap();
    assert_eq!(texts(&words, &dataset), ["[CLS] the bank [SEP] a bank [SEP]"]);
    assert_eq!(classes(&dataset), [1]);
}

#[test]
fn wsc_asks_about_the_two_spans() {
    let line = concat!(
        r#"{"target": {"span1_text": "Ann", "span1_index": 0, "span2_text": "she", "span2_index": 4}, "#,
        r#""text": "Ann ran because she could.", "label": true, "idx": 0}"#
    );
    let (words, dataset) = read("WSC", Split::Train, line);
    let dataset = dataset.unwrap();
    assert_eq!(texts(&words, &dataset), ["[CLS] Ann ran because she could. Does she refers to Ann? [SEP]"]);
    assert_eq!(classes(&dataset), [1]);
}

#[test]
fn mistakes_point_to_file_line_and_column() {
    let good = r#"{"premise": "p", "hypothesis": "h", "label": "entailment"}"#;
    for (task, line, place, reason) in [
        (
            "RTE",
            r#"{"premise": "p", "hypothesis": "h", "label": "maybe"}"#,
            ":2:46",
            "known: not_entailment, entailment",
        ),
        (
            "RTE",
            r#"{"premise": "pé", "label": "entailment"}"#,
            ":2:1",
            "no column \"hypothesis\"; columns: premise, label",
        ),
        (
            "RTE",
            r#"{"premise": "pé", "hypothesis": 7, "label": "entailment"}"#,
            ":2:33",
            "\"hypothesis\" is 7, not text",
        ),
        ("RTE", r#"{"premise": null, "hypothesis": "h", "label": 1}"#, ":2:", "unknown label \"1\""),
        ("RTE", r#"{"premise": "é", "hypothesis" "h"}"#, ":2:31", "broken JSON: expected `:`"),
        ("RTE", r#"["premise"]"#, ":2:1", "not a JSON object"),
        ("CB", r#"{"premise": "p", "hypothesis": "h", "label": 2}"#, ":2:46", "contradiction, entailment, neutral"),
    ] {
        let (_, error) = read(task, Split::Train, &format!("{good}\n{line}\n"));
        let error = error.unwrap_err();
        assert!(error.contains(&format!("{task}/train.jsonl{place}")), "{error}");
        assert!(error.contains(reason), "{error}");
    }
    let copa = r#"{"premise": "It.", "choice1": "W", "choice2": "D", "question": "effect", "label": 2}"#;
    let error = read("COPA", Split::Train, copa).1.unwrap_err();
    assert!(error.contains("COPA/train.jsonl:1:83") && error.contains("known: 0, 1"), "{error}");
    let boolq = r#"{"passage": "It", "question": "W", "label": "yes"}"#;
    let error = read("BoolQ", Split::Train, boolq).1.unwrap_err();
    assert!(error.contains("BoolQ/train.jsonl:1:45") && error.contains("\"label\" is \"yes\""), "{error}");
}

#[test]
fn a_missing_file_names_its_path() {
    let words = Words::new();
    let directory = tempfile::TempDir::new().unwrap();
    let entry = find_task("rte", &[SUPERGLUE]).unwrap();
    let error = entry
        .read_below(directory.path(), Split::Validation, TaskModel::default(), &options(&words))
        .unwrap_err()
        .to_string();
    assert!(error.contains("RTE/val.jsonl") && error.contains("no such file"), "{error}");
}

#[test]
fn the_registry_is_complete_and_open() {
    let names: Vec<&str> = SUPERGLUE.iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["BoolQ", "CB", "COPA", "RTE", "WiC", "WSC"]);
    assert_eq!(find_task("CB", &[SUPERGLUE]).unwrap().metrics, [Metric::Accuracy, Metric::F1Macro]);
    static MINE: &[TaskEntry] = &[TaskEntry {
        name: "Yours",
        doc: "Is the text yours?",
        labels: TaskLabels::Classes(&["no", "yes"]),
        metrics: &[Metric::F1],
        oversample_train: false,
        keep: KeepSide::Start,
        parse: |record, examples| {
            let label = Label::Class(record.choice("mine", &["no", "yes"])?);
            examples.push(model_center::data::Example { first: record.text("t")?.to_uppercase(), second: None, label });
            Ok(())
        },
    }];
    let entry = find_task("yours", &[SUPERGLUE, MINE]).unwrap();
    let words = Words::new();
    let (directory, _) = file("Yours/train.jsonl", r#"{"t": "a b", "mine": "yes"}"#);
    let dataset = entry.read_below(directory.path(), Split::Train, TaskModel::default(), &options(&words)).unwrap();
    assert_eq!(texts(&words, &dataset), ["[CLS] A B [SEP]"]);
    let error = find_task("Ours", &[SUPERGLUE, MINE]).unwrap_err().to_string();
    assert!(error.contains("\"Ours\"") && error.contains("BoolQ, CB, COPA, RTE, WiC, WSC, Yours"), "{error}");
}
