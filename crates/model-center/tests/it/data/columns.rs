//! Any file by column names: formats, label kinds, limits, fingerprints.

use model_center::data::{
    ColumnTask, Dataset, Format, Label, LabelSpace, LabelSpec, OnBadRecord, ReadOptions, TooLong,
};
use model_center::run::layout_error;
use model_center::tokenizer::KeepSide;

use crate::data::words::{Words, file, options, rows};

fn read(task: &ColumnTask, name: &str, content: &str) -> Result<Dataset, String> {
    let words = Words::new();
    read_with(task, name, content, &options(&words))
}

fn read_with(task: &ColumnTask, name: &str, content: &str, options: &ReadOptions<'_>) -> Result<Dataset, String> {
    let (directory, path) = file(name, content);
    let place = format!("{}/", directory.path().display());
    task.read(&path, options).map_err(|error| layout_error(&error).replace(&place, ""))
}

fn labels(dataset: &Dataset) -> Vec<Label> {
    (0..dataset.len()).map(|sample| dataset.label(sample).unwrap()).collect()
}

fn names(dataset: &Dataset) -> Vec<&str> {
    match dataset.labels() {
        LabelSpace::Classes(names) => names.iter().map(String::as_str).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn records_of_a_program_give_the_dataset_of_a_file() {
    let task = ColumnTask { text_pair: Some("other.text".into()), ..ColumnTask::default() };
    let lines = [
        r#"{"text": "a b", "other": {"text": "c"}, "label": "x"}"#,
        r#"{"label": "y", "other": {"text": "d"}, "text": "e"}"#,
    ];
    let words = Words::new();
    let given = |lines: &[&str]| {
        let rows = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        task.read_rows("reviews", rows, &options(&words)).map_err(|error| error.to_string())
    };
    let of_file = read(&task, "a.jsonl", &lines.join("\n")).unwrap();
    assert_eq!(given(&lines).unwrap().fingerprint(), of_file.fingerprint());
    let error = given(&[lines[0], r#"{"text": "a", "other": {"text": "b"}}"#]).unwrap_err();
    assert!(error.starts_with("reviews, row 2: no column \"label\""), "{error}");
    assert!(given(&[]).unwrap_err().starts_with("reviews: there is no record"));
}

#[test]
fn the_three_formats_give_the_same_dataset() {
    let task = ColumnTask { text_pair: Some("other".into()), ..ColumnTask::default() };
    let jsonl = "{\"text\": \"a, b\", \"other\": \"c\", \"label\": \"x\"}\n{\"label\": \"y\", \"other\": \"d\", \
        \"text\": \"\\\"e\\\"\"}\n";
    let csv = "label,text,other\r\nx,\"a, b\",c\r\ny,\"\"\"e\"\"\",d\r\n";
    let tsv = "other\ttext\tlabel\nc\ta, b\tx\nd\t\"e\"\ty";
    let read = |name: &str, content: &str| read(&task, name, content).unwrap();
    let (jsonl, csv, tsv) = (read("a.jsonl", jsonl), read("a.csv", csv), read("a.tsv", tsv));
    assert_eq!(jsonl.fingerprint(), csv.fingerprint());
    assert_eq!(jsonl.fingerprint(), tsv.fingerprint());
    assert_eq!(labels(&csv), [Label::Class(0), Label::Class(1)]);
    let words = Words::new();
    let again = read_with(&task, "a.csv", "label,text,other\nx,\"a,\nb\",c\ny,e,d\n", &options(&words)).unwrap();
    assert_eq!(rows(&words, &again)[0].0, "[CLS] a, b [SEP] c [SEP]");
}

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

#[test]
fn a_missing_column_lists_the_columns() {
    let error = read(&ColumnTask::default(), "a.csv", "sentence,label\na,b\n").unwrap_err();
    assert!(error.contains("no column \"text\"; columns: sentence, label"), "{error}");
    let error = read(&ColumnTask::default(), "a.jsonl", "{\"text\": \"a\"}").unwrap_err();
    assert!(error.contains("no column \"label\"; columns: text"), "{error}");
    let error = read(&ColumnTask::default(), "a.jsonl", r#"{"a\nb\u001b[2J": "a"}"#).unwrap_err();
    assert!(error.contains(r"columns: a\nb\u{1b}[2J") && error.lines().count() == 3, "{error}");
}

#[test]
fn the_format_follows_the_name_unless_given() {
    let tsv = "text\tlabel\na\tx\nb\ty\n";
    assert!(read(&ColumnTask::default(), "a.dat", tsv).unwrap_err().contains("data.format"));
    let task = ColumnTask { format: Some(model_center::data::Format::Tsv), ..ColumnTask::default() };
    assert_eq!(read(&task, "a.dat", tsv).unwrap().len(), 2);
}

#[test]
fn long_inputs_are_cut_and_counted_or_refused() {
    let content = "text,label\none two three four five six,x\nshort,y\n";
    let words = Words::new();
    let mut options = ReadOptions::new(&words, 5);
    let dataset = read_with(&ColumnTask::default(), "a.csv", content, &options).unwrap();
    assert_eq!(rows(&words, &dataset)[0].0, "[CLS] one two three [SEP]");
    let report = dataset.report();
    assert_eq!((report.rows, report.truncated, report.removed_tokens, report.longest), (2, 1, 3, 5));
    assert_eq!((report.tokens, report.truncated_share()), (8, 0.5));
    options.keep = KeepSide::End;
    let dataset = read_with(&ColumnTask::default(), "a.csv", content, &options).unwrap();
    assert_eq!(rows(&words, &dataset)[0].0, "[CLS] four five six [SEP]");
    options.too_long = TooLong::Error;
    let error = read_with(&ColumnTask::default(), "a.csv", content, &options).unwrap_err();
    assert!(error.contains("a.csv:2:1") && error.contains("8 tokens, more than data.max_length = 5"), "{error}");
    options.max_length = 8;
    assert_eq!(read_with(&ColumnTask::default(), "a.csv", content, &options).unwrap().report().truncated, 0);
    options.max_length = 1;
    options.too_long = TooLong::Truncate;
    let error = read_with(&ColumnTask::default(), "a.csv", content, &options).unwrap_err();
    assert!(error.contains("data.max_length"), "{error}");
}

#[test]
fn bad_records_are_skipped_up_to_a_share() {
    let content = "{\"text\":\"a\",\"label\":\"x\"}\n{broken\n{\"text\":\"b\",\"label\":\"y\"}\n{\"text\":1}\n";
    let words = Words::new();
    let mut options = options(&words);
    let error = read_with(&ColumnTask::default(), "a.jsonl", content, &options).unwrap_err();
    assert!(error.contains("a.jsonl:2:2"), "{error}");
    options.on_bad_record = OnBadRecord::Skip { max_share: OnBadRecord::SKIP_SHARE };
    let error = read_with(&ColumnTask::default(), "a.jsonl", content, &options).unwrap_err();
    assert!(error.contains("2 of 4 records are unusable, more than the accepted 0.1 %"), "{error}");
    assert!(error.contains("a.jsonl:2:2") && error.contains("a.jsonl:4:9"), "{error}");
    options.on_bad_record = OnBadRecord::Skip { max_share: 0.5 };
    let dataset = read_with(&ColumnTask::default(), "a.jsonl", content, &options).unwrap();
    let report = dataset.report();
    assert_eq!((dataset.len(), report.records, report.skipped, report.first_skipped.len()), (2, 4, 2, 2));
    for max_share in [-0.1, 1.5, f64::NAN] {
        options.on_bad_record = OnBadRecord::Skip { max_share };
        assert!(
            read_with(&ColumnTask::default(), "a.jsonl", content, &options)
                .unwrap_err()
                .contains("data.bad_record_limit")
        );
    }
}

#[test]
fn a_limit_reads_the_first_records_only() {
    let words = Words::new();
    let mut options = options(&words);
    options.limit = Some(2);
    let content = "text,label\na,x\nb,y\nc,z\nd,\"never closed";
    let dataset = read_with(&ColumnTask::default(), "a.csv", content, &options).unwrap();
    assert_eq!((dataset.len(), names(&dataset)), (2, vec!["x", "y"]));
}

#[test]
fn the_fingerprint_changes_with_content_and_limit_only() {
    let words = Words::new();
    let read = |content: &str, max_length: usize| {
        let options = ReadOptions::new(&words, max_length);
        read_with(&ColumnTask::default(), "a.csv", content, &options).unwrap().fingerprint().to_owned()
    };
    let base = read("text,label\na b c,x\nd,y\n", 64);
    assert_eq!(base.len(), 64);
    assert_eq!(base, read("label,text\r\nx,a b c\r\n\r\ny,d", 64));
    assert_eq!(base, read("text,label\na b c,x\nd,y\n", 5));
    assert_ne!(base, read("text,label\na b c,x\nd,y\n", 4));
    assert_ne!(base, read("text,label\na b c,y\nd,x\n", 64));
    assert_ne!(base, read("text,label\na b,x\nc d,y\n", 64));
}

/// Several chunks of text pass through the tokenizer; rows must stay with their labels.
#[test]
fn large_files_keep_rows_and_labels_together() {
    let content: String = (0..30_000)
        .map(|at| {
            let filler = "w ".repeat(at % 7) + &"long ".repeat(20);
            format!("{filler}\tn{}\t{}\n", at % 97, at % 97)
        })
        .collect();
    let task = ColumnTask { text_pair: Some("pair".into()), labels: LabelSpec::Value, ..ColumnTask::default() };
    let words = Words::new();
    let dataset = read_with(&task, "a.tsv", &format!("text\tpair\tlabel\n{content}"), &options(&words)).unwrap();
    assert_eq!(dataset.len(), 30_000);
    for sample in (0..30_000).step_by(101) {
        let (word, length) = (words.tokenize_one(&format!("n{}", sample % 97)), 24 + sample % 7);
        let row = dataset.rows(sample).unwrap().next().unwrap();
        assert_eq!(dataset.label(sample), Some(Label::Value((sample % 97) as f32)));
        assert_eq!(row.input_ids.len(), length);
        assert_eq!(row.input_ids[length - 2], word);
    }
}

#[test]
fn empty_texts_and_labels_are_errors_that_can_be_skipped_and_labels_are_trimmed() {
    let pairs = ColumnTask { text_pair: Some("other".into()), ..ColumnTask::default() };
    let numbers = ColumnTask { labels: LabelSpec::Value, ..ColumnTask::default() };
    for (task, content, place, reason) in [
        (&ColumnTask::default(), "text,label\na,x\n,y\n", "a.csv:3:1", "\"text\" is empty"),
        (&ColumnTask::default(), "text,label\na,x\n\" \",y\n", "a.csv:3:1", "\"text\" is empty"),
        (&ColumnTask::default(), "text,label\na,x\nb,\n", "a.csv:3:3", "the label in \"label\" is empty"),
        (&ColumnTask::default(), "text,label\na,x\nb,  \n", "a.csv:3:3", "the label in \"label\" is empty"),
        (&numbers, "text,label\na,1\nb,\n", "a.csv:3:3", "the label in \"label\" is empty"),
        (&pairs, "text,other,label\na,b,x\n,,y\n", "a.csv:3:1", "\"text\" is empty"),
        (&pairs, "text,other,label\na,b,x\na,,y\n", "a.csv:3:3", "\"other\" is empty"),
    ] {
        let error = read(task, "a.csv", content).unwrap_err();
        assert!(error.contains(place) && error.contains(reason), "{content}: {error}");
        assert!(error.contains("data.on_bad_record"), "{error}");
    }
    let words = Words::new();
    let skipping = ReadOptions { on_bad_record: OnBadRecord::Skip { max_share: 0.5 }, ..options(&words) };
    let content = "text,label\na,yes\n,no\nb,no \nc, yes\nd,\n";
    let dataset = read_with(&ColumnTask::default(), "a.csv", content, &skipping).unwrap();
    assert_eq!((names(&dataset), labels(&dataset)), (vec!["no", "yes"], [1, 0, 1].map(Label::Class).to_vec()));
    assert_eq!(dataset.report().skipped, 2);
    // A name that is listed with white space is meant so.
    let listed = ColumnTask { labels: LabelSpec::Names(vec!["no ".into(), "yes".into()]), ..ColumnTask::default() };
    assert_eq!(labels(&read(&listed, "a.csv", "text,label\na,no \nb,yes \n").unwrap()), [0, 1].map(Label::Class));
}

#[test]
fn columns_of_csv_may_have_another_delimiter_which_is_named_where_it_is_missing() {
    let content = "text;label\n\"a; b\";x\nc, d;y\n";
    let error = read(&ColumnTask::default(), "a.csv", content).unwrap_err();
    assert!(error.contains("set data.delimiter = \";\""), "{error}");
    let task = ColumnTask { format: Some(Format::Separated(';')), ..ColumnTask::default() };
    let words = Words::new();
    let dataset = read_with(&task, "a.csv", content, &options(&words)).unwrap();
    assert_eq!(names(&dataset), ["x", "y"]);
    assert_eq!(
        rows(&words, &dataset).iter().map(|row| row.0.as_str()).collect::<Vec<_>>(),
        ["[CLS] a; b [SEP]", "[CLS] c, d [SEP]"]
    );
}
