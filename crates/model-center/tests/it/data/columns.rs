//! Any file by column names: formats, label kinds, limits, fingerprints.

mod labels;

use crate::data::words::{Words, file, options, rows};
use model_center::data::{
    ColumnTask, Dataset, Format, Label, LabelSpace, LabelSpec, OnBadRecord, ReadOptions, TooLong,
};
use model_center::run::layout_error;
use model_center::tokenizer::KeepSide;

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
