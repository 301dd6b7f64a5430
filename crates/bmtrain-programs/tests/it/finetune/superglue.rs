//! The tasks of SuperGLUE, which know their files, labels and metrics.

use super::fixture::{Fixture, RECIPE};
use super::{check_directory, losses, records, train};

#[test]
fn all_six_superglue_tasks_run() {
    let fixture = Fixture::new();
    for (task, lines) in superglue() {
        write_task(&fixture, task, lines);
        fixture.replace("recipe.toml", "max_length = 16", "max_length = 24");
        train(&fixture, task, &[]);
        check_directory(&fixture, task);
        assert_eq!(losses(&fixture, task).len(), 3, "{task}");
        assert!(losses(&fixture, task).iter().all(|loss| loss.is_finite()), "{task}");
        let evals = records(&fixture, task, "eval");
        assert_eq!(evals[0]["samples"], 3, "{task}");
        let accuracy = evals[0]["metrics"]["accuracy"].as_f64().unwrap();
        assert!(
            [0.0, 1.0 / 3.0, 2.0 / 3.0, 1.0].iter().any(|share| (share - accuracy).abs() < 1e-12),
            "{task}: {accuracy}"
        );
    }
}

#[test]
fn a_registered_task_reports_its_own_metrics_and_what_stops_the_run() {
    let fixture = Fixture::new();
    let (task, lines) = superglue()[1];
    write_task(&fixture, task, lines);
    let names = |dir: &str| -> Vec<String> {
        records(&fixture, dir, "eval")[0]["metrics"].as_object().unwrap().keys().cloned().collect()
    };
    train(&fixture, "plain", &[]);
    assert_eq!(names("plain"), ["accuracy", "f1_macro", "loss"]);
    train(&fixture, "early", &["train.early_stop.patience=5", "train.early_stop.metric=matthews"]);
    assert_eq!(names("early"), ["accuracy", "f1_macro", "matthews", "loss"]);
}

/// Puts a task's records and a recipe for it in place of the fixture's: three are enough for one batch of 2 whatever
/// the task repeats.
pub fn write_task(fixture: &Fixture, task: &str, lines: [&str; 3]) {
    for file in ["train.jsonl", "val.jsonl"] {
        fixture.write(&format!("glue/{task}/{file}"), &lines.map(|line| format!("{line}\n")).concat());
    }
    let recipe = RECIPE
        .replace("\"classification\"", &format!("\"{task}\""))
        .replace("train = \"train.jsonl\"", "path = \"glue\"")
        .replace("eval = \"eval.jsonl\"\n", "")
        .replace("batch_size = 4", "batch_size = 2");
    fixture.write("recipe.toml", &recipe);
}

/// Records as SuperGLUE ships them.
pub fn superglue() -> [(&'static str, [&'static str; 3]); 6] {
    [
        (
            "BoolQ",
            [
                r#"{"question": "is the film good", "passage": "Film -- the film was good.", "idx": 0, "label": true}"#,
                r#"{"question": "is it bad", "passage": "The cast was fine.", "idx": 1, "label": false}"#,
                r#"{"question": "is the plot poor", "passage": "It is a poor plot.", "idx": 2, "label": true}"#,
            ],
        ),
        (
            "CB",
            [
                concat!(
                    r#"{"premise": "It was a good film.", "hypothesis": "the film was good", "#,
                    r#""label": "entailment", "idx": 0}"#,
                ),
                r#"{"premise": "It was bad.", "hypothesis": "it was good", "label": "contradiction", "idx": 1}"#,
                r#"{"premise": "Is it fine?", "hypothesis": "it is fine", "label": "neutral", "idx": 2}"#,
            ],
        ),
        (
            "COPA",
            [
                concat!(
                    r#"{"premise": "The man ran.", "choice1": "It was bad.", "choice2": "He was fine.", "#,
                    r#""question": "cause", "label": 0, "idx": 0}"#,
                ),
                concat!(
                    r#"{"premise": "The sun was in the park.", "choice1": "It rains.", "#,
                    r#""choice2": "It is fine.", "question": "effect", "label": 1, "idx": 1}"#,
                ),
                concat!(
                    r#"{"premise": "She ran.", "choice1": "They ran.", "choice2": "It rains.", "#,
                    r#""question": "cause", "label": 1, "idx": 2}"#,
                ),
            ],
        ),
        (
            "RTE",
            [
                concat!(
                    r#"{"premise": "The man was in the park.", "hypothesis": "The man ran.", "#,
                    r#""label": "not_entailment", "idx": 0}"#,
                ),
                concat!(
                    r#"{"premise": "The film was very good.", "hypothesis": "The film was good.", "#,
                    r#""label": "entailment", "idx": 1}"#,
                ),
                r#"{"premise": "It rains.", "hypothesis": "The sun.", "label": "not_entailment", "idx": 2}"#,
            ],
        ),
        (
            "WiC",
            [
                concat!(
                    r#"{"word": "bank", "sentence1": "The bank of the river.", "#,
                    r#""sentence2": "Money in the bank.", "idx": 0, "label": false, "start1": 4, "start2": 13, "#,
                    r#""end1": 8, "end2": 17, "version": 1.1}"#,
                ),
                concat!(
                    r#"{"word": "ball", "sentence1": "The ball of the man.", "#,
                    r#""sentence2": "A ball in the park.", "idx": 1, "label": true, "start1": 4, "start2": 2, "#,
                    r#""end1": 8, "end2": 6, "version": 1.1}"#,
                ),
                concat!(
                    r#"{"word": "cast", "sentence1": "The cast was good.", "sentence2": "A fine cast.", "#,
                    r#""idx": 2, "label": true, "start1": 4, "start2": 7, "end1": 8, "end2": 11, "version": 1.1}"#,
                ),
            ],
        ),
        (
            "WSC",
            [
                concat!(
                    r#"{"text": "The man ran. He was fine.", "target": {"span1_index": 1, "span1_text": "man", "#,
                    r#""span2_index": 3, "span2_text": "He"}, "idx": 0, "label": true}"#,
                ),
                concat!(
                    r#"{"text": "The film and the plot. It was bad.", "target": {"span2_index": 5, "#,
                    r#""span1_index": 4, "span1_text": "plot", "span2_text": "It"}, "idx": 1, "label": false}"#,
                ),
                concat!(
                    r#"{"text": "The sun in the park. It was fine.", "target": {"span2_index": 5, "#,
                    r#""span1_index": 4, "span1_text": "park", "span2_text": "It"}, "idx": 2, "label": true}"#,
                ),
            ],
        ),
    ]
}
