//! Rows of Arrow and Parquet files and of directories that datasets saved: the rows that the libraries read, and what
//! is wrong with files from outside.

use super::sft::{DECODER, set, task, try_read};
use super::words::Words;
use crate::mutants::{Random, replace};
use model_center::corpus::text::{Documents, TextSource};
use model_center::data::{ColumnTask, LabelSpec, OnBadRecord, ReadOptions, TagTask};
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/records").join(name)
}

/// The fields of each row of a file, empty texts included.
fn rows(path: &Path) -> Result<Vec<Map<String, Value>>, String> {
    let text = |error: model_center::Error| error.to_string();
    let mut documents = Documents::open(TextSource::new(vec![path.to_owned()]), OnBadRecord::Error).map_err(text)?;
    let mut rows = Vec::new();
    while let Some(record) = documents.advance_record().map_err(text)? {
        rows.push(record.fields);
    }
    Ok(rows)
}

/// A list of rows as the libraries have them; a corpus passes over those with an empty text.
fn expected(name: &str) -> Vec<Map<String, Value>> {
    let text = fs::read_to_string(golden(name)).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<Map<String, Value>>(line).unwrap());
    rows.filter(|row| row["text"] != "").collect()
}

#[test]
fn rows_of_arrow_are_those_that_pyarrow_and_datasets_read() {
    for (name, of) in [
        ("stream.arrow", "rows.jsonl"),
        ("zstd.arrow", "rows.jsonl"),
        ("lz4.feather", "rows.jsonl"),
        ("further.feather", "further.jsonl"),
        ("saved", "saved.jsonl"),
    ] {
        assert_eq!(rows(&golden(name)).unwrap(), expected(of), "{name}");
    }
    // Of a dictionary of data sets one is named: all of them would have the test's.
    assert_eq!(rows(&golden("dictionary/train_sft")).unwrap(), expected("saved.jsonl")[..2]);
    assert!(rows(&golden("dictionary")).unwrap_err().contains("with train_sft"));
}

#[cfg(feature = "parquet")]
#[test]
fn rows_of_parquet_are_those_that_pyarrow_reads() {
    for name in ["v1.parquet", "v2.parquet"] {
        assert_eq!(rows(&golden(name)).unwrap(), expected("rows.jsonl"), "{name}");
    }
}

#[test]
fn every_task_reads_a_saved_set_as_its_json_lines() {
    let (words, directory) = (Words::new(), tempfile::tempdir().unwrap());
    let skipping = OnBadRecord::Skip { max_share: 1.0 };
    let options = ReadOptions { on_bad_record: skipping, ..ReadOptions::new(&words, 60) };
    let [lines, saved] = [golden("saved.jsonl"), golden("saved")];
    let same = |read: &dyn Fn(&Path) -> model_center::Result<String>| {
        let fingerprint = read(&saved).unwrap();
        assert_eq!(fingerprint, read(&lines).unwrap());
        fingerprint
    };
    let columns = ColumnTask { label: "class".into(), ..ColumnTask::default() };
    let classes = same(&|path| columns.read(path, &options).map(|set| set.fingerprint().to_owned()));
    let tags = TagTask { tokens: "tags".into(), tags: "tags".into(), labels: LabelSpec::Discover, format: None };
    let words = same(&|path| tags.read(path, &options).map(|set| set.fingerprint().to_owned()));
    let texts = same(&|path| {
        let task = model_center::data::SftTask {
            columns: model_center::data::SftColumns { text: Some("text".into()), ..Default::default() },
            ..task(vec![model_center::data::DataSet { form: Some(model_center::data::RecordForm::Text), ..set(path) }])
        };
        try_read(&task, &options, DECODER).map(|set| set.fingerprint().to_owned())
    });
    assert!(classes != words && words != texts);
    // The set of a split, in a directory of sets.
    fs::create_dir(directory.path().join("train")).unwrap();
    for entry in fs::read_dir(&saved).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), directory.path().join("train").join(entry.file_name())).unwrap();
    }
    fs::write(directory.path().join("dataset_dict.json"), r#"{"splits": ["train"]}"#).unwrap();
    let of_text =
        |path: &Path| model_center::data::DataSet { form: Some(model_center::data::RecordForm::Text), ..set(path) };
    let found = try_read(&task(vec![of_text(directory.path())]), &options, DECODER).unwrap();
    assert_eq!(found.fingerprint(), texts);
    let error = try_read(&task(vec![set(golden("dictionary"))]), &options, DECODER).unwrap_err().to_string();
    assert!(error.contains("with train_sft"), "{error}");
}

