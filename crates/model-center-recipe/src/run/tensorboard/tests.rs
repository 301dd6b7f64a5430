//! Tests of event files and their scalars.

use super::*;
use bmtrain_corpus::formats::TfRecordReader;

fn log(directory: &Path, now: f64) -> EventLog {
    EventLog::create(directory, now, &[("train.lr".to_owned(), toml::Value::Float(0.1))], "[train]\nlr = 0.1\n")
        .unwrap()
}

#[test]
fn scalars_are_the_numbers_of_a_record_with_their_context() {
    let line =
        r#"{"kind":"step","step":3,"epoch":0.5,"loss":"NaN","batch":"00","skipped":true,"time":{"seconds":2.0}}"#;
    let found = scalars(&serde_json::from_str(line).unwrap());
    let tags: Vec<&str> = found.iter().map(|scalar| scalar.tag.as_str()).collect();
    assert_eq!(tags, ["train/epoch", "train/loss", "train/skipped", "time/seconds"]);
    assert!(found[1].value.is_nan() && found[2].value == 1.0);
    let line =
        r#"{"kind":"eval","step":3,"samples":5,"metrics":{"accuracy":0.5},"best":true,"time":{"eval_seconds":1}}"#;
    let found = scalars(&serde_json::from_str(line).unwrap());
    let tags: Vec<&str> = found.iter().map(|scalar| scalar.tag.as_str()).collect();
    assert_eq!(tags, ["validation/samples", "validation/accuracy", "validation/eval_seconds"]);
    assert!(scalars(&serde_json::from_str(r#"{"kind":"end","step":3}"#).unwrap()).is_empty());
}

#[test]
fn files_are_records_in_the_order_of_their_names_although_a_clock_was_set_back() {
    let scratch = tempfile::tempdir().unwrap();
    let directory = scratch.path().join(TENSORBOARD_DIRECTORY);
    let step = serde_json::from_str(r#"{"kind":"step","step":3,"loss":0.25}"#).unwrap();
    log(&directory, 2000.5).record(2001.0, &step).unwrap();
    let resume = serde_json::from_str(r#"{"kind":"resume","step":2}"#).unwrap();
    log(&directory, 1000.0).record(1000.0, &resume).unwrap();
    let mut names: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let ends: Vec<bool> = ["0000002000", "0000002001"]
        .iter()
        .zip(&names)
        .map(|(end, name)| name.to_string_lossy().ends_with(end))
        .collect();
    assert_eq!(ends, [true, true], "{names:?}");
    let mut records = TfRecordReader::open(&names[0]).unwrap();
    let mut events = Vec::new();
    while let Some(event) = records.advance().unwrap() {
        events.push(event.to_vec());
    }
    assert_eq!(events.len(), 3);
    assert!(events[0].ends_with(FILE_VERSION.as_bytes()));
    // Time, step, a summary of one value: the tag train/loss and 0.25.
    let expected = [
        &[9][..],
        &2001f64.to_le_bytes(),
        &[16, 3, 42, 19, 10, 17, 10, 10],
        b"train/loss",
        &[21],
        &0.25f32.to_le_bytes(),
    ];
    assert_eq!(events[2], expected.concat());
    let mut records = TfRecordReader::open(&names[1]).unwrap();
    records.advance().unwrap();
    records.advance().unwrap();
    let event = records.advance().unwrap().unwrap();
    assert_eq!(event, [&[9][..], &1000f64.to_le_bytes(), &[16, 3, 58, 2, 8, 1]].concat());
}
