//! Labels of columns: names, numbers, classes and values.

use super::{labels, names, read};
use model_center::data::{ColumnTask, Label, LabelSpace, LabelSpec};

#[test]
fn discovered_labels_are_sorted_and_serve_the_validation_file() {
    let task = ColumnTask { text: "t".into(), label: "l".into(), ..ColumnTask::default() };
    let train = read(&task, "a.csv", "t,l\na,pos\nb,neg\nc,mid\nd,pos\n").unwrap();
    assert_eq!(names(&train), ["mid", "neg", "pos"]);
    assert_eq!(labels(&train), [2, 1, 0, 2].map(Label::Class));
    let validation = ColumnTask { labels: LabelSpec::of(&train), ..task.clone() };
    let dataset = read(&validation, "b.csv", "t,l\na,pos\n").unwrap();
    assert_eq!((names(&dataset), labels(&dataset)), (names(&train), vec![Label::Class(2)]));
    let error = read(&validation, "b.csv", "t,l\na,pos\nb,bad\n").unwrap_err();
    assert!(error.contains("b.csv:3:3") && error.contains("unknown label \"bad\"; known: mid, neg, pos"), "{error}");
}

#[test]
fn whole_number_labels_sort_as_numbers() {
    let task = ColumnTask::default();
    let dataset = read(&task, "a.jsonl", "{\"text\":\"a\",\"label\":10}\n{\"text\":\"b\",\"label\":9}\n").unwrap();
    assert_eq!((names(&dataset), labels(&dataset)), (vec!["9", "10"], vec![Label::Class(1), Label::Class(0)]));
}

#[test]
fn classes_take_another_order_with_their_samples() {
    let text = "text,label\na,neg\nb,pos\nc,mid\n";
    let mut dataset = read(&ColumnTask::default(), "a.csv", text).unwrap();
    let (own, other) = (["mid", "neg", "pos"].map(String::from), ["pos", "mid", "neg"].map(String::from));
    let fingerprint = dataset.fingerprint().to_owned();
    dataset.order_labels(&other).unwrap();
    assert_eq!(
        (names(&dataset), labels(&dataset)),
        (vec!["pos", "mid", "neg"], vec![2, 0, 1].into_iter().map(Label::Class).collect())
    );
    assert_ne!(dataset.fingerprint(), fingerprint);
    dataset.order_labels(&own).unwrap();
    assert_eq!(dataset.fingerprint(), fingerprint);
    for wrong in [&other[..2], &["pos", "mid", "new"].map(String::from), &["pos", "mid", "mid"].map(String::from)] {
        assert!(dataset.order_labels(wrong).unwrap_err().to_string().contains("in another order"), "{wrong:?}");
    }
    let task = ColumnTask { labels: LabelSpec::Value, ..ColumnTask::default() };
    assert!(read(&task, "a.csv", "text,label\na,1\n").unwrap().order_labels(&own).is_err());
}

#[test]
fn given_labels_may_be_written_as_names_or_numbers() {
    let labels_given = LabelSpec::Names(vec!["neg".into(), "pos".into()]);
    let task = ColumnTask { labels: labels_given, ..ColumnTask::default() };
    let dataset = read(&task, "a.tsv", "text\tlabel\na\tpos\nb\t0\nc\t1\n").unwrap();
    assert_eq!(labels(&dataset), [1, 0, 1].map(Label::Class));
    for (label, reason) in
        [("2", "label 2 is out of range"), ("-1", "label -1 is out of range"), ("po", "unknown label")]
    {
        let error = read(&task, "a.tsv", &format!("text\tlabel\na\tpos\nbb\t{label}\n")).unwrap_err();
        assert!(error.contains("a.tsv:3:4") && error.contains(reason) && error.contains("neg, pos"), "{error}");
    }
}

#[test]
fn a_number_is_no_index_where_names_are_numbers_or_were_found_in_another_file() {
    let train = read(&ColumnTask::default(), "a.csv", "text,label\na,1\nb,2\n").unwrap();
    let found = read(&ColumnTask::default(), "a.csv", "text,label\na,neg\nb,pos\n").unwrap();
    let listed = LabelSpec::Names(vec!["1".into(), "2".into()]);
    for (labels, known) in [(LabelSpec::of(&train), "1, 2"), (listed, "1, 2"), (LabelSpec::of(&found), "neg, pos")] {
        let task = ColumnTask { labels, ..ColumnTask::default() };
        let error = read(&task, "b.csv", "text,label\naa,0\n").unwrap_err();
        assert!(
            error.contains("b.csv:2:4") && error.contains(&format!("unknown label \"0\"; known: {known}")),
            "{error}"
        );
    }
}

#[test]
fn counted_labels_have_a_range() {
    let task = ColumnTask { labels: LabelSpec::Count(3), ..ColumnTask::default() };
    let dataset = read(&task, "a.jsonl", "{\"text\":\"a\",\"label\":2}\n").unwrap();
    assert_eq!((names(&dataset), labels(&dataset)), (vec!["0", "1", "2"], vec![Label::Class(2)]));
    let error = read(&task, "a.jsonl", "{\"text\":\"a\",\"label\":3}\n").unwrap_err();
    assert!(error.contains("a.jsonl:1:21") && error.contains("from 0 to 2"), "{error}");
}

#[test]
fn numbers_are_read_for_regression_and_must_be_finite() {
    let task = ColumnTask { labels: LabelSpec::Value, ..ColumnTask::default() };
    let dataset = read(&task, "a.csv", "text,label\na,2.5\nb,-1e-3\n").unwrap();
    assert_eq!(*dataset.labels(), LabelSpace::Value);
    assert_eq!(labels(&dataset), [Label::Value(2.5), Label::Value(-1e-3)]);
    let error = read(&task, "a.csv", "text,label\naa,\n").unwrap_err();
    assert!(error.contains("a.csv:2:4") && error.contains("the label in \"label\" is empty"), "{error}");
    for bad in ["nan", "inf", "1e99", "two"] {
        let error = read(&task, "a.csv", &format!("text,label\naa,{bad}\n")).unwrap_err();
        assert!(error.contains("a.csv:2:4") && error.contains("not a finite number"), "{error}");
    }
    let error = read(&task, "a.jsonl", "{\"text\":\"a\",\"label\":true}").unwrap_err();
    assert!(error.contains("not a finite number"), "{error}");
}

#[test]
fn useless_label_settings_are_refused() {
    let with = |labels| ColumnTask { labels, ..ColumnTask::default() };
    let csv = "text,label\na,x\nb,x\n";
    assert!(read(&with(LabelSpec::Discover), "a.csv", csv).unwrap_err().contains("the same label, \"x\""));
    for labels in [
        LabelSpec::Names(vec!["x".into()]),
        LabelSpec::Names(vec!["x".into(), "x".into()]),
        LabelSpec::Count(1),
        LabelSpec::Count(usize::MAX),
    ] {
        assert!(read(&with(labels), "a.csv", csv).unwrap_err().contains("data.labels"));
    }
    let many: String = (0..10_002).map(|at| format!("a,l{at}\n")).collect();
    let error = read(&with(LabelSpec::Discover), "a.csv", &format!("text,label\n{many}")).unwrap_err();
    assert!(error.contains("a.csv:10002:3") && error.contains("more than 10000 different labels"), "{error}");
}