#[test]
fn columns_without_plain_values_are_named_where_they_are_asked_for() {
    let words = Words::new();
    let read = |column: &str| {
        let task = ColumnTask { text: column.into(), label: "text".into(), ..ColumnTask::default() };
        task.read(&golden("unread.arrow"), &ReadOptions::new(&words, 60)).unwrap_err().to_string()
    };
    for (column, reason) in [
        ("image", "the column \"image\" is of type binary, which is not read"),
        ("when", "the column \"when\" is of type timestamp, which is not read"),
        ("parts", "the column \"parts\" has binary in parts.item.image, which is not read"),
        ("other", "no column \"other\"; columns: text"),
    ] {
        let error = read(column);
        assert!(error.contains(reason) && error.contains("unread.arrow, row 1"), "{column}: {error}");
    }
}

#[test]
fn saved_sets_are_read_as_their_state_tells() {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(golden("saved")).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
    }
    let with_state = |change: &dyn Fn(&mut Map<String, Value>)| {
        let text = fs::read_to_string(golden("saved/state.json")).unwrap();
        let mut state: Map<String, Value> = serde_json::from_str(&text).unwrap();
        change(&mut state);
        replace(&directory.path().join("state.json"), serde_json::to_string(&state).unwrap().as_bytes());
        rows(directory.path())
    };
    let chosen = with_state(&|state| drop(state.insert("_format_columns".into(), serde_json::json!(["text", "flag"]))));
    assert!(chosen.unwrap().iter().all(|row| row.keys().eq(["text", "flag"])));
    for (key, value, reason) in [
        (
            "_indices_files",
            serde_json::json!([{"filename": "indices.arrow"}]),
            "_indices_files, such as a selection of rows",
        ),
        ("_data_files", serde_json::json!([]), "names no files"),
        ("_data_files", serde_json::json!([{"filename": "../x.arrow"}]), "../x.arrow"),
        ("_format_columns", serde_json::json!(["none"]), "no column \"none\""),
    ] {
        let error = with_state(&|state| drop(state.insert(key.into(), value.clone()))).unwrap_err();
        assert!(error.contains(reason), "{key}: {error}");
    }
}

#[test]
fn files_that_are_none_or_cut_off_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.arrow");
    let stream = fs::read(golden("stream.arrow")).unwrap();
    for (bytes, reason) in [
        (&b"FEA1 and more bytes"[..], "Feather of version 1"),
        (b"no Arrow at all, but a text", "this is not an Arrow file"),
        (b"", "this is not an Arrow file"),
        (&stream[..stream.len() / 2], "the Arrow file is damaged: it is cut off"),
        (&fs::read(golden("zstd.arrow")).unwrap()[..5000], "no list of batches at its end"),
    ] {
        replace(&path, bytes);
        let error = rows(&path).unwrap_err();
        assert!(error.contains(reason) && error.contains("a.arrow"), "{reason}: {error}");
    }
}

#[test]
fn damaged_files_never_panic() {
    let (directory, mut random) = (tempfile::tempdir().unwrap(), Random(9));
    for name in ["stream.arrow", "zstd.arrow", "lz4.feather", "further.feather"] {
        let path = directory.path().join(name);
        let whole = fs::read(golden(name)).unwrap();
        for _ in 0..200 {
            let mut mutant = whole.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(mutant.len());
                mutant[at] = [0, 1, 0x7F, 0xFF, random.next() as u8][random.below(5)];
            }
            replace(&path, &mutant);
            let _ = rows(&path);
        }
    }
}
