//! Files that are damaged, endless or made to harm: one clear error or correct data, never a panic.

use model_center::data::{ColumnTask, Dataset, OnBadRecord, SUPERGLUE, Split, Task, TaskModel, find_task};

use crate::data::words::{Words, file, options, rows};
use model_center::run::layout_error;

fn read(name: &str, content: impl AsRef<[u8]>) -> Result<Dataset, String> {
    let words = Words::new();
    let (_directory, path) = file(name, content);
    ColumnTask::default().read(&path, &options(&words)).map_err(|error| error.to_string())
}

#[test]
fn empty_files_are_reported() {
    for name in ["a.jsonl", "a.csv", "a.tsv"] {
        for content in ["", "\n\n", "\u{feff}"] {
            let error = read(name, content).unwrap_err();
            // Of a table the header is missing.
            let reason = match content.is_empty() || name != "a.jsonl" {
                true => "the file is empty",
                false => "the file has no records",
            };
            assert!(error.contains(reason) && error.contains(name), "{error}");
        }
    }
    assert!(read("a.csv", "text,label\n").unwrap_err().contains("the file has no records"));
}

#[test]
fn a_torn_last_line_is_told_from_a_broken_one() {
    let good = "{\"text\": \"a\", \"label\": \"x\"}\n";
    let error = read("a.jsonl", format!("{good}{}", "{\"text\": \"b")).unwrap_err();
    assert!(error.contains("a.jsonl:2:11") && error.contains("the last line is cut off"), "{error}");
    let error = read("a.jsonl", format!("{good}{}\n{good}", "{\"text\": \"b")).unwrap_err();
    assert!(error.contains("a.jsonl:2:") && error.contains("broken JSON"), "{error}");
    let error = read("a.csv", "text,label\na,x\n\"b").unwrap_err();
    assert!(error.contains("a.csv:3:1") && error.contains("not closed before the end of the file"), "{error}");
    let error = read("a.tsv", "text\tlabel\na\tx\nb").unwrap_err();
    assert!(error.contains("a.tsv:3:1") && error.contains("1 fields, the header has 2"), "{error}");
}

#[test]
fn byte_order_mark_and_windows_endings_change_nothing() {
    let plain = read("a.csv", "text,label\na,x\nb,y\n").unwrap();
    let windows = read("a.csv", "\u{feff}text,label\r\na,x\r\nb,y\r\n").unwrap();
    assert_eq!(plain.fingerprint(), windows.fingerprint());
    let json = "{\"text\":\"a\",\"label\":\"x\"}\n{\"text\":\"b\",\"label\":\"y\"}\n";
    let windows = read("a.jsonl", format!("\u{feff}{}", json.replace('\n', "\r\n"))).unwrap();
    assert_eq!(plain.fingerprint(), windows.fingerprint());
}

#[test]
fn bytes_that_are_not_utf8_are_located() {
    let error = read("a.csv", b"text,label\nfine,x\ncaf\xE9,y\n").unwrap_err();
    assert!(error.contains("a.csv:3:4") && error.contains("0xE9") && error.contains("iconv"), "{error}");
}

#[test]
fn an_endless_line_is_refused() {
    let endless = vec![b'a'; 3 << 20];
    for name in ["a.jsonl", "a.csv", "a.tsv"] {
        let error = read(name, &endless).unwrap_err();
        assert!(error.contains(":1:1048576") && error.contains("longer than 1048576 bytes"), "{error}");
    }
    let quote = [b"text,label\n\"".to_vec(), b"\n\n\n\n".repeat(1 << 20)].concat();
    let error = read("a.csv", &quote).unwrap_err();
    assert!(error.contains("a.csv:2:1") && error.contains("not closed within 1048576 bytes"), "{error}");
}

#[test]
fn an_open_quote_cannot_hide_records_from_the_count_of_skipped_ones() {
    let words = Words::new();
    let mut options = options(&words);
    options.on_bad_record = OnBadRecord::Skip { max_share: 1.0 };
    let (_directory, path) = file("a.csv", "text,label\na,x\n\"b,y\nc,z\nd,z\n");
    let error = layout_error(&ColumnTask::default().read(&path, &options).unwrap_err());
    assert!(error.contains("a.csv:3:1") && error.contains("not closed"), "{error}");
}

#[test]
fn rows_of_the_wrong_width_are_located() {
    let error = read("a.csv", "text,label\na,x\nb,c,y\n").unwrap_err();
    assert!(error.contains("a.csv:3:5") && error.contains("3 fields, the header has 2"), "{error}");
    let error = read("a.csv", "text,label,text\na,x,b\n").unwrap_err();
    assert!(error.contains("a.csv:1:12") && error.contains("\"text\" twice"), "{error}");
    let error = read("a.csv", "text,label\n\"a\" b,x\n").unwrap_err();
    assert!(error.contains("a.csv:2:4") && error.contains("follows a closing quote"), "{error}");
}

