//! Metrics of texts against torchmetrics, seqeval and rouge-score; the data are made by
//! `scripts/golden/make_metrics.py`.

use model_center::metrics::{EntityCounts, exact_match, rouge_l, token_f1};
use serde_json::Value;
use std::path::Path;

fn expected(name: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/metrics/expected.json");
    let all: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    all[name].as_array().unwrap().clone()
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

fn assert_close(what: &str, ours: f64, theirs: &Value) {
    // torchmetrics computes in f32.
    assert!((ours - theirs.as_f64().unwrap()).abs() < 1e-6, "{what}: {ours} and {theirs}");
}

#[test]
fn two_hundred_answers_are_rated_as_by_torchmetrics() {
    let cases = expected("answers");
    assert_eq!(cases.len(), 200);
    for case in cases {
        let (text, references) = (case["text"].as_str().unwrap(), texts(&case["references"]));
        assert_close(&case.to_string(), exact_match(text, &references), &case["exact_match"]);
        assert_close(&case.to_string(), token_f1(text, &references), &case["token_f1"]);
    }
}

#[test]
fn entities_are_counted_as_by_seqeval() {
    for case in expected("tags") {
        let mut counts = EntityCounts::default();
        let sequences = |name: &str| case[name].as_array().unwrap().clone();
        for (labels, predicted) in sequences("labels").iter().zip(&sequences("predicted")) {
            counts.add(&texts(labels), &texts(predicted));
        }
        let [precision, recall, f1] = counts.overall();
        for (ours, theirs) in [precision, recall, f1, counts.tag_accuracy()].into_iter().zip(0..) {
            assert_close(&case.to_string(), ours, &case["figures"][theirs as usize]);
        }
    }
}

#[test]
fn summaries_are_rated_as_by_rouge_score() {
    for case in expected("summaries") {
        let ours = rouge_l(case["text"].as_str().unwrap(), &[case["reference"].as_str().unwrap()]);
        for (ours, theirs) in [ours.precision, ours.recall, ours.f1].into_iter().zip(0..) {
            assert_close(&case.to_string(), ours, &case["figures"][theirs as usize]);
        }
    }
}