#[test]
fn errors_stay_short_whatever_the_record_holds() {
    let long = "x".repeat(100_000);
    for content in [
        format!("{{\"text\": \"a\", \"label\": {{\"{long}\": 1}}}}"),
        format!("{{\"text\": \"a\", \"{long}\": 1}}"),
        format!("{{\"text\": 1{}}}", "0".repeat(300)),
        format!("{{\"{long}\": 1, \"{long}y\": 2}}"),
    ] {
        let error = read("a.jsonl", content).unwrap_err();
        assert!(error.len() < 1000, "{} bytes", error.len());
    }
}

#[test]
fn a_record_the_tokenizer_fails_on_is_named() {
    let error = read("a.csv", "text,label\na,x\nb,y\nunspeakable,x\nc,y\n").unwrap_err();
    assert!(error.contains("a.csv:4:1") && error.contains("cannot be tokenized"), "{error}");
}

#[test]
fn directories_and_missing_files_are_told_apart() {
    let words = Words::new();
    let directory = tempfile::TempDir::new().unwrap();
    let nested = directory.path().join("x.csv");
    std::fs::create_dir(&nested).unwrap();
    let read = |path: &std::path::Path| layout_error(&ColumnTask::default().read(path, &options(&words)).unwrap_err());
    assert!(read(&nested).contains("this is a directory"));
    let missing = read(&directory.path().join("y.csv"));
    assert!(missing.contains("y.csv") && missing.contains("no such file"), "{missing}");
    assert!(missing.starts_with("error[data]: "), "{missing}");
}

#[test]
fn a_pipe_is_refused_without_waiting_for_its_writer() {
    let words = Words::new();
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("x.jsonl");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let error = layout_error(&ColumnTask::default().read(&path, &options(&words)).unwrap_err());
    assert!(error.starts_with("error[data]: this is a FIFO, socket or device"), "{error}");
}

/// Damage of every kind at every place: the reader answers, and what it accepts is well formed.
#[test]
fn damaged_files_never_panic() {
    let jsonl: &[u8] = "{\"target\": {\"span1_text\": \"Ann\", \"span2_text\": \"she\"}, \"text\": \"é\\u00e9 \
        ran\", \"label\": true}\n"
        .as_bytes();
    let csv: &[u8] = "text,label\n\"a, \"\"é\"\"\nb\",x\nc,y\n".as_bytes();
    let words = Words::new();
    let options = options(&words);
    let mut refused = 0;
    for (name, good) in [("WSC/train.jsonl", jsonl), ("a.csv", csv), ("a.tsv", csv)] {
        for at in 0..good.len() {
            for damage in [None, Some(b'"'), Some(b'\n'), Some(0xFF), Some(b'\\'), Some(b'{'), Some(b','), Some(0)] {
                let mut bytes = good.to_vec();
                match damage {
                    Some(byte) => bytes[at] = byte,
                    None => bytes.truncate(at),
                }
                let (directory, path) = file(name, &bytes);
                let dataset = match name {
                    "WSC/train.jsonl" => find_task("WSC", &[SUPERGLUE]).unwrap().read_below(
                        directory.path(),
                        Split::Train,
                        TaskModel::default(),
                        &options,
                    ),
                    _ => ColumnTask::default().read(&path, &options),
                };
                match dataset {
                    Ok(dataset) => assert!(rows(&words, &dataset).iter().all(|(text, _)| text.starts_with("[CLS]"))),
                    Err(error) => {
                        refused += 1;
                        assert!(error.to_string().contains("fix:"), "{error}");
                    }
                }
            }
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn conversations_are_named_with_the_task_that_reads_them() {
    let message = r#"[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]"#;
    for (record, at) in [
        (format!("{{\"text\": {message}, \"label\": \"a\"}}"), "a.jsonl:1:10"),
        (format!("{{\"messages\": {message}}}"), "a.jsonl:1:14"),
        (r#"{"conversations": [{"from": "human", "value": "hi"}]}"#.to_owned(), "a.jsonl:1:19"),
    ] {
        let error = read("a.jsonl", &record).unwrap_err();
        assert!(error.contains("is a list of messages, which this task does not read"), "{error}");
        assert!(error.contains(at) && error.contains("set data.task = \"sft\""), "{error}");
    }
    let error = read("a.jsonl", r#"{"text": ["a"], "label": "x"}"#).unwrap_err();
    assert!(error.contains("\"text\" is a list, not a single value"), "{error}");
}
